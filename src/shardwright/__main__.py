"""The entry of the command line: `shardwright`, and `python -m shardwright`.

Everything else is imported inside, so that Ctrl-C ends the program quietly while modules are still being loaded.
"""

import sys

INTERRUPTED = 130


def main() -> None:
    """Runs the command line that the process was started with."""
    try:
        from shardwright.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
