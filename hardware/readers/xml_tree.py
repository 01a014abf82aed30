"""XML as plain elements with their lines, without anything that can reach out or blow up.

A document type declaration, an entity, an external reference, too many elements or attributes, or nesting beyond
`MAX_DEPTH` is refused with its line; the parser never opens a file. Uses expat's own callbacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from shardwright.errors import DamagedFileError
from shardwright.hardware.readers.base import damaged

MAX_ELEMENTS = 200_000
MAX_DEPTH = 64
MAX_ATTRIBUTES = 64


@dataclass(slots=True, kw_only=True, eq=False)
class Element:
    """An element with what it holds.

    Attributes:
        tag: its name.
        attributes: by name.
        line: where it starts, from 1.
        children: in order.
        parent: the element around it.
    """

    tag: str
    attributes: Mapping[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    parent: Element | None = field(default=None, repr=False)

    def walk(self) -> Iterator[Element]:
        """The element and all below it, in document order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def ancestors(self) -> Iterator[Element]:
        """The elements around it, innermost first."""
        current = self.parent
        while current is not None:
            yield current
            current = current.parent


def parse_xml(text: str, source: str) -> Element:
    """The outermost element of an XML text.

    Raises:
        DamagedFileError: not well-formed, a declaration or entity, or beyond the limits.
    """
    builder = _Builder(source)
    try:
        builder.parser.Parse(text.encode("utf-8"), True)
    except expat.ExpatError as error:
        reason = f"{source} is not well-formed XML: {expat.ErrorString(error.code)}"
        raise damaged(source, error.lineno, reason, "was the file written to its end?") from error
    if builder.root is None:
        raise DamagedFileError(f"{source} holds no element", where=source)
    return builder.root


class _Builder:
    def __init__(self, source: str) -> None:
        self.source = source
        self.root: Element | None = None
        self.open: list[Element] = []
        self.count = 0
        self.parser = expat.ParserCreate(encoding="utf-8")
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.EntityDeclHandler = self._refuse_entity
        self.parser.ExternalEntityRefHandler = self._refuse_reference

    def _refuse(self, reason: str) -> NoReturn:
        raise damaged(self.source, self.parser.CurrentLineNumber, reason, "topology files need none; remove it")

    def _refuse_doctype(self, *_: object) -> None:
        self._refuse("the file declares a document type")

    def _refuse_entity(self, *_: object) -> None:
        self._refuse("the file declares an entity")

    def _refuse_reference(self, *_: object) -> int:
        self._refuse("the file refers to an external entity")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS:
            self._refuse(f"the file has more than {MAX_ELEMENTS:,} elements")
        if len(self.open) >= MAX_DEPTH:
            self._refuse(f"the file is nested more than {MAX_DEPTH} levels deep")
        if len(attributes) > MAX_ATTRIBUTES:
            self._refuse(f"an element has more than {MAX_ATTRIBUTES} attributes")
        parent = self.open[-1] if self.open else None
        element = Element(tag=tag, attributes=attributes, line=self.parser.CurrentLineNumber, parent=parent)
        if parent is None:
            self.root = self.root or element
        else:
            parent.children.append(element)
        self.open.append(element)

    def _end(self, _: str) -> None:
        self.open.pop()
