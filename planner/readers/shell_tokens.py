"""The words and operators of a bash script, nothing of it run.

    tokens(text)    "export A=1 # so" -> word export, word A=1, end of line

A word is kept as it is written, quotes and `$` included, and is expanded later (`shell_expansion`). `NAME=( ... )` is one
token with the words between the parentheses. Bodies of here-documents hang on the operator that names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from shardwright.errors import DamagedFileError

MAX_NESTING = 40
OPERATORS = (
    "<<<",
    "<<-",
    "&>>",
    ";;&",
    "&&",
    "||",
    ";;",
    ";&",
    "<<",
    ">>",
    "&>",
    ">&",
    "<&",
    ">|",
    "|&",
    ";",
    "|",
    "&",
    "(",
    ")",
    "<",
    ">",
)
REDIRECTIONS = frozenset(("<<<", "<<-", "&>>", "<<", ">>", "&>", ">&", "<&", ">|", "<", ">"))
_CLOSING = {"(": ")", "{": "}"}
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_WORD_ENDS = frozenset(" \t\n;|&()<>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A piece of a script.

    Attributes:
        kind: word, array, operator, end (of a line), or of a here-document, behind the end of its line, body (in which
            variables are filled in) or verbatim (whose mark was quoted).
        text: as written; of an array `NAME=` or `NAME+=`; of an arithmetic command the whole `((...))`.
        line: where it begins, from 1.
        items: of an array its words.
    """

    kind: str
    text: str
    line: int
    items: tuple[Token, ...] = field(default=())


def tokens(text: str, source: str, first_line: int = 1) -> tuple[Token, ...]:
    """The tokens of a script.

    Args:
        text: the script.
        source: its name, for errors.
        first_line: line of its first character.

    Raises:
        DamagedFileError: a quote or bracket that is not closed, or nesting without end.
    """
    return tuple(_Scanner(text.replace("\r\n", "\n"), source, first_line).all())


class _Scanner:
    """One walk over a script."""

    def __init__(self, text: str, source: str, line: int) -> None:
        self.text, self.source, self.line, self.at = text, source, line, 0
        self.awaited: list[tuple[str, bool, bool]] = []

    def all(self) -> Iterator[Token]:
        """The tokens up to the end; a here-document's body follows its line as a word of kind `body`."""
        while self.at < len(self.text):
            token = self._next()
            if token is not None:
                yield token
                if token.kind == "end" and self.awaited:
                    yield from self._here_documents()
        yield Token(kind="end", text="\n", line=self.line)

    def _next(self) -> Token | None:
        character = self.text[self.at]
        if character == "\n":
            self._advance(1)
            return Token(kind="end", text="\n", line=self.line - 1)
        if character in " \t" or self.text.startswith("\\\n", self.at):
            self._advance(1 if character in " \t" else 2)
            return None
        if character == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
            return None
        if self.text.startswith("((", self.at):
            return self._arithmetic_command()
        if self.text[self.at : self.at + 2] in {"<(", ">("}:
            return self._process()
        return self._operator() or self._word()

    def _process(self) -> Token:
        """`<(command)`, which stands for a file."""
        start, line = self.at, self.line
        self._advance(2)
        self._skip_nested(")", 1)
        return Token(kind="word", text=self.text[start : self.at], line=line)

    def _operator(self) -> Token | None:
        found = next((o for o in OPERATORS if self.text.startswith(o, self.at)), None)
        if found is None:
            return None
        token = Token(kind="operator", text=found, line=self.line)
        self._advance(len(found))
        if found in {"<<", "<<-"}:
            self._await(strip=found == "<<-")
        return token

    def _await(self, *, strip: bool) -> None:
        found = re.compile(r"[ \t]*([\"']?)([A-Za-z0-9_.-]+)\1").match(self.text, self.at)
        if found:
            self.awaited.append((found[2], strip, bool(found[1])))

    def _here_documents(self) -> Iterator[Token]:
        for mark, strip, quoted in self.awaited:
            start, lines = self.line, []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                line = self.text[self.at : len(self.text) if end < 0 else end]
                self._advance(len(line) + (end >= 0))
                if (line.lstrip("\t") if strip else line).rstrip() == mark:
                    break
                lines.append(line)
            yield Token(kind="verbatim" if quoted else "body", text="\n".join(lines), line=start)
        self.awaited = []

    def _arithmetic_command(self) -> Token:
        start, line = self.at, self.line
        self._advance(2)
        self._skip_nested(")", 1)
        if not self.text.startswith(")", self.at):
            raise self._unclosed("((", line)
        self._advance(1)
        return Token(kind="word", text=self.text[start : self.at], line=line)

    def _word(self) -> Token:
        start, line = self.at, self.line
        while self.at < len(self.text) and self.text[self.at] not in _WORD_ENDS:
            self._step(1)
            if self.text[self.at : self.at + 1] == "(" and _ARRAY.fullmatch(self.text, start, self.at):
                return self._array(self.text[start : self.at], line)
        return Token(kind="word", text=self.text[start : self.at], line=line)

    def _array(self, name: str, line: int) -> Token:
        self._advance(1)
        items = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            token = self._next()
            if token is not None and token.kind == "word":
                items.append(token)
        if self.at >= len(self.text):
            raise self._unclosed(f"{name}(", line)
        self._advance(1)
        return Token(kind="array", text=name, line=line, items=tuple(items))

    def _step(self, depth: int) -> None:
        """Past one character of a word, or one quoted or bracketed part."""
        if depth > MAX_NESTING:
            message = f"{self.source} nests quotes and brackets more than {MAX_NESTING} deep"
            raise DamagedFileError(message, where=f"{self.source}:{self.line}")
        character = self.text[self.at]
        if character == "\\":
            self._advance(2)
        elif character == "'":
            self._skip_to("'")
        elif character == '"':
            self._skip_double(depth)
        elif character == "`":
            self._skip_to("`")
        elif character == "$" and self.text[self.at + 1 : self.at + 2] in _CLOSING:
            opening = self.text[self.at + 1]
            self._advance(2)
            self._skip_nested(_CLOSING[opening], depth + 1)
        else:
            self._advance(1)

    def _skip_to(self, mark: str) -> None:
        line, end = self.line, self.at + 1
        while end < len(self.text) and self.text[end] != mark:
            end += 2 if mark == "`" and self.text[end] == "\\" else 1
        if end >= len(self.text):
            raise self._unclosed(mark, line)
        self._advance(end + 1 - self.at)

    def _skip_double(self, depth: int) -> None:
        line = self.line
        self._advance(1)
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text[self.at] == "'":
                self._advance(1)
            else:
                self._step(depth + 1)
        if self.at >= len(self.text):
            raise self._unclosed('"', line)
        self._advance(1)

    def _skip_nested(self, closing: str, depth: int) -> None:
        """Past the closing bracket of what was just opened."""
        line, opening = self.line, {v: k for k, v in _CLOSING.items()}[closing]
        open_brackets = 1
        while self.at < len(self.text):
            character = self.text[self.at]
            open_brackets += (character == opening) - (character == closing)
            if open_brackets == 0:
                self._advance(1)
                return
            self._step(depth + 1)
        raise self._unclosed(opening, line)

    def _advance(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at = min(self.at + count, len(self.text))

    def _unclosed(self, mark: str, line: int) -> DamagedFileError:
        hint = "close it; is the file whole?"
        return DamagedFileError(f"{self.source}: {mark} is not closed", where=f"{self.source}:{line}", hint=hint)
