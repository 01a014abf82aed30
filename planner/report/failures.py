"""Whatever goes wrong, as one of our errors and as the text standard error gets.

    fault_of(exception) -> ShardwrightError,  error_text(error, form) -> text

Typer's own errors (unknown option, missing argument, a value of the wrong type) are told by their attributes, so
that nothing here depends on where Typer keeps them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, UnknownNameError, unknown_name

ISSUES = "the project's issue tracker"
OPTIONS = {name: "--" + name.replace("_", "-") for name in ("cluster", "seq_len", "global_batch", "gpus")}
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp-replicate", "micro-batch", "zero", "loss-chunks")
WORDS = ("schedule", "recompute", "cp-comm", "moe-dispatcher", "offload", "sequence-parallel")
"""Options of one plan that a search holds by `--fix`, with a number and with a word."""


class UsageError(ShardwrightError):
    """The command line itself cannot be understood."""

    code = "usage"


class InternalError(ShardwrightError):
    """A bug."""

    code = "internal"


class InterruptedByUserError(ShardwrightError):
    """Stopped by the user."""

    code = "interrupted"
    exit_code = 130


def fault_of(error: Exception) -> ShardwrightError:
    """Any exception as one of our errors: our own, Typer's, or a bug."""
    if isinstance(error, ShardwrightError):
        error.where = OPTIONS.get(error.where, error.where)
        return error
    if isinstance(error, OSError):  # of the machine: a name too long, a device that fails, a disk that is full
        return unusable(error)
    return usage_error(error) if hasattr(error, "format_message") else bug(error)


def unusable(error: OSError) -> InvalidValueError:
    """Our error for a file, folder or device that the machine refuses."""
    place, why = str(error.filename or ""), error.strerror or type(error).__name__
    shown = place if len(place) <= 100 else place[:97] + "..."
    return InvalidValueError(f"cannot use {shown}: {why}" if shown else why, where=shown, hint="name another file or folder")


def usage_error(error: Any) -> ShardwrightError:
    """Our error for one of Typer's."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "shardwright"
    message = _one_line(error.format_message()) + _given(error)
    option = getattr(error, "option_name", None)
    if option is not None and "no such option" in message.lower():
        return _unknown_option(str(option), context, command)
    if option is not None:
        return UsageError(message, where=str(option), hint=f"see {command} --help")
    missing = re.match(r"No such command '(.*?)'", error.message or "")
    if missing and context:
        return unknown_name("command", missing[1], context.command.commands, where=command)
    left_out = re.match("Missing (argument|option)", message)
    sample = getattr(getattr(context, "command", None), "epilog", None)
    hint = f"such as: {sample}" if left_out and sample else f"see {command} --help"
    return UsageError(message, where=_place(error) or command, hint=hint)


def _given(error: Any) -> str:
    """The text that was given for a number, which Typer's message leaves out where its converter refuses it."""
    refused = getattr(error.__cause__, "errors", None)
    texts = [str(each.get("input", ""))[:40] for each in refused()] if callable(refused) else []
    return f" (given: {texts[0]!r})" if texts else ""


def _unknown_option(given: str, context: Any, command: str) -> UnknownNameError:
    options = context.command.params if context else []
    known = {name.lstrip("-"): name for option in options for name in (*option.opts, *option.secondary_opts) if name[:1] == "-"}
    plain = given.lstrip("-").lower().replace("_", "-")
    if "fix" in known and plain in (*DEGREES, *WORDS):
        held = f"{plain.replace('-', '_')}={'N' if plain in DEGREES else 'VALUE'}"
        return UnknownNameError(f"unknown option {given!r}", where=command, hint=f"hold a degree by --fix {held}")
    near = difflib.get_close_matches(plain, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(known[n] for n in near)}?" if near else f"see {command} --help"
    return UnknownNameError(f"unknown option {given[:60]!r}", where=command, hint=hint)


def bug(error: BaseException) -> InternalError:
    """Our error for an exception nobody expected."""
    what = _one_line(str(error))[:200]
    name = type(error).__name__
    return InternalError(
        f"this is a bug in shardwright: {name}" + (f": {what}" if what else ""),
        hint=f"please report it to {ISSUES} with the command; SHARDWRIGHT_DEBUG=1 shows where it happened",
    )


def error_text(error: ShardwrightError, form: str) -> str:
    """Lines for a reader, or with `json` the one line for a program."""
    if form == "json":
        return json.dumps({"error": error.to_dict()}) + "\n"
    told = {"error: ": error.message, "  where: ": error.where, "  hint: ": error.hint}
    return "".join(start + text.replace("\n", "\\n") + "\n" for start, text in told.items() if text)


def wanted_format(arguments: Sequence[str]) -> str:
    """The `--format` on a command line that may be wrong otherwise; empty if there is none."""
    form = ""
    for number, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        if name == "--format":
            form = value if separator else arguments[number + 1] if number + 1 < len(arguments) else ""
    return form


def refuse_repeats(arguments: Sequence[str], options: Iterable[Any]) -> None:
    """Refuses an option that is given twice with different values.

    Args:
        arguments: the command line.
        options: Typer's parameters of the command.

    Raises:
        ConflictError: two values for one option.
    """
    names = {n: o for o in options if not getattr(o, "multiple", False) for n in (*o.opts, *o.secondary_opts) if n[:1] == "-"}
    seen: dict[str, str] = {}
    for number, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        option = names.get(name)
        if option is None:
            continue
        if getattr(option, "is_flag", False):
            value = name
        elif not separator:
            value = arguments[number + 1] if number + 1 < len(arguments) else ""
        first = seen.setdefault(option.name, value)
        if first != value:
            raise ConflictError(f"{name} is given as {first} and as {value}", where=name, hint="keep one of the two")


def _place(error: Any) -> str:
    hint = getattr(error, "param_hint", None)
    parameter = getattr(error, "param", None)
    if hint is None and parameter is not None:
        named = next((name for name in reversed(parameter.opts) if name[:1] == "-"), None)
        hint = named or parameter.metavar or str(parameter.name).upper()
    return " / ".join(hint) if isinstance(hint, (list, tuple)) else str(hint or "")


def _one_line(text: str) -> str:
    return " ".join(text.split())
