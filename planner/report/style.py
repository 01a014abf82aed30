"""How text is laid out for one stream: width, colour, alphabet.

    style_for(stream) -> Style,  to_text(parts, style) -> str

`to_text` lays rich's tables out into plain text first, so that a report is written in one piece or not at
all. Where the stream cannot encode a character, bars and signs fall back to ASCII.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

WIDTH = 80
MAX_WIDTH = 120
FOLDED = 12  # characters to which a word of a column that wraps may be folded
BARS = ""
"""Heading of a column of bars."""

_ASCII = str.maketrans(
    {
        "█": "#",
        "░": ".",
        "▶": ">",
        "─": "-",
        "·": "|",
        "×": "x",
        "µ": "u",
        "→": "->",
        "≥": ">=",
        "≤": "<=",
        "…": "...",
        "–": "-",
        "—": "-",
        "’": "'",
        "²": "2",
        "✓": "yes",
        "✗": "no",
    }
)

_CONTROL = "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
_STEERING = re.compile(_CONTROL)
_STEERING_BUT_COLOUR = re.compile(rf"(?!\x1b\[[0-9;]*m){_CONTROL}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What the reader's side can show.

    Attributes:
        width: columns.
        colour: whether escape sequences for colours may be written.
        encoding: the encoding of the stream.
    """

    width: int = WIDTH
    colour: bool = False
    encoding: str = "utf-8"


def style_for(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Style:
    """The style of a stream: 80 columns and no colour unless it is a terminal (`NO_COLOR`, `TERM=dumb` heeded)."""
    terminal = stream.isatty()
    width = min(max(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH), MAX_WIDTH) if terminal else WIDTH
    colour = terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return Style(width=width, colour=colour, encoding=stream.encoding or "ascii")


def to_text(parts: Iterable[RenderableType], style: Style) -> str:
    """The parts one below the other, laid out and encodable, no line wider than the style if it can be helped."""
    every = list(parts)
    plain = _laid_out(every, style, style.width)
    text = encodable(plain, style.encoding)
    excess = _width(text) - max(_width(plain), style.width)
    if excess <= 0 or style.colour:
        return text
    return encodable(_laid_out(every, style, style.width - excess), style.encoding)  # signs in ASCII take more room


def _width(text: str) -> int:
    return max(map(len, text.splitlines()), default=0)


def _laid_out(parts: Iterable[RenderableType], style: Style, width: int) -> str:
    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=style.colour,
        color_system="standard" if style.colour else None,
        no_color=not style.colour,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        console.width = max(width, _least_width(part, console))
        console.print(part, soft_wrap=False)
    text = visible(console.file.getvalue(), colour=style.colour)  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"


def _least_width(part: RenderableType, console: Console) -> int:
    """Characters a line of a table takes at least, with no figure cut; 0 for what wraps as a whole."""
    from rich.measure import Measurement
    from rich.table import Table

    if not isinstance(part, Table):
        return 0
    least = len(part.columns) - 1  # a blank between two
    for column in part.columns:
        sizes = [Measurement.get(console, console.options, cell) for cell in (column.header, *column.cells)]
        least += max(size.maximum if column.no_wrap else min(size.minimum, FOLDED) for size in sizes)
    return least


def visible(text: str, *, colour: bool = False) -> str:
    """The text with what would steer a terminal (control characters, turned writing directions) written out.

    Args:
        text: whose lines are kept.
        colour: keep the sequences that set colours.
    """
    return (_STEERING_BUT_COLOUR if colour else _STEERING).sub(lambda found: ascii(found[0])[1:-1], text)


def encodable(text: str, encoding: str) -> str:
    """The text in characters that the encoding has."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    except LookupError:
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return text


def table(*columns: str, left: Iterable[str] = (), wrap: Iterable[str] = ()) -> Table:
    """An unboxed table.

    Args:
        columns: headings; numbers are right-aligned.
        left: headings of columns of text.
        wrap: headings of columns of long text, which wraps where it must.
    """
    from rich.table import Table

    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    texts, long_texts = {*left, *wrap, BARS}, set(wrap)
    for name in columns:
        wraps = name in long_texts
        justify: Literal["left", "right"] = "left" if name in texts else "right"
        made.add_column(name, justify=justify, no_wrap=not wraps, overflow="fold" if wraps else "crop")
    return made


def heading(text: str) -> Any:
    """A section's heading, a blank line before it."""
    from rich.text import Text

    return Text("\n" + text, style="bold")


def paragraph(text: str, style: str = "", indent: int = 2) -> Any:
    """Text that wraps with every line indented."""
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, style=style), (0, 0, 0, indent))
