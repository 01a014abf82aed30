"""The measured parts of docs/accuracy.md, from its record: `page(text, record)`.

A part is what stands between `<!-- measured: NAME -->` and `<!-- end -->`; `PARTS` makes each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from interval_widths import PLACE as WIDTHS

from shardwright.documents import parse_yaml
from shardwright.planner.fits.factors import FACTORS
from shardwright.planner.fits.shipped import shipped_data
from shardwright.planner.intervals import KINDS
from shardwright.planner.site.shrinkage import ODD_RUN, RUN_NOISE, SITE_SPREAD
from shardwright.planner.validation.labels import WAYS

PART = re.compile(r"(?<=<!-- measured: )(?P<name>[a-z ]+) -->\n.*?(?=<!-- end -->)", re.DOTALL)

Record = Mapping[str, Any]


def width_data() -> dict[str, Any]:
    """What `widths.yaml` holds, provenance included."""
    return dict(parse_yaml(WIDTHS.read_text(encoding="utf-8"), WIDTHS.name).data)


def percent(value: float | None, decimals: int = 1) -> str:
    """A share as a percentage."""
    return "–" if value is None else f"{100 * value:.{decimals}f} %"


def number(value: float | None) -> str:
    """Kendall's tau."""
    return "–" if value is None else f"{value:.2f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown, the first column of text."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def in_short(record: Record) -> str:
    """The figures a reader wants first."""
    total, share, loso = record["summary"], record["one_share"], record["fits"]["loso"]
    out = width_data()["left_out"]
    scoring = total["groups"]
    return (
        f"Of {total['rows']} published runs of {len(record['by_source'])} sources, {total['scored']} timed ones of {scoring} "
        f"sources count; {total['skipped']} are not priced ([why](#not-priced)). Means over sources, measured on "
        f"{record['date']}:\n\n"
        + table(
            ("", "median error", "90th percentile", "bias"),
            [
                ("step time", percent(total["median"]), percent(total["p90"]), percent(total["bias"])),
                ("the same, fitted without the source judged", *[percent(loso[k]) for k in ("median", "p90", "bias")]),
                ("one share of peak for all runs", percent(share["median"]), percent(share["p90"]), "–"),
                ("peak of memory", percent(total["memory_median"]), percent(total["memory_p90"]), "–"),
            ],
        )
        + f"\n{percent(out['coverage'], 0)} of the runs of sources left out lie inside their interval of 80 %, which is "
        f"{percent(out['width'], 0)} of the prediction wide. {percent(total['oom_called'], 0)} of the runs out of memory are "
        f"called so, {percent(total['ran_refused'], 0)} of those that ran are refused.\n"
    )


def by_source(record: Record) -> str:
    """Errors of each source beside those of one share of peak."""
    heads = (
        "source",
        "runs",
        "scored",
        "median",
        "p90",
        "bias",
        "one share: median",
        "p90",
        "memory",
        "inside",
        "tau",
        "regret",
    )
    rows = []
    for name, found in [*record["by_source"].items(), ("mean of sources", record["summary"])]:
        other = record["one_share"] if name == "mean of sources" else record["one_share"]["by_source"].get(name, {})
        rows.append(
            (
                f"{name} \\*" if name in record["unscored_groups"] else name,
                found["rows"],
                found["scored"],
                *[percent(found[key]) for key in ("median", "p90", "bias")],
                *[percent(other.get(key)) for key in ("median", "p90")],
                percent(found["memory_median"]),
                percent(found["interval_coverage"], 0),
                number(found["tau"]),
                percent(found["regret"]),
            )
        )
    one = percent(record["one_share"]["share"])
    return table(heads, rows) + (
        "\n\\* reported, not averaged. inside: measured times within the printed interval. One share: every run at "
        f"{one} of the peak of its arithmetic, the share that suits these very runs best (`benchmarks/one_mfu.py`).\n"
    )


def by_what(record: Record) -> str:
    """Errors by hardware, kind, scale and precision."""
    heads = ("", "scored", "sources", "median", "p90", "bias", "memory", "inside", "width")
    rows: list[Sequence[object]] = []
    for way in WAYS:
        rows.append((f"**{way}**", *[""] * (len(heads) - 1)))
        for label, found in record[f"by_{way}"].items():
            shares = [percent(found[key]) for key in ("median", "p90", "bias", "memory_median")]
            inside = [percent(found[key], 0) for key in ("interval_coverage", "interval_width")]
            rows.append((label, found["scored"], found["groups"], *shares, *inside))
    return table(heads, rows)


def fitted(record: Record) -> str:
    """Every constant that was set on whole steps, by name."""
    data, fits = shipped_data(), record["fits"]
    factors = data["factors"]
    rows = [(f"`{name}`", FACTORS[name].says, f"{row['value']:.3f}") for name, row in sorted(factors.items())]
    said = (
        f"{len(factors)} factors on constants of kernels and stacks, 1 where nothing is fitted (`shardwright show fits`):\n\n"
        + table(("factor", "of", "value"), rows)
        if factors
        else "No factor is fitted to whole steps at present (`shardwright show fits`).\n"
    )
    errors = [
        (f"`--fit {fit}`", percent(found["median"]), percent(found["p90"]), percent(found["bias"]))
        for fit, found in (("all", record["summary"]), ("loso", fits["loso"]), ("none", fits["none"]))
    ]
    anchored = record["anchored"]
    errors.append(("`--anchor first`", *[percent(anchored[key]) for key in ("median", "p90", "bias")]))
    kinds = len(KINDS)
    return (
        said + "\n" + table(("", "median", "p90", "bias"), errors) + "\nBeside them: two widths for each of "
        f"{kinds} kinds of run ([below](#intervals)), and how far one measured run of a site is believed "
        f"(`planner/site/shrinkage.py`: `SITE_SPREAD` {SITE_SPREAD:g}, `RUN_NOISE` {RUN_NOISE:g}, `ODD_RUN` {ODD_RUN:g}).\n"
    )


def intervals(record: Record) -> str:
    """Widths of every kind, and how they do on sources left out."""
    data = width_data()
    found, out = data["kinds"], data["left_out"]
    rows = [
        (kind, KINDS.get(kind, "all runs together"), row["runs"], row["sources"], f"{100 * (row['low'] - 1):+.0f} %",
         f"{100 * (row['high'] - 1):+.0f} %")
        for kind, row in found.items()
    ]  # fmt: skip
    names = ", ".join(f"{name} {percent(one['coverage'], 0)}" for name, one in out["sources"].items())
    return (
        table(("kind", "what", "runs", "sources", "low", "high"), rows)
        + f"\nEach source left out in turn, widths and their tail ({data['tail']:g} on either side) from the others: "
        f"{percent(out['coverage'])} of its runs are inside, mean over sources, and the interval is {percent(out['width'])} of "
        f"the prediction wide. By source: {names}. On the runs they were taken from: "
        f"{percent(record['summary']['interval_coverage'])} inside.\n"
    )


def ranking(record: Record) -> str:
    """Kendall's tau and regret."""
    rows = [("published runs", record["summary"])]
    rows += [("steps of one A100 node as vTrain composes them, 0.2 to 1.3 B", record["single"])] if record["single"] else []
    return table(
        ("plans of one job", "runs", "jobs", "tau", "regret", "median error"),
        [
            (name, one["rows"], one["jobs_ranked"], number(one["tau"]), percent(one["regret"]), percent(one["median"]))
            for name, one in rows
        ],
    )


def not_priced(record: Record) -> str:
    """Why rows were skipped."""
    return table(("reason", "runs"), [(reason, count) for count, reason in record["skipped"]])


PARTS: Mapping[str, Callable[[Record], str]] = {
    "in short": in_short,
    "by source": by_source,
    "by what": by_what,
    "fitted": fitted,
    "intervals": intervals,
    "ranking": ranking,
    "not priced": not_priced,
}


def page(text: str, record: Record) -> str:
    """The page with every part as the record has it.

    Raises:
        ValueError: a part has no place in the page.
    """
    missing = set(PARTS) - {found["name"] for found in PART.finditer(text)}
    if missing:
        raise ValueError("the page lacks the parts " + ", ".join(sorted(missing)))
    return PART.sub(lambda found: f"{found['name']} -->\n{PARTS[found['name']](record)}", text)
