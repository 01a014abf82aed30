"""A bash script read for what it launches: variables followed, conditions decided where they can be, nothing run.

    read_script(text)   Script: the words of the command that trains, the launcher before it, the environment it exports

Followed are assignments, arrays, exports, `if`, `case` and and-or lists whose tests compare texts or numbers, calls of the
script's own functions, `eval` and `bash -c`, and here-documents that start a program. A `for` loop is read once, with its first
word; `while` loops, other files and all that would have to run are passed over, and named where they could matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.errors import DamagedFileError
from shardwright.planner.readers.shell_syntax import (
    AndOr,
    Case,
    Command,
    Function,
    Group,
    If,
    Loop,
    Statement,
    statements,
)
from shardwright.planner.readers.shell_tests import holds, matches
from shardwright.planner.readers.shell_tokens import Token, tokens
from shardwright.planner.readers.shell_values import Unknown, Values

MAX_DEPTH = 12
MAX_COMMANDS = 20_000
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_DECLARING = frozenset(("export", "declare", "local", "readonly", "typeset"))
_SHELLS = frozenset(("bash", "sh", "/bin/bash", "/bin/sh", "zsh"))
_TOLD = ("CUDA_", "NCCL_", "NVTE_", "TORCH", "PYTORCH", "GLOO_", "OMP_")
"""Beginnings of the environment variables that change how a job runs; others (keys, paths) are nobody's business."""

_PROGRAM = re.compile(r"(?:.*/)?[A-Za-z0-9_.-]+\.py")
_OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
_PROGRAM_IN = re.compile(r"\.py\b")
_DIRECTIVE = re.compile(r"^\s*#SBATCH\s+(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """An argument, and the line of the command it belongs to.

    Attributes:
        text: with unknown parts as they were written.
        line: where the command begins.
        unknowns: what of it cannot be told.
    """

    text: str
    line: int
    unknowns: tuple[Unknown, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a script launches.

    Attributes:
        source: its name.
        launcher: the words before the program (torchrun and its options), empty where there are none.
        program: the Python file it starts; empty where the file holds arguments alone.
        arguments: the words behind the program.
        environment: exported variables that can be told.
        directives: words of the `#SBATCH` lines.
        notes: what was passed over, each with its line.
    """

    source: str
    launcher: tuple[Word, ...] = ()
    program: str = ""
    arguments: tuple[Word, ...] = ()
    environment: Mapping[str, str]
    directives: tuple[Word, ...] = ()
    notes: tuple[str, ...] = ()


def read_script(text: str, source: str, defined: Mapping[str, str] | None = None) -> Script:
    """What a script launches, as far as that can be told without running it.

    Args:
        text: the script.
        source: its name.
        defined: variables (and arguments, as "1") to take as given.

    Raises:
        DamagedFileError: quotes, brackets or statements that are not closed, or values without end.
    """
    walk = _Walk(source, defined or {})
    walk.places = _places(text)
    walk.text(text, 1, 0)
    return walk.script(text)


class _Walk:
    """The state of one reading."""

    def __init__(self, source: str, defined: Mapping[str, str]) -> None:
        self.source, self.defined = source, defined
        self.values = Values(source, defined)
        self.exported: set[str] = set()
        self.functions: dict[str, tuple[Statement, ...]] = {}
        self.launches: list[tuple[list[Word], dict[str, str]]] = []
        self.notes: list[str] = []
        self.later: list[Token] = []
        self.commands = 0
        self.places: dict[str, int] = {}

    def text(self, text: str, line: int, depth: int) -> None:
        """Reads a script, or a command held in a text."""
        self._all(statements(tokens(text, self.source, line), self.source), depth)

    def script(self, text: str) -> Script:
        """What was found; here-documents are read where nothing else launches."""
        texts = [text, *(self._document(body) for body in self.later)]
        directives = [found for one in texts for found in directives_of(one)]
        words, environment = self._launch()
        start = next((i for i, word in enumerate(words) if _PROGRAM.fullmatch(word.text)), None)
        if start is not None:
            arguments = words[start + 1 :]
        else:
            arguments = words if words and words[0].text.startswith("--") else self._held_in_variables()
        return Script(
            source=self.source,
            launcher=tuple(words[: start or 0]),
            program=words[start].text if start is not None else "",
            arguments=tuple(arguments),
            environment=environment,
            directives=tuple(directives),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _document(self, body: Token) -> str:
        """Reads a here-document where nothing else launches; gives its text, its variables filled in before as bash does."""
        text = body.text if body.kind == "verbatim" else self.values.document(body.text, body.line)
        try:
            if not self.launches:
                self.text(text, body.line, 1)
        except DamagedFileError:
            self.notes.append(f"{self.source}:{body.line}: the text that begins here is no script; it is not read")
        return text

    def _launch(self) -> tuple[list[Word], dict[str, str]]:
        """The command with the most options; of equals the last."""
        if not self.launches:
            return [], self._environment()
        sizes = [sum(word.text.startswith("--") for word in words) for words, _ in self.launches]
        best = max(range(len(sizes)), key=lambda index: (sizes[index], index))
        if sizes.count(sizes[best]) > 1 or len(sizes) > 1:
            lines = sorted({words[0].line for words, _ in self.launches})
            if len(lines) > 1:
                line = self.launches[best][0][0].line
                others = ", ".join(str(other) for other in lines if other != line)
                self.notes.append(f"{self.source}:{line} is read as the launch; lines {others} start programs too")
        return self.launches[best]

    def _held_in_variables(self) -> list[Word]:
        """Options that arrays and texts of the script hold, for files that another script reads."""
        made: list[Word] = []
        for name, value in self.values.variables.items():
            words = value if isinstance(value, list) else [value]
            parts = [part for word in words for part in word.split()]
            if parts and parts[0].startswith("--"):
                made += [self._word(part, 1) for part in parts]
                self.notes.append(f"{self.source} launches nothing; the options that {name} holds are read")
        return made

    def _word(self, text: str, line: int) -> Word:
        """A word of a command; an option is placed where it is written, which may be a variable far above."""
        line = self.places.get(text.partition("=")[0], line)
        return Word(text=self.values.shown(text), line=line, unknowns=self.values.unknowns_in(text))

    def _environment(self) -> dict[str, str]:
        found = {name: self.values.value(name) for name in sorted(self.exported)}
        return {n: v[0] for n, v in found.items() if v and n.startswith(_TOLD) and not self.values.unknowns_in(v[0])}

    def _all(self, found: Sequence[Statement], depth: int) -> bool | None:
        status: bool | None = True
        for statement in found:
            status = self._one(statement, depth)
        return status

    def _one(self, statement: Statement, depth: int) -> bool | None:
        """Reads a statement; whether it succeeds, or None where that cannot be told."""
        self.commands += 1
        if depth > MAX_DEPTH or self.commands > MAX_COMMANDS:
            return None
        status: bool | None = True
        match statement:
            case Command():
                status = self._command(statement, depth)
            case AndOr():
                status = self._and_or(statement, depth)
            case If():
                status = self._if(statement, depth)
            case Case():
                status = self._case(statement, depth)
            case Loop():
                status = self._loop(statement, depth)
            case Function():
                self.functions[statement.name] = statement.body
            case Group():
                status = self._all(statement.body, depth)
        return status

    def _and_or(self, found: AndOr, depth: int) -> bool | None:
        status: bool | None = True
        for connector, part in found.parts:
            if connector == "" or status is (connector == "&&"):
                status = self._one(part, depth)
            elif status is None:
                self._passed_over(part)
        return status

    def _if(self, found: If, depth: int) -> bool | None:
        for condition, body in found.branches:
            status = self._all(condition, depth)
            if status is True:
                return self._all(body, depth)
            if status is None:
                self._undecided(found.line, [b for _, b in found.branches] + [found.otherwise])
                return None
        return self._all(found.otherwise, depth)

    def _case(self, found: Case, depth: int) -> bool | None:
        word = self.values.joined(found.word.text, found.line)
        if self.values.unknowns_in(word):
            self._undecided(found.line, [body for _, body in found.choices])
            return None
        for patterns, body in found.choices:
            if any(matches(word, self.values.joined(p.text, p.line)) for p in patterns):
                return self._all(body, depth)
        return True

    def _loop(self, found: Loop, depth: int) -> bool | None:
        words = [field for word in found.words for field in self.values.fields(word.text, word.line)]
        if not found.name or not words:
            return True
        if len(words) > 1:
            shown = self.values.shown(words[0])
            self.notes.append(f"{self.source}:{found.line}: the loop is read once, with {found.name} {shown}")
        self.values.variables[found.name] = words[0]
        return self._all(found.body, depth)

    def _undecided(self, line: int, bodies: Sequence[Sequence[Statement]]) -> None:
        if any(_matters(statement) for body in bodies for statement in body):
            self.notes.append(f"{self.source}:{line}: which branch holds cannot be told without running; none is read")

    def _passed_over(self, statement: Statement) -> None:
        if _matters(statement) and isinstance(statement, Command):
            self.notes.append(f"{self.source}:{statement.line}: whether this runs cannot be told; it is not read")

    def _command(self, found: Command, depth: int) -> bool | None:
        """Assignments at the front, then the command."""
        self.later += [body for body in found.bodies if _PROGRAM_IN.search(body.text) or _DIRECTIVE.search(body.text)]
        words, local = list(found.words), {}
        while words and (words[0].kind == "array" or _ASSIGNMENT.fullmatch(words[0].text)):
            name = self._assign(words.pop(0))
            local[name] = (self.values.value(name) or [""])[0]
        if not words:
            return True
        first = words[0].text
        if first in _DECLARING:
            return self._declare(words[1:], exported=first == "export" or any(w.text == "-x" for w in words))
        if first in {"[", "[[", "test", "!"} or first.startswith("(("):
            return holds(words, self.values)
        fields = [field for word in words if word.kind == "word" for field in self.values.fields(word.text, word.line)]
        return self._called(fields, found.line, local, depth)

    def _declare(self, words: Sequence[Token], *, exported: bool) -> bool:
        for word in words:
            if word.text.startswith("-"):
                continue
            name = self._assign(word) if word.kind == "array" or "=" in word.text else word.text
            if exported:
                self.exported.add(name)
        return True

    def _assign(self, token: Token) -> str:
        if token.kind == "array":
            name, more = token.text.rstrip("=").removesuffix("+"), token.text.endswith("+=")
            words = [field for item in token.items for field in self.values.fields(item.text, item.line)]
            self.values.variables[name] = [*((self.values.value(name) or []) if more else []), *words]
            return name
        found = _ASSIGNMENT.fullmatch(token.text)
        if found is None:
            return token.text
        name, value = found[1], self.values.joined(found[3], token.line)
        if name in self.defined:
            return name
        before = (self.values.value(name) or [""])[0] if found[2] else ""
        if len(before) + len(value) > 1_000_000:
            raise self.values.too_long(token.line)
        self.values.variables[name] = before + value
        return name

    def _called(self, fields: list[str], line: int, local: dict[str, str], depth: int) -> bool | None:
        if not fields:
            return True
        name, rest = fields[0], fields[1:]
        if name in {"true", ":", "false"}:
            return name != "false"
        if name in self.functions:
            return self._function(name, rest, depth)
        inner = " ".join(rest) if name == "eval" else _command_text(fields)
        if name == "unset":
            self._unset(rest)
        elif name in {"source", "."} and rest:
            self.notes.append(f"{self.source}:{line}: {self.values.shown(rest[0])} is not read; put what it sets into the file")
        elif inner is not None:
            self.text(inner, line, depth + 1)
        else:
            self._record(fields, line, local)
        return True if name == "unset" else None

    def _unset(self, names: Sequence[str]) -> None:
        for name in names:
            self.values.variables.pop(name, None)
            self.exported.discard(name)

    def _function(self, name: str, arguments: list[str], depth: int) -> bool | None:
        outer = {key: self.values.variables.get(key) for key in map(str, range(1, 10))}
        self.values.variables.update({str(i + 1): word for i, word in enumerate(arguments[:9])})
        status = self._all(self.functions[name], depth + 1)
        for key, value in outer.items():
            if value is None:
                self.values.variables.pop(key, None)
            else:
                self.values.variables[key] = value
        return status

    def _record(self, fields: Sequence[str], line: int, local: dict[str, str]) -> None:
        """Notes a command that starts a Python program, or a line of nothing but options."""
        words = [self._word(field, line) for field in fields]
        program = next((i for i, word in enumerate(words) if _PROGRAM.fullmatch(word.text)), None)
        options = (
            any(word.text.startswith("--") or word.unknowns for word in words[program + 1 :]) if program is not None else False
        )
        if options or words[0].text.startswith("--"):
            prefix = {
                w.text.partition("=")[0]: w.text.partition("=")[2] for w in words[:program] if _ASSIGNMENT.fullmatch(w.text)
            }
            before = {name: value for name, value in (local | prefix).items() if name.startswith(_TOLD)}
            self.launches.append((words, self._environment() | before))


def _command_text(fields: Sequence[str]) -> str | None:
    """The text that `bash -c TEXT` runs, however it is reached (srun, docker)."""
    for index, word in enumerate(fields[:-1]):
        if word in _SHELLS:
            options = [i for i, f in enumerate(fields[index + 1 :], index + 1) if f.startswith("-") and f.endswith("c")]
            if options and options[0] + 1 < len(fields):
                return fields[options[0] + 1]
    return None


def _matters(statement: Statement) -> bool:
    """Whether anything in a statement sets a variable or starts a program."""
    match statement:
        case Command():
            return any(
                w.kind == "array" or _ASSIGNMENT.fullmatch(w.text) or _PROGRAM.fullmatch(w.text) for w in statement.words
            )
        case AndOr():
            return any(_matters(part) for _, part in statement.parts)
        case If():
            bodies = [*(body for _, body in statement.branches), statement.otherwise]
            return any(_matters(s) for body in bodies for s in body)
        case Case():
            return any(_matters(s) for _, body in statement.choices for s in body)
        case Loop() | Function() | Group():
            return any(_matters(s) for s in statement.body)


def _places(text: str) -> dict[str, int]:
    """Option -> the last line that writes it, comments left out."""
    made = {}
    for number, line in enumerate(text.splitlines(), 1):
        for found in _OPTION.findall(line.partition("#")[0]):
            made[found] = number
    return made


def directives_of(text: str) -> list[Word]:
    """The words of the `#SBATCH` lines of a script."""
    made = []
    for found in _DIRECTIVE.finditer(text):
        line = text.count("\n", 0, found.start(1)) + 1
        made += [Word(text=part, line=line) for part in found[1].split("#")[0].split()]
    return made
