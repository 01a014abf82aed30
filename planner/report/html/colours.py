"""The colours of all pictures, light and dark, as CSS.

Hues are told apart by people who do not tell red from green: those of stages after Paul Tol, "Colour Schemes"
(SRON/EPS/TN/09-002, 2021, schemes muted and light), the others from blue and orange with different lightness. No meaning
hangs on colour alone: all is labelled, and the numbers stand below each picture.

    theme(dark)       custom properties          `rules()`    classes of pictures that use them
"""

from __future__ import annotations

from shardwright.planner.report.html.topology import COLOURS

PAPER = {
    "bg": ("#f6f7f9", "#0f1318"),
    "surface": ("#ffffff", "#171c23"),
    "raised": ("#eef1f5", "#1f262f"),
    "text": ("#17202b", "#e5eaf0"),
    "muted": ("#556070", "#a1adbb"),
    "border": ("#d9dfe7", "#2d3641"),
    "accent": ("#1c5fb0", "#7db4f5"),
    "track": ("#e9edf2", "#252d37"),
    "grid": ("#e3e8ee", "#29323c"),
    "axis": ("#9aa5b2", "#55616e"),
    "limit": ("#b3261e", "#ff8a80"),
    "hatch": ("#c3cad3", "#46515d"),
}
"""Name to (light, dark)."""

FILLS = {
    "p-compute": ("#2f6db5", "#5b9be0"),
    "p-recompute": ("#8fb9e3", "#2f5f94"),
    "p-exposed_tp": ("#d9772b", "#e8924c"),
    "p-exposed_cp": ("#b8981f", "#d6b945"),
    "p-exposed_ep": ("#a3478c", "#c874b2"),
    "p-exposed_pp": ("#7058ab", "#9c88d4"),
    "p-exposed_dp": ("#b93a32", "#e06a61"),
    "p-bubble": ("#aab3bf", "#66727f"),
    "p-optimizer": ("#2b8a7e", "#4fb8aa"),
    "p-other": ("#7b8694", "#8b97a5"),
    "p-step": ("#3a4553", "#c5cfdb"),
    "m-parameters": ("#2f6db5", "#5b9be0"),
    "m-gradients": ("#8fb9e3", "#2f5f94"),
    "m-optimizer": ("#2b8a7e", "#4fb8aa"),
    "m-activations": ("#d9772b", "#e8924c"),
    "m-logits": ("#e9bd82", "#a8642f"),
    "m-buffers": ("#7058ab", "#9c88d4"),
    "m-reserve": ("#aab3bf", "#66727f"),
    "f-forward": ("#8fc0ee", "#a9d1f7"),
    "f-backward": ("#2f68b0", "#4a83cc"),
    "f-weight-gradient": ("#a9c98a", "#b5d8a0"),
    "f-fold": ("#5f93cf", "#6f9fdb"),
    "q-rejected": ("#aab3bf", "#66727f"),
    "q-pruned": ("#7058ab", "#9c88d4"),
    "q-large": ("#d9772b", "#e8924c"),
    "q-fits": ("#2b8a7e", "#4fb8aa"),
    "d-shown": ("#b93a32", "#ff8a80"),
    "d-front": ("#1c5fb0", "#7db4f5"),
    "d-beaten": ("#c3cad3", "#46515d"),
    "c-0": ("#1c5fb0", "#7db4f5"),
    "c-1": ("#d9772b", "#e8924c"),
    "c-2": ("#2b8a7e", "#4fb8aa"),
    "c-3": ("#7058ab", "#9c88d4"),
    "c-4": ("#b93a32", "#e06a61"),
    "c-5": ("#7b8694", "#8b97a5"),
    "l-none": ("#e9edf2", "#252d37"),
    "l-0": ("#9db4d0", "#4c6a8c"),
    "l-1": ("#5f93cf", "#5b9be0"),
    "l-2": ("#e0a84a", "#e3b45f"),
    "l-3": ("#d9772b", "#e8924c"),
    "l-4": ("#b3261e", "#ff8a80"),
    "s-none": ("#e9edf2", "#252d37"),
}
"""Class of a filled shape to its colour (light, dark)."""

STAGES = (
    "#88ccee", "#cc6677", "#ddcc77", "#117733", "#bb7ab8", "#44aa99",
    "#332288", "#ee8866", "#999933", "#77aadd", "#882255", "#bbcc33",
)  # fmt: skip
"""Colours of stages, the same in light and dark."""


def theme(dark: bool) -> str:
    """Custom properties of a theme, `--name: colour;` each."""
    named = {**PAPER, **FILLS}
    made = [f"--{name}:{pair[dark]};" for name, pair in named.items()]
    return "".join(made)


def rules(dark: bool | None = None) -> str:
    """Rules of the classes of pictures.

    Args:
        dark: colours written out, of one theme; by custom properties where None.
    """

    def colour(name: str) -> str:
        return f"var(--{name})" if dark is None else {**PAPER, **FILLS}[name][dark]

    made = [f".{name}{{fill:{colour(name)}}}" for name in FILLS]
    for index in range(COLOURS):
        fill = STAGES[index]
        made.append(f".s-{index}{{fill:{fill}}}.on-s-{index}{{fill:{ink(fill)}}}")
    made.append(f".on-s-none{{fill:{colour('muted')}}}")
    made += [
        f".t{{fill:{colour('text')};font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}",
        f".small{{font-size:11px;fill:{colour('muted')}}}.strong{{font-weight:600}}.cell{{font:600 10px system-ui,sans-serif}}",
        ".num{font-variant-numeric:tabular-nums}",
        f".track{{fill:{colour('track')}}}.grid{{stroke:{colour('grid')}}}.axis{{stroke:{colour('axis')}}}",
        f".limit{{stroke:{colour('limit')};stroke-width:2}}",
        f".card{{fill:{colour('surface')};stroke:{colour('border')}}}.f-idle{{fill:url(#hatch)}}",
        f".front{{stroke:{colour('d-front')};stroke-width:1.5}}.curve{{stroke-width:2}}",
        f".ideal{{stroke:{colour('axis')};stroke-dasharray:5 4}}",
    ]
    made += [f"line.c-{index}{{stroke:{colour(f'c-{index}')}}}" for index in range(6)]
    return "".join(made)


def ink(fill: str) -> str:
    """Black or white, whichever is easier to read on a colour."""
    return max(("#000000", "#ffffff"), key=lambda letters: contrast(letters, fill))


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2.2)."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    red, green, blue = (_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
