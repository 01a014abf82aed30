"""Pictures and progress of sweeps."""

import io
from xml.etree import ElementTree

import pytest

from shardwright.errors import InvalidValueError, UnsupportedError
from shardwright.planner.report import sweep_figure
from shardwright.planner.report.chart import MAX_CURVES, Curve, tick_text
from shardwright.planner.report.chart_svg import svg_text
from shardwright.planner.report.progress import LiveLine
from shardwright.planner.report.sweep_figure import chart_of, check_figure
from shardwright.planner.report.sweep_progress import sweep_line
from shardwright.planner.report.sweep_words import thousands
from shardwright.planner.sweep.run import SweepProgress
from shardwright.planner.sweep.scaling import DEGREES, Knee, Measures, Series

SVG = "{http://www.w3.org/2000/svg}"


def series(name="m", *, sizes=6, usd=1.0, knee=None):
    """A job that scales well up to some size."""
    made = []
    for power in range(sizes):
        degrees = dict.fromkeys(DEGREES, 1) | {"dp": 8 * 2**power, "tp": 2 if power > 2 else 1, "recompute": "none"}
        made.append(
            Measures(
                nodes=2**power,
                gpus=8 * 2**power,
                step_s=1.0,
                tokens_per_s=1e5 * 1.9**power,
                mfu=0.5 - 0.02 * power,
                exposed_share=0.05 * power,
                headroom_bytes=2**33,
                usd=usd,
                joules=0.5,
                degrees=degrees | {"schedule": "1f1b"},
            )
        )
    key = {"model": name, "node": "n", "seq_len": 1024, "batch_rule": "8 sequences", "precision": "bf16", "framework": "any"}
    return Series(key=key, sizes=tuple(made), knee=knee)


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg.encode()).iter(f"{SVG}text")]


def test_a_picture_shows_what_it_should():
    knee = Knee(nodes=8, gpus=64, before=0.95, beyond=0.31)
    svg = svg_text(chart_of([series(knee=knee)]))
    said = texts(svg)
    titles = [title for title, _ in sweep_figure.FIGURES]
    assert set(titles) <= set(said)
    assert "beyond 8 nodes each doubling adds 31 % (up to there 95 %)" in said
    assert "m; n; 1,024 tokens a sequence; 8 sequences a step; bf16; any" in said
    lines = list(ElementTree.fromstring(svg.encode()).iter(f"{SVG}polyline"))
    assert len(lines) == 1 + len(titles) + 1
    boxes = [box for box in ElementTree.fromstring(svg.encode()).iter(f"{SVG}rect") if box.get("fill") == "#fde3c8"]
    assert len(boxes) == 5 + 1  # dp changes at every size, tp once


def test_unknown_prices_are_said_to_be_unknown():
    assert texts(svg_text(chart_of([series(usd=None)]))).count("not known") == 1


def test_many_jobs_have_a_legend_and_no_more_than_can_be_told_apart():
    chart = chart_of([series(f"model-{number}") for number in range(MAX_CURVES + 3)])
    assert len(chart.legend) == MAX_CURVES
    assert f"the first {MAX_CURVES} of {MAX_CURVES + 3} jobs" in chart.remarks
    assert len({(curve.colour, curve.dash) for curve in (Curve(index=i, points=()) for i in range(MAX_CURVES))}) == MAX_CURVES


def test_one_size_can_be_drawn_and_none_cannot():
    ElementTree.fromstring(svg_text(chart_of([series(sizes=1)])).encode())
    with pytest.raises(InvalidValueError, match="nothing to draw"):
        chart_of([])


def test_names_are_escaped():
    assert "<b>&" in "".join(filter(None, texts(svg_text(chart_of([series("<b>&"), series("c")])))))


def test_places_for_pictures_are_looked_at_first(tmp_path, monkeypatch):
    check_figure(tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []
    for name in ("a.gif", "no/a.svg"):
        with pytest.raises(InvalidValueError):
            check_figure(tmp_path / name)
    (tmp_path / "b.svg").mkdir()
    with pytest.raises(InvalidValueError):
        check_figure(tmp_path / "b.svg")
    monkeypatch.setattr(sweep_figure, "can_draw_png", lambda: False)
    with pytest.raises(UnsupportedError, match="resvg"):
        check_figure(tmp_path / "a.png")


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (999, "999"), (35848, "35.8k"), (1.32e6, "1.32M"), (4.8e10, "48.0B")])
def test_rates(value, text):
    assert thousands(value).replace("0.00", "0") == text


def test_ticks():
    assert [tick_text(value) for value in (0, 0.25, 100, 1e5, 2e6)] == ["0", "0.25", "100", "100k", "2M"]


# --- progress -------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def told(done, reused=0, elapsed=10.0):
    return SweepProgress(done=done, points=100, reused=reused, elapsed_s=elapsed)


def test_a_line_says_rate_and_time_left():
    assert sweep_line(told(0)) == "0 of 100 points (0 %)"
    assert sweep_line(told(20)) == "20 of 100 points (20 %), 2.00 a second, 40.0 s left"
    assert sweep_line(told(45, reused=40)) == "45 of 100 points (45 %), 40 from the store, 2.00 s each, 110 s left"


def test_a_terminal_has_one_live_line_that_goes():
    stream, now = Terminal(), [0.0]
    with LiveLine(stream, lambda: now[0], {}, sweep_line) as line:
        for done in (1, 2, 3):
            now[0] += 0.06
            line(told(done))
    assert stream.getvalue().count("points") == 2
    assert stream.getvalue().endswith("\r\x1b[K")
    assert "\n" not in stream.getvalue()


def test_elsewhere_there_are_plain_lines_now_and_then():
    stream, now = io.StringIO(), [0.0]
    with LiveLine(stream, lambda: now[0], {}, sweep_line) as line:
        for second in range(1000):
            now[0] = float(second)
            line(told(second // 10))
    lines = stream.getvalue().splitlines()
    assert 90 < len(lines) < 101
    assert "\r" not in stream.getvalue()
