"""The pictures as files of their own: SVG always, PNG where the extra `figures` (resvg) is installed.

A file is light, on white, and needs nothing beside it; colours and letters are those of the page.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from shardwright.planner.report.html import colours, svg
from shardwright.planner.report.html.page import hatch
from shardwright.planner.report.html.picture import Legend, Picture

PAD, TITLE, KEYS = 20.0, 30.0, 22.0
KEY_WIDTH = 7.4
"""Pixels a letter of the key takes, on average."""

PNG_SCALE = 2
NO_PNG = "PNG files need resvg (pip install resvg-py); SVG files were written"


def svg_file(picture: Picture) -> str:
    """The picture as an SVG document."""
    keys, high = _keys(picture.legend, picture.width)
    top = PAD + TITLE + high
    width, height = picture.width + 2 * PAD, top + picture.height + PAD
    body = svg.element(
        "svg",
        picture.body,
        x=svg.pixels(PAD),
        y=svg.pixels(top),
        width=svg.pixels(picture.width),
        height=svg.pixels(picture.height),
        overflow="visible",
    )
    title = svg.text(picture.title, svg.pixels(PAD), PAD + 14, "t strong", font_size="16")
    parts = [
        svg.element("title", f"{picture.title}. {picture.caption}"),
        svg.element("style", Markup(colours.rules(dark=False))),
        svg.element("defs", hatch(dark=False)),
        svg.rect("0", 0, "100%", height, "paper", fill="#ffffff"),
        title,
        keys,
        body,
    ]
    whole = svg.element("svg", *parts, xmlns="http://www.w3.org/2000/svg", width=f"{width:.0f}", height=f"{height:.0f}")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{whole}\n'


def _keys(legend: Sequence[Legend], width: float) -> tuple[Markup, float]:
    """The key in as many lines as it takes, and its height."""
    made, x, y = [], 0.0, 0.0
    for key in legend:
        wide = 34 + KEY_WIDTH * len(key.label)
        if x and x + wide > width:
            x, y = 0.0, y + KEYS
        made.append(svg.rect(svg.pixels(PAD + x), PAD + TITLE + y, "12", 12, key.class_, rx=2))
        made.append(svg.text(key.label, svg.pixels(PAD + x + 18), PAD + TITLE + y + 11))
        x += wide
    return svg.many(made), y + KEYS if legend else 0.0


def figure_files(pictures: Sequence[Picture]) -> Mapping[str, bytes]:
    """File names and contents."""
    made = {f"{picture.id}.svg": svg_file(picture).encode() for picture in pictures}
    renderer = _renderer()
    if renderer is None:
        return made
    return made | {name.replace(".svg", ".png"): _png(renderer, text.decode()) for name, text in made.items()}


def can_draw_png() -> bool:
    """Whether the extra is installed."""
    return _renderer() is not None


def _renderer() -> Any | None:
    try:
        return importlib.import_module("resvg_py")
    except ImportError:
        return None


def png_bytes(text: str) -> bytes:
    """An SVG document as PNG; only where `can_draw_png`."""
    return _png(_renderer(), text)


def _png(renderer: Any, text: str) -> bytes:
    return bytes(renderer.svg_to_bytes(svg_string=text, zoom=PNG_SCALE))
