"""SVG elements as text, safely.

    element("rect", x="10%", data_value=3)  ->  <rect x="10%" data-value="3"/>

Horizontal positions are percentages and vertical ones pixels, so that pictures fill any width and letters keep their size.
Text of any kind is escaped, and characters that XML does not know are shown as U+FFFD.
"""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: object) -> str:
    """The text without characters that XML does not know."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", str(text))


def element(name: str, *children: object, **attributes: object) -> Markup:
    """One element.

    Args:
        name: of the element.
        children: markup as it is, anything else as text.
        attributes: `class_` is class, other underscores are hyphens; those that are None are left out.
    """
    given = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    opened = "".join(f' {key}="{escape(clean(value))}"' for key, value in given)
    inside = "".join(child if isinstance(child, Markup) else escape(clean(child)) for child in children)
    return Markup(f"<{name}{opened}>{inside}</{name}>")


def many(parts: Any) -> Markup:
    """Elements one after another."""
    return Markup("").join(parts)


def percent(share: float) -> str:
    """A share of the width."""
    return f"{100 * share:.4f}".rstrip("0").rstrip(".") + "%"


def pixels(value: float) -> str:
    """A length in pixels."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text(words: object, x: str, y: float, class_: str = "t", **more: object) -> Markup:
    """Letters at a place."""
    return element("text", words, x=x, y=pixels(y), class_=class_, **more)


def line(x1: str, y1: float, x2: str, y2: float, class_: str, **more: object) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=pixels(y1), x2=x2, y2=pixels(y2), class_=class_, **more)


def rect(x: str, y: float, width: str, height: float, class_: str, *children: object, **more: object) -> Markup:
    """A rectangle; children are its title."""
    place = {"x": x, "y": pixels(y), "width": width, "height": pixels(height)}
    return element("rect", *children, **place, class_=class_, **more)
