"""The page: sections of pictures and tables, laid out by a template, safe to open whatever the names in the result are.

Everything that comes from a result is escaped by the template; numbers are embedded as JSON in a block that no browser runs,
with `<`, `>` and `&` as JSON escapes. The page allows itself one style sheet and one script, by their digests, and no
connection (Content Security Policy Level 3, https://www.w3.org/TR/CSP3/).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from markupsafe import Markup

from shardwright.documents import rounded
from shardwright.planner.report.html import colours
from shardwright.planner.report.html.picture import Picture
from shardwright.planner.report.html.svg import clean, element

LIMIT_BYTES = 3_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table of the page.

    Attributes:
        name: heading.
        number: whether it is aligned to the right.
        hint: what the heading means.
    """

    name: str
    number: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell.

    Attributes:
        text: as it is read.
        exact: the number it stands for, what sorting goes by; None for words.
        number: whether it is aligned to the right.
    """

    text: str
    exact: str | None = None
    number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row; `marked` where it is the one the page shows."""

    cells: Sequence[Cell]
    marked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table of the page; `folded` where it is opened on demand."""

    id: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Line]
    title: str = ""
    sortable: bool = False
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One of the numbers at the top."""

    key: str
    name: str
    value: str
    exact: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page.

    Attributes:
        width: CSS classes: `wide` takes the whole width, `long` may be broken between printed pages.
        cards: drawings that the page arranges by its width, instead of the picture's own.
    """

    id: str
    title: str
    caption: str = ""
    picture: Picture | None = None
    cards: Sequence[dict[str, Any]] = ()
    tables: Sequence[Grid] = ()
    note: str = ""
    width: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that the template shows."""

    title: str
    subtitle: str
    source: str
    sections: Sequence[Section]
    figures: Sequence[Figure] = ()
    figures_label: str = ""
    notices: Sequence[str] = ()


def numbers(picture: Picture) -> Grid:
    """The numbers of a picture as a folded table."""
    columns = [Column(name=name, number=at > 0) for at, name in enumerate(picture.table.columns)]
    rows = [Line(cells=[Cell(text=text, number=at > 0) for at, text in enumerate(row)]) for row in picture.table.rows]
    name = f"numbers-{picture.id}"
    return Grid(id=name, caption=picture.title, columns=columns, rows=rows, title="The numbers", folded=True)


def pictured(picture: Picture, **more: Any) -> Section:
    """A section with a picture and its numbers."""
    tables = [numbers(picture), *more.pop("tables", [])]
    return Section(id=picture.id, title=picture.title, caption=picture.caption, picture=picture, tables=tables, **more)


def rendered(page: Page, data: dict[str, Any]) -> str:
    """The whole file.

    Args:
        page: what it shows.
        data: the numbers it embeds: the result, and those of each picture.
    """
    import shardwright

    style, script = _style(), _template_text("report.js")
    text = (
        _environment()
        .get_template("report.html")
        .render(
            page=page,
            policy=_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            hatch=hatch(),
            data=Markup(embedded(data)),
            version=shardwright.__version__,
        )
    )
    return clean(text)


def embedded(data: Any) -> str:
    """JSON that can stand inside a script element."""
    plain = json.dumps(rounded(data), separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def hatch(dark: bool | None = None) -> Markup:
    """The pattern of where stages wait; colours as in `colours.rules`."""
    back, stroke = (f"var(--{n})" if dark is None else colours.PAPER[n][dark] for n in ("track", "hatch"))
    ground = element("rect", width="6", height="6", fill=back)
    stripe = element("path", d="M0 0v6", stroke=stroke, stroke_width="2")
    place = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    return element("pattern", ground, stripe, id="hatch", width="6", height="6", **place)


@lru_cache(maxsize=1)
def _style() -> str:
    text = (
        _template_text("report.css").replace("@light@", colours.theme(dark=False)).replace("@dark@", colours.theme(dark=True))
    )
    return text.replace("@pictures@", colours.rules())


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _template_text(name: str) -> str:
    return resources.files("shardwright.planner.report.html").joinpath("templates", name).read_text(encoding="utf-8")


def _environment() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_template_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
