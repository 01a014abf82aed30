"""The entry of the command line: `shardwright`, and `python -m shardwright`.

Everything else is imported inside, so that Ctrl-C ends the program quietly while modules are still being loaded.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INTERRUPTED = 130
AGAIN_S = 0.1


def main() -> None:
    """Runs the command line that the process was started with."""
    sys.unraisablehook = _comes_again
    try:
        from shardwright.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(INTERRUPTED)
    finally:
        _forget_interrupts()


def _forget_interrupts() -> None:
    """Lets the exit code count after Ctrl-C met code made from text (dataclasses make their methods so).

    Until the next such code has run, CPython would end by the signal, although the interrupt was handled.
    """
    from collections import namedtuple

    namedtuple("_Made", ())


def _comes_again(unraisable: "Any") -> None:
    """Lets Ctrl-C that met code which raises nothing (callbacks of the import system) come again, a moment later."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
    elif not sys.is_finalizing():
        try:
            _start_timer()
        except KeyboardInterrupt:  # on a busy machine the thread may be faster than its start
            _comes_again(unraisable)


def _start_timer() -> None:
    import signal
    from _thread import interrupt_main
    from threading import Timer, get_ident

    kill, here = getattr(signal, "pthread_kill", None), (get_ident(), signal.SIGINT)
    timer = Timer(AGAIN_S, kill, here) if kill is not None else Timer(AGAIN_S, interrupt_main)  # the former wakes sleepers
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    main()
