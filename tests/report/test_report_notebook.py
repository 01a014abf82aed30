"""Results in notebooks: short in text, whole and escaped in HTML, rows in frames."""

from __future__ import annotations

import copy
import re
import sys
from html.parser import HTMLParser

import pytest

import shardwright
from shardwright.errors import UnsupportedError
from shardwright.planner.problem import PricingOptions
from shardwright.planner.report.notebook import PARTS, html_of
from shardwright.planner.report.output import rows_of

VOID = {"br", "hr", "img"}
EVIL = "<script>alert('x')</script> & \"co\""


class _Reader(HTMLParser):
    """Cells and bars of a page; a tag that is left open or closed twice is a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.widths: list[float] = []
        self.labels: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        values = dict(attrs)
        self.labels += [values["aria-label"]] if "aria-label" in values else []
        self.widths += [float(w) for w in re.findall(r"width:([\d.]+)px", values.get("style") or "")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in {"td", "th"}:
            self.rows[-1][-1] += data


def _read(html: str) -> _Reader:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def result():
    options = PricingOptions(framework="megatron")
    return shardwright.plan("llama3.1-8b", "dgx-h100:2", seq_len=8192, global_batch=64, options=options)


@pytest.fixture(scope="module")
def price():
    degrees = shardwright.Degrees(tp=2, pp=2)
    return shardwright.estimate("llama3.1-8b", "dgx-h100:2", seq_len=8192, global_batch=64, degrees=degrees)


@pytest.fixture(scope="module")
def everything(result, price):
    saved = result.to_dict()
    return [result, price, shardwright.explain(saved), shardwright.compare(saved, saved, rank_b=2)]


def test_texts_are_short(everything):
    for one in everything:
        assert repr(one).startswith(type(one).__name__ + "(")
        assert len(repr(one)) < 120


def test_plans_are_a_table_with_bars(result):
    page = _read(result._repr_html_())
    assert len(page.rows) == 1 + len(result.plans)
    assert [row[0] for row in page.rows[1:]] == [str(plan["rank"]) for plan in result.plans]
    for label, plan in zip(page.labels, result.plans, strict=True):
        assert label.startswith(f"{plan['memory']['peak_bytes'] / 2**30:,.1f} of ")


def test_an_estimate_shows_parts_and_stages(price):
    page = _read(price._repr_html_())
    data = price.to_dict()
    assert len(page.labels) == len(data["stages"]) == 2
    names = {row[0] for row in page.rows}
    assert {"compute", "tensor parallel, exposed"} <= names


def test_bars_are_as_wide_as_the_memory(price):
    stage = price.to_dict()["stages"][0]["memory"]
    lone = {**price.to_dict(), "stages": price.to_dict()["stages"][:1]}
    widths = _read(html_of(lone)).widths
    parts = [stage[part] for part in PARTS if stage[part] / stage["capacity_bytes"] * 200 >= 0.1]
    drawn = widths[-len(parts) - 1 :]
    assert sum(drawn) == pytest.approx(200, abs=1)
    assert drawn[:-1] == [pytest.approx(size / stage["capacity_bytes"] * 200, abs=0.06) for size in parts]


def test_what_does_not_fit_is_said(price):
    degrees = shardwright.Degrees(tp=1, pp=1, micro_batch=8, zero=0)
    made = shardwright.estimate("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, degrees=degrees)
    assert not made.feasible
    assert "cannot run" in made._repr_html_()
    unpriced = shardwright.estimate(
        "llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, degrees=shardwright.Degrees(tp=3)
    )
    assert unpriced._repr_html_().startswith("<pre>")


def test_names_are_escaped_everywhere(everything):
    for one in everything:
        data = copy.deepcopy(one.to_dict())
        for holder in (data, data.get("a", {})):
            if "model" in holder:
                holder["model"]["name"] = EVIL
                holder["cluster"]["name"] = EVIL
        page = _read(html_of(data))
        assert "script" not in page.tags
        assert "<script" not in html_of(data)


def test_nothing_is_loaded(everything):
    for one in everything:
        assert not re.search(r"<(script|link|img|iframe)|url\(|https?:|on\w+=", one._repr_html_())


def test_frames_hold_the_rows_of_csv(everything):
    pytest.importorskip("pandas")
    for one in everything:
        rows, frame = rows_of(one.to_dict()), one.to_frame()
        assert len(frame) == len(rows)
        assert list(frame.columns) == list(rows[0])
    ranks = everything[0].to_frame()
    assert ranks["step_time_s"].iloc[0] == pytest.approx(everything[0].plans[0]["predicted"]["step_time_s"])


def test_without_pandas_the_error_says_so(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedError, match="pandas") as refused:
        result.to_frame()
    assert "to_dict" in refused.value.hint


def test_emissions_sweeps_and_validations_are_drawn_too(result, tmp_path):
    written = shardwright.emit(result.to_dict(), target="torchrun", folder=tmp_path / "bundle")
    assert written._repr_html_().startswith("<pre>")
    assert repr(written).startswith("Emission(target='torchrun'")
    swept = shardwright.sweep("llama3.1-8b", node="dgx-h100", nodes="1,2", seq_len=8192, global_batch=64)
    assert swept._repr_html_().startswith("<pre>")
    pytest.importorskip("pandas")
    assert list(swept.to_frame()["status"]) == ["ok", "ok"]
