"""Numbers as people read them."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.planner.report import words
from shardwright.planner.report.progress import LiveLine, line
from shardwright.planner.report.style import Style, encodable, paragraph, style_for, table, to_text
from shardwright.planner.search.options import Progress


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (1.234e-5, "12.3 µs"),
        (0.0432, "43.2 ms"),
        (1.5, "1.50 s"),
        (123.4, "123 s"),
        (123456.0, "123,456 s"),
        (0.0, "0.00 µs"),
    ],
)
def test_seconds(value, text):
    assert words.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (2**30, "1.0"), (85_520_809_984, "79.6"), (5000 * 2**30, "5,000")])
def test_gib(value, text):
    assert words.gib(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(64, "64.0 B"), (2**16, "64.0 KiB"), (2**26, "64.0 MiB"), (8.816e9, "8.21 GiB"), (None, "-")]
)
def test_message_size(value, text):
    assert words.message_size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(12, "12"), (124_439_808, "124.4 M"), (70_553_706_496, "70.55 B"), (1.026e12, "1.026 T"), (None, "-")]
)
def test_big(value, text):
    assert words.big(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (3, "3"),
        (12345, "12,345"),
        (0.5, "0.5"),
        ([], "-"),
        ([1, "a"], "1, a"),
        ({"a": 1}, "a=1"),
    ],
)
def test_plain(value, text):
    assert words.plain(value) == text


@given(st.floats(min_value=0, max_value=3), st.integers(min_value=3, max_value=40))
def test_bars_have_their_width_and_never_look_empty_or_overfull(fraction, width):
    bar = words.bar(fraction, width)
    assert len(bar) == width
    assert bar.endswith("▶") == (fraction > 1)
    assert bar.startswith("█") == (fraction >= 0.005)


@given(st.floats(min_value=1e-300, max_value=1e15), st.integers(min_value=2, max_value=5))
def test_digits_stay_close_to_the_value(value, count):
    shown = float(words.digits(value, count).replace(",", ""))
    assert shown == pytest.approx(value, rel=10.0 ** (1 - count))


def test_one_is_singular():
    assert words.many(1, "node") == "1 node"
    assert words.many(12_000, "GPU") == "12,000 GPUs"


@given(st.text(max_size=200), st.sampled_from(["ascii", "utf-8", "cp1252", "no-such-encoding"]))
def test_everything_can_be_written(text, encoding):
    shown = encodable(text, encoding)
    try:
        shown.encode(encoding, "surrogatepass" if encoding == "utf-8" else "strict")
    except LookupError:
        shown.encode("ascii")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_pipes_get_80_columns_and_no_colour():
    assert style_for(io.StringIO(), {}) == Style(encoding="ascii")


@pytest.mark.parametrize(
    ("environ", "colour"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)]
)
def test_terminals_get_colour_unless_told_otherwise(environ, colour):
    assert style_for(Terminal(), environ).colour is colour


def event(explored, best=None):
    return Progress(explored=explored, candidates=200, best_step_time_s=best)


def test_a_log_gets_a_line_every_ten_seconds():
    now = iter([1.0, 5.0, 11.5, 12.0, 22.0])
    pipe = io.StringIO()
    with LiveLine(pipe, clock=lambda: next(now), environ={}) as live:
        for explored in (10, 20, 30, 40, 50):
            live(event(explored, best=12.0))
    assert pipe.getvalue() == "explored 30 of 200 (15 %), best 12.00 s\nexplored 50 of 200 (25 %), best 12.00 s\n"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_progress_can_be_switched_off(stream):
    now, written = iter([1.0, 100.0]), stream()
    with LiveLine(written, clock=lambda: next(now), environ={"SHARDWRIGHT_NO_PROGRESS": "1"}) as live:
        live(event(10))
        live(event(20))
    assert written.getvalue() == ""


def test_the_line_tells_bound_and_gap_once_they_are_known():
    known = Progress(explored=50, candidates=200, best_step_time_s=12.0, lower_bound_step_time_s=11.4)
    assert line(known) == "explored 50 of 200 (25 %), best 12.00 s, bound 11.40 s, gap 5.0 %"
    huge = Progress(explored=10**12, candidates=10**13, best_step_time_s=123.456, lower_bound_step_time_s=120.1)
    assert len(line(huge)) < 80


def test_ascii_lines_are_no_wider_than_others():
    text = "a → b ≥ c … " * 30
    for encoding in ("utf-8", "ascii"):
        shown = to_text([paragraph(text)], Style(encoding=encoding))
        assert max(map(len, shown.splitlines())) <= 80
    assert "a -> b >= c ..." in " ".join(shown.split())


def test_the_live_line_shows_the_newest_and_is_gone_afterwards():
    now = iter([1.0, 1.01, 1.2])
    terminal = Terminal()
    with LiveLine(terminal, clock=lambda: next(now), environ={}) as live:
        live(event(10))
        live(event(20))
        live(event(100, best=12.0))
    shown = terminal.getvalue()
    assert "explored 10 of 200 (5 %)" in shown
    assert "explored 20" not in shown
    assert "explored 100 of 200 (50 %), best 12.00 s" in shown
    assert shown.endswith("\r\x1b[K")
    assert "\n" not in shown


def test_no_figure_of_a_table_is_cut():
    shown = table("name", "much", "more", left=("name",))
    shown.add_row("a" * 60, "12,345,678.9", "98,765,432.1")
    text = to_text([shown, paragraph("short words " * 20)], Style())
    assert f"{'a' * 60} 12,345,678.9 98,765,432.1" in text
    assert max(map(len, text.splitlines()[2:])) <= 80


def test_long_text_wraps_before_a_table_grows():
    shown = table("name", "much", wrap=("name",))
    shown.add_row("several words " * 10, "12,345,678.9")
    text = to_text([shown], Style())
    assert "12,345,678.9" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_long_word_of_a_column_that_wraps_is_folded_and_no_figure_is_cut():
    shown = table("name", "much", wrap=("name",))
    shown.add_row("a-word-without-any-place-to-break" * 4, "12,345,678.9")
    text = to_text([shown], Style())
    assert "12,345,678.9" in text
    assert max(map(len, text.splitlines())) <= 80


def test_no_text_of_a_user_steers_the_terminal():
    hostile = "\x1b]0;title\x07\x1b[2J\x9b1m\u202ex"
    plain = to_text([paragraph(hostile)], Style())
    assert plain.strip() == r"\x1b]0;title\x1b[2J\x9b1m\u202ex"  # rich drops the bell
    coloured = to_text([paragraph(hostile, style="red")], Style(colour=True))
    assert coloured.startswith("  \x1b[31m")
    assert r"\x1b]0;title\x1b[2J" in coloured
