"""Verdicts of Megatron-LM's argument checks by version, as they were once given, and how they are recorded again.

    python -m recorded CHECKOUT...     (in this folder) judges every argument list by each checkout and writes `RECORD`

The record says for each named configuration and each option changed in it, version by version: `a` accepted, `r` refused by
`validate_args` or the config behind it, `u` the version's parser does not know the option, `n` the version stops for want of a
device's library before it judges. One letter stands for all versions.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bases import argument_bases
from cases import Case
from megatron_arguments import argument_list, argument_steps, environment

RECORD = Path(__file__).with_name("megatron_lm_verdicts.json")
WORKER = Path(__file__).with_name("megatron_lm_worker.py")

NO_VERDICT = (
    "Only transformer-engine>=",
    "No module named 'transformer_engine'",
    "'NoneType' and 'Version'",
    "process group has not been initialized",
)
"""Words of messages that say what is not installed here, not what is wrong with the arguments."""

Key = tuple[str, str, str]
"""Named configuration, option changed in it, value it took; the last two empty for the configuration as it stands."""


def argument_cases() -> Iterator[tuple[Key, Case]]:
    """Every configuration that is judged."""
    for name, base in argument_bases().items():
        yield (name, "", ""), base
        for option, value, case in argument_steps(base):
            yield (name, option, str(value)), case


def recorded() -> dict[str, dict[Key, str]]:
    """Version -> configuration -> letter."""
    document = json.loads(RECORD.read_text(encoding="utf-8"))
    versions = document["versions"]
    found: dict[str, dict[Key, str]] = {version: {} for version in versions}
    for name, options in document["verdicts"].items():
        for option, values in options.items():
            for value, letters in values.items():
                whole = letters * len(versions) if len(letters) == 1 else letters
                for version, letter in zip(versions, whole, strict=True):
                    found[version][name, option, value] = letter
    return found


def judged_by(checkout: Path, cases: list[Case]) -> list[dict[str, object]]:
    """Megatron-LM's verdicts, by the source of a release."""
    lines = [json.dumps({"arguments": argument_list(case), "environment": environment(case)}) for case in cases]
    command = [sys.executable, "-W", "ignore", str(WORKER), str(checkout)]
    ran = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    return [json.loads(line) for line in ran.stdout.splitlines()]


def letter_of(verdict: dict[str, object]) -> str:
    """A verdict in one letter."""
    if verdict["accepted"]:
        return "a"
    if any(words in str(verdict["message"]) for words in NO_VERDICT):
        return "n"
    return "u" if verdict["link"] == "parse" else "r"


def version_of(checkout: Path) -> str:
    """Major and minor version of a checkout."""
    text = (checkout / "megatron/core/package_info.py").read_text(encoding="utf-8")
    numbers = dict(line.split(" = ") for line in text.splitlines() if line.startswith(("MAJOR", "MINOR")))
    return f"{numbers['MAJOR']}.{numbers['MINOR']}"


def write(letters: dict[str, dict[Key, str]]) -> None:
    """Writes the record."""
    versions = sorted(letters, key=lambda version: int(version.split(".")[1]))
    verdicts: dict[str, dict[str, dict[str, str]]] = {}
    for key in letters[versions[0]]:
        word = "".join(letters[version][key] for version in versions)
        name, option, value = key
        verdicts.setdefault(name, {}).setdefault(option, {})[value] = word[0] if len(set(word)) == 1 else word
    rows = [f"  {json.dumps(name)}: {json.dumps(options, separators=(',', ':'))}" for name, options in verdicts.items()]
    body = ",\n".join(rows)
    RECORD.write_text(f'{{"versions": {json.dumps(versions)},\n"verdicts": {{\n{body}\n}}}}\n', encoding="utf-8")


def main() -> None:
    """Records the verdicts of the checkouts named on the command line."""
    keys, cases = zip(*argument_cases(), strict=True)
    letters = {}
    for checkout in map(Path, sys.argv[1:]):
        verdicts = judged_by(checkout, list(cases))
        letters[version_of(checkout)] = {key: letter_of(one) for key, one in zip(keys, verdicts, strict=True)}
    write(letters)


if __name__ == "__main__":
    main()
