"""What a picture is: markup, its size, the numbers it draws, and the same numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from shardwright.planner.report.html.svg import element

EMPTY = Markup("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    """One key of a picture.

    Attributes:
        class_: the CSS class that colours it.
        label: what it stands for.
    """

    class_: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The numbers of a picture for those who read rather than look.

    Attributes:
        columns: headings.
        rows: cells as people read them.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture.

    Attributes:
        id: name in the page and of its file.
        title: heading.
        caption: what it shows and how to read it.
        data: the numbers it draws, as JSON values.
        body: SVG inside its root element; empty where the page draws it from `data`.
        height: of the drawing, pixels.
        width: of the drawing as a file, pixels.
        legend: keys.
        table: the numbers again.
        note: what is missing, or what to mind.
    """

    id: str
    title: str
    caption: str
    data: Any
    body: Markup = EMPTY
    height: float = 0
    width: float = 960
    legend: Sequence[Legend] = ()
    table: Table = field(default_factory=lambda: Table(columns=(), rows=()))
    note: str = ""

    @property
    def svg(self) -> Markup:
        """The drawing, as wide as where it stands."""
        label = f"{self.title}. {self.caption}"
        return element("svg", self.body, width="100%", height=f"{self.height:.0f}", role="img", aria_label=label)
