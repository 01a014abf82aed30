"""Tokens of a bash script as statements: commands, and what decides which of them run.

    statements(tokens)   if / case / for / while / functions / { } / and-or lists, commands as words

Only structure is read here; `shell_walk` decides what holds. What no configuration needs (redirections, `&`) is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.errors import DamagedFileError
from shardwright.planner.readers.shell_tokens import MAX_NESTING, REDIRECTIONS, Token

BETWEEN = frozenset(("end", "body", "verbatim"))
"""Kinds of tokens that stand between commands."""

_ENDS = frozenset((";", "&", "|", "|&", "&&", "||", ";;", ";&", ";;&", ")"))
_CONNECTORS = frozenset(("&&", "||"))
_CLOSERS = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A simple command: its words and array assignments, and the here-documents it reads."""

    words: tuple[Token, ...]
    line: int
    bodies: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AndOr:
    """Statements joined by `&&` and `||`; the first has no connector."""

    parts: tuple[tuple[str, Statement], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class If:
    """Conditions with their bodies, and what holds otherwise."""

    branches: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`for NAME in words`; without a name a while or until loop."""

    name: str
    words: tuple[Token, ...]
    body: tuple[Statement, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A word and the bodies its patterns choose."""

    word: Token
    choices: tuple[tuple[tuple[Token, ...], tuple[Statement, ...]], ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function and its body."""

    name: str
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Statements between braces or parentheses."""

    body: tuple[Statement, ...]


Statement = Command | AndOr | If | Loop | Case | Function | Group


def statements(found: Sequence[Token], source: str) -> tuple[Statement, ...]:
    """The statements of a script.

    Raises:
        DamagedFileError: an `if`, loop or `case` that is not closed, or closed twice.
    """
    parser = _Parser(found, source)
    made = list(parser.listed(frozenset(), 0))
    while parser.at < len(parser.found):
        if parser.found[parser.at].text != ")":  # a lone one is left of a placeholder that was never filled in
            raise parser.fault(f"{parser.found[parser.at].text} closes nothing")
        parser.at += 1
        made += parser.listed(frozenset(), 0)
    return tuple(made)


class _Parser:
    def __init__(self, found: Sequence[Token], source: str) -> None:
        self.found, self.source, self.at = found, source, 0

    def listed(self, closers: frozenset[str], depth: int) -> tuple[Statement, ...]:
        """Statements up to one of the closing words, which stays."""
        if depth > MAX_NESTING:
            raise self.fault(f"statements nest more than {MAX_NESTING} deep")
        made: list[Statement] = []
        while self.at < len(self.found):
            token = self.found[self.at]
            if token.text in closers and token.kind in {"word", "operator"}:
                return tuple(made)
            if token.kind in BETWEEN or (token.kind == "operator" and token.text in {";", "&", "|", "|&"}):
                self.at += 1
            elif token.text in _CLOSERS or token.text in {")", ";;"}:
                break
            else:
                made.append(self._and_or(depth))
        if closers:
            raise self.fault(f"{' or '.join(sorted(closers))} is missing at the end")
        return tuple(made)

    def fault(self, message: str) -> DamagedFileError:
        line = self.found[min(self.at, len(self.found) - 1)].line
        return DamagedFileError(f"{self.source}: {message}", where=f"{self.source}:{line}", hint="is the file whole?")

    def _and_or(self, depth: int) -> Statement:
        parts = [("", self._one(depth))]
        while self.at < len(self.found) and self.found[self.at].text in _CONNECTORS:
            connector = self.found[self.at].text
            self.at += 1
            while self._kind() == "end" and self.at < len(self.found) - 1:
                self.at += 1
            parts.append((connector, self._one(depth)))
        return parts[0][1] if len(parts) == 1 else AndOr(parts=tuple(parts))

    def _one(self, depth: int) -> Statement:
        token = self.found[self.at]
        compound = {"if": self._if, "for": self._for, "while": self._while, "until": self._while, "case": self._case}
        if token.kind == "word" and token.text in compound:
            self.at += 1
            return compound[token.text](token.line, depth + 1)
        if token.text in {"{", "("}:
            self.at += 1
            body = self.listed(frozenset(("}" if token.text == "{" else ")",)), depth + 1)
            self.at += 1
            return Group(body=body)
        if token.text == "function" or self._texts(1, 2) == ["(", ")"]:
            return self._function(depth)
        return self._command()

    def _function(self, depth: int) -> Statement:
        self.at += self.found[self.at].text == "function"
        name = self.found[self.at].text
        self.at += 1
        while self.at < len(self.found) and (self.found[self.at].text in {"(", ")"} or self._kind() == "end"):
            self.at += 1
        if self.at >= len(self.found):
            raise self.fault(f"the function {name} has no body")
        body = self._one(depth + 1)
        return Function(name=name, body=body.body if isinstance(body, Group) else (body,))

    def _if(self, line: int, depth: int) -> Statement:
        branches: list[tuple[tuple[Statement, ...], tuple[Statement, ...]]] = []
        otherwise: tuple[Statement, ...] = ()
        while True:
            condition = self._until("then", depth)
            body = self.listed(frozenset(("elif", "else", "fi")), depth)
            branches.append((condition, body))
            word = self.found[self.at].text
            self.at += 1
            if word == "else":
                otherwise = self._until("fi", depth)
            if word != "elif":
                return If(branches=tuple(branches), otherwise=otherwise, line=line)

    def _until(self, word: str, depth: int) -> tuple[Statement, ...]:
        made = self.listed(frozenset((word,)), depth)
        self.at += 1
        return made

    def _for(self, line: int, depth: int) -> Statement:
        name = self.found[self.at].text
        self.at += 1
        words = []
        while self.at < len(self.found) and self.found[self.at].text != "do":
            if self._kind() == "word" and self.found[self.at].text != "in":
                words.append(self.found[self.at])
            self.at += 1
        self.at += 1
        return Loop(name=name, words=tuple(words), body=self._until("done", depth), line=line)

    def _while(self, line: int, depth: int) -> Statement:
        self._until("do", depth)
        return Loop(name="", words=(), body=self._until("done", depth), line=line)

    def _case(self, line: int, depth: int) -> Statement:
        word = self.found[self.at]
        self.at += 1
        while self.at < len(self.found) and (self._kind() == "end" or self.found[self.at].text == "in"):
            self.at += 1
        choices = []
        while self.at < len(self.found) and self.found[self.at].text != "esac":
            if self._kind() == "end":
                self.at += 1
                continue
            patterns = []
            while self.at < len(self.found) and self.found[self.at].text != ")":
                patterns += [self.found[self.at]] if self._kind() == "word" else []
                self.at += 1
            self.at += 1
            choices.append((tuple(patterns), self.listed(frozenset((";;", ";&", ";;&", "esac")), depth)))
            self.at += self.at < len(self.found) and self.found[self.at].text != "esac"
        if self.at >= len(self.found):
            raise self.fault("esac is missing at the end")
        self.at += 1
        return Case(word=word, choices=tuple(choices), line=line)

    def _command(self) -> Statement:
        words: list[Token] = []
        line, test = self.found[self.at].line, self.found[self.at].text == "[["
        while self.at < len(self.found) and self._kind() not in BETWEEN:
            token = self.found[self.at]
            if test and token.kind == "operator":
                words.append(Token(kind="word", text=token.text, line=token.line))
            elif token.kind == "operator" and token.text in _ENDS:
                break
            elif token.kind == "operator" and token.text in REDIRECTIONS:
                self._redirection(words)
            elif token.kind != "operator":
                words.append(token)
            self.at += 1
            if test and token.text == "]]":
                break
        if not words:
            self.at += 1
        return Command(words=tuple(words), line=line, bodies=self._bodies())

    def _redirection(self, words: list[Token]) -> None:
        """Drops the target of a redirection, and the number of the stream before it."""
        if words and words[-1].text in {"0", "1", "2"}:
            words.pop()
        if self._texts(1, 1) and self.found[self.at + 1].kind == "word":
            self.at += 1

    def _bodies(self) -> tuple[Token, ...]:
        """The here-documents that follow this command's line."""
        at = self.at
        while at < len(self.found) and self.found[at].kind != "end":
            at += 1
        bodies = []
        while at + 1 < len(self.found) and self.found[at + 1].kind in BETWEEN - {"end"}:
            bodies.append(self.found[at + 1])
            at += 1
        return tuple(bodies)

    def _kind(self) -> str:
        return self.found[self.at].kind

    def _texts(self, start: int, count: int) -> list[str]:
        return [token.text for token in self.found[self.at + start : self.at + start + count]]
