"""What the words of a bash script stand for, as far as that can be told without running anything.

    fields(raw)   the arguments a word becomes: quotes removed, variables filled in, unquoted values split at blanks
    joined(raw)   the same as one text, as on the right of `=`

Filled in are `$A`, `${A}`, `${A[@]}`, `${A[2]}`, `${A:-word}` and its relatives `- := = :+ + :? ?`, `${#A}`, `${A%pattern}` and
`${A#pattern}` with plain patterns, `$((...))`, and `$1` where it is defined. Everything else (`$(...)`, backticks, variables
that nothing sets) stays unknown: a mark in the text, with line and reason, that survives whatever is done with the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.errors import DamagedFileError, ShardwrightError
from shardwright.planner.readers.arithmetic import arithmetic
from shardwright.planner.readers.shell_tokens import MAX_NESTING

MAX_VALUE = 1_000_000
_MARK = re.compile("\ue000([0-9]+)\ue001")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL = re.compile(r"[0-9]|[@*#?$!-]")
_BRACED = re.compile(r"(#?)([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_OPERATION = re.compile(r"(:?[-=+?]|%%?|##?)(.*)", re.DOTALL)
_SEVERAL = re.compile(r"\$\{(@|[A-Za-z_][A-Za-z0-9_]*\[@\])")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A part of a word that nothing but running the script can tell.

    Attributes:
        text: as written, such as `$(nproc)` or `$DATA_PATH`.
        line: where it stands.
        why: what it is.
        name: the variable to define, if that would help.
    """

    text: str
    line: int
    why: str
    name: str = ""


class Values:
    """Variables as they are at some point of a script.

    Attributes:
        source: the script's name.
        variables: name -> text, or words of an array.
        unknowns: everything that could not be told, in the order met; marks in texts count into it.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self.variables: dict[str, str | list[str]] = dict(variables)
        self.unknowns: list[Unknown] = []

    def unknown(self, text: str, line: int, why: str, name: str = "") -> str:
        """The mark of a new unknown."""
        if len(self.unknowns) >= MAX_VALUE:
            raise self.too_long(line)
        shown = text if len(text) <= 60 else text[:57] + "..."
        self.unknowns.append(Unknown(text=shown, line=line, why=why, name=name))
        return f"\ue000{len(self.unknowns) - 1}\ue001"

    def unknowns_in(self, text: str) -> tuple[Unknown, ...]:
        """The unknowns a text holds."""
        return tuple(self.unknowns[int(found)] for found in _MARK.findall(text))

    def shown(self, text: str) -> str:
        """A text with its unknowns as they were written."""
        return _MARK.sub(lambda mark: self.unknowns[int(mark[1])].text, text)

    def known_part(self, text: str) -> str:
        """A text without its unknowns."""
        return _MARK.sub("", text)

    def fields(self, raw: str, line: int) -> list[str]:
        """The arguments a word becomes.

        Raises:
            DamagedFileError: values that grow without end.
        """
        return _Expansion(self, line, 0).fields(raw)

    def joined(self, raw: str, line: int, depth: int = 0) -> str:
        """A word as one text, without splitting."""
        return _Expansion(self, line, depth).joined(raw)

    def document(self, text: str, line: int) -> str:
        """A here-document with its variables filled in."""
        return _Expansion(self, line, 0).document(text)

    def value(self, name: str) -> list[str] | None:
        """The words of a variable, or None where nothing sets it."""
        found = self.variables.get(name)
        return found if found is None or isinstance(found, list) else [found]

    def too_long(self, line: int) -> DamagedFileError:
        """The refusal of a value that grows without end."""
        where = f"{self.source}:{line}"
        return DamagedFileError(f"{self.source}: a value grows beyond {MAX_VALUE:,} characters", where=where)


class _Expansion:
    """The expansion of one word."""

    def __init__(self, values: Values, line: int, depth: int) -> None:
        self.values, self.line, self.depth = values, line, depth
        self.made: list[str] = []
        self.current: str | None = None
        self.size = 0
        if depth > MAX_NESTING:
            raise values.too_long(line)

    def fields(self, raw: str) -> list[str]:
        self._walk(raw)
        if self.current is not None:
            self.made.append(self.current)
        return self.made

    def joined(self, raw: str) -> str:
        self._walk(raw, split=False)
        return " ".join([*self.made, self.current or ""]) if self.made else self.current or ""

    def document(self, text: str) -> str:
        at = 0
        while at < len(text):
            if text[at] == "\\" and text[at + 1 : at + 2] in {"$", "`", "\\"}:
                self._add(text[at + 1])
                at += 2
            elif text[at] in "$`":
                words, at, _ = self._expansion(text, at)
                self._add(" ".join(words))
            else:
                self._add(text[at])
                at += 1
        return self.current or ""

    def _walk(self, raw: str, *, split: bool = True) -> None:
        at = 0
        while at < len(raw):
            character = raw[at]
            if character == "\\":
                self._add("" if raw[at + 1 : at + 2] == "\n" else raw[at + 1 : at + 2])
                at += 2
            elif character == "'":
                end = _end(raw, at + 1, "'")
                self._add(raw[at + 1 : end])
                at = end + 1
            elif character == '"':
                at = self._quoted(raw, at + 1)
            elif raw.startswith("$'", at):
                end = _end(raw, at + 2, "'")
                self._add(re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), raw[at + 2 : end]))
                at = end + 1
            elif character in "$`":
                words, at, _ = self._expansion(raw, at)
                self._unquoted(words, split=split)
            else:
                self._add(character)
                at += 1

    def _quoted(self, raw: str, at: int) -> int:
        """The part between double quotes that begins at `at`; gives where it ends."""
        self._add("")
        while at < len(raw) and raw[at] != '"':
            if raw[at] == "\\" and raw[at + 1 : at + 2] in {'"', "\\", "$", "`", "\n"}:
                self._add("" if raw[at + 1] == "\n" else raw[at + 1])
                at += 2
            elif raw[at] in "$`":
                words, at, several = self._expansion(raw, at)
                if several:
                    self._several(words)
                else:
                    self._add(" ".join(words))
            else:
                self._add(raw[at])
                at += 1
        return at + 1

    def _several(self, words: list[str]) -> None:
        for number, word in enumerate(words):
            if number:
                self.made.append(self.current or "")
                self.current = None
            self._add(word)

    def _unquoted(self, words: list[str], *, split: bool) -> None:
        if not split:
            self._add(" ".join(words))
            return
        for number, word in enumerate(words):
            pieces = re.split(r"[ \t\n]+", word)
            for piece_number, piece in enumerate(pieces):
                if (number and piece_number == 0) or piece_number:
                    self._close()
                if piece:
                    self._add(piece)

    def _close(self) -> None:
        if self.current is not None:
            self.made.append(self.current)
        self.current = None

    def _add(self, text: str) -> None:
        self.size += len(text)
        if self.size > MAX_VALUE:
            raise self.values.too_long(self.line)
        self.current = (self.current or "") + text

    def _expansion(self, raw: str, at: int) -> tuple[list[str], int, bool]:
        """What begins at `$` or a backtick: (its words, where it ends, whether each is an argument even in quotes)."""
        if raw[at] == "`":
            end = _end(raw, at + 1, "`") + 1
            return [self._ran(raw[at:end])], end, False
        if raw.startswith("$((", at):
            end = _closing(raw, at + 1, "(", ")")
            return [self._arithmetic(raw[at:end])], end, False
        if raw.startswith("$(", at):
            end = _closing(raw, at + 1, "(", ")")
            return [self._ran(raw[at:end])], end, False
        if raw.startswith("${", at):
            end = _closing(raw, at + 1, "{", "}")
            return self._braced(raw[at:end]), end, _SEVERAL.match(raw, at) is not None
        found = _NAME.match(raw, at + 1) or _SPECIAL.match(raw, at + 1)
        if found is None:
            return ["$"], at + 1, False
        return self._named(found[0], raw[at : found.end()]), found.end(), found[0] == "@"

    def _ran(self, text: str) -> str:
        return self.values.unknown(text, self.line, "a command would have to be run")

    def _named(self, name: str, written: str) -> list[str]:
        found = self.values.value(name)
        if found is not None:
            return found if name in "@*" else found[:1]
        if name == "#":
            return [str(len(self.values.value("@") or []))]
        if name in "@*":
            return []
        why = "an argument of the script" if name.isdigit() else "nothing in the file sets it"
        if name in "?$!-":
            return [self.values.unknown(written, self.line, "only a running script has it")]
        return [self.values.unknown(written, self.line, why, name)]

    def _arithmetic(self, text: str) -> str:
        inner = self.values.joined(text[3:-2], self.line, self.depth + 1)
        if self.values.unknowns_in(inner):
            return self.values.unknown(self.values.shown(text), self.line, self.values.unknowns_in(inner)[0].why)
        try:
            return str(arithmetic(inner, self._number))
        except ShardwrightError as error:
            return self.values.unknown(text, self.line, error.message)

    def _number(self, name: str) -> str | None:
        found = self.values.value(name)
        return found[0] if found and not self.values.unknowns_in(found[0]) else None

    def _braced(self, text: str) -> list[str]:
        """The words of `${...}`."""
        found = _BRACED.fullmatch(text[2:-1])
        if found is None:
            return [self.values.unknown(text, self.line, "this expansion is not read")]
        length, name, index, rest = found.groups()
        words = self._indexed(name, index)
        if length:
            return self._length(text, words, index, rest)
        if not rest:
            return words if words is not None else self._named(name, text)
        operation = _OPERATION.fullmatch(rest)
        if operation is None:
            return [self.values.unknown(text, self.line, "this expansion is not read")]
        return self._operated(text, name, words, operation[1], operation[2])

    def _indexed(self, name: str, index: str | None) -> list[str] | None:
        words = self.values.value(name)
        if words is None or index in {"@", "*"} or (index is None and name in "@*"):
            return words
        number = self.values.joined(index or "0", self.line, self.depth + 1)
        if not re.fullmatch(r"-?[0-9]{1,6}", number):
            return None
        return words[int(number) :][:1]

    def _length(self, text: str, words: list[str] | None, index: str | None, rest: str) -> list[str]:
        if rest or words is None or any(map(self.values.unknowns_in, words)):
            return [self.values.unknown(text, self.line, "this length cannot be told")]
        return [str(len(words) if index in {"@", "*"} else len(words[0]) if words else 0)]

    def _operated(self, text: str, name: str, words: list[str] | None, operator: str, operand: str) -> list[str]:
        if operator[0] in "%#":
            return self._trimmed(text, words, operator, operand)
        empty = words is None or (operator[0] == ":" and not "".join(words))
        if operator[-1] == "+":
            return [] if empty else self._operand(operand)
        if not empty:
            return words or []
        if operator[-1] == "?":
            return [self.values.unknown(text, self.line, "nothing in the file sets it", name)]
        made = self._operand(operand)
        if operator[-1] == "=" and _NAME.fullmatch(name):
            self.values.variables[name] = " ".join(made)
        return made

    def _operand(self, raw: str) -> list[str]:
        return [self.values.joined(raw, self.line, self.depth + 1)]

    def _trimmed(self, text: str, words: list[str] | None, operator: str, operand: str) -> list[str]:
        pattern = self.values.joined(operand, self.line, self.depth + 1)
        if words is None or len(words) != 1 or self.values.unknowns_in(words[0] + pattern) or re.search(r"[\[\]?]", pattern):
            return [self.values.unknown(text, self.line, "this expansion is not read")]
        return [trimmed(words[0], pattern, operator)]


def trimmed(value: str, pattern: str, operator: str) -> str:
    """`${value%pattern}` and its relatives `%% # ##`, with `*` for any text."""
    ends = range(len(value) + 1)
    whole = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    if operator[0] == "%":
        starts = ends if operator == "%%" else reversed(ends)
        return next((value[:start] for start in starts if whole.fullmatch(value, start)), value)
    stops = reversed(ends) if operator == "##" else ends
    return next((value[stop:] for stop in stops if whole.fullmatch(value, 0, stop)), value)


def _end(raw: str, at: int, mark: str) -> int:
    found = raw.find(mark, at)
    return len(raw) if found < 0 else found


def _closing(raw: str, at: int, opening: str, closing: str) -> int:
    """Behind the bracket that closes the one at `at`; quotes inside are skipped."""
    depth, quote = 0, ""
    while at < len(raw):
        character = raw[at]
        if character == "\\":
            at += 1
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character == opening) - (character == closing)
            if depth == 0:
                return at + 1
        at += 1
    return len(raw)
