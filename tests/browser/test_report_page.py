"""The report in a browser: nothing on the console, pictures as the JSON says, sorting, zoom, widths, themes, paper."""

import json

import pytest
from html_samples import NASTY, deep, planned, sweep, too_large

from shardwright.planner.report.html.document import report

pytestmark = pytest.mark.browser

WIDTHS = (320, 768, 1280, 2560)
SOURCES = {"plans": planned, "16 stages": deep, "nothing fits": too_large, "sweep": sweep}


def written(tmp_path, source, **more):
    report(source, tmp_path / "report.html", **more)
    return (tmp_path / "report.html").as_uri()


def opened(tab, tmp_path, source, **more):
    tab.open(written(tmp_path, source, **more))
    return json.loads(tab.value("document.getElementById('report-data').textContent"))


def column(tab, place):
    return tab.value(f"[...document.querySelector('#plans-table tbody').rows].map((row) => row.cells[{place}].textContent)")


def window(tab):
    return tab.value("(({start, end}) => [Number(start), Number(end)])(document.querySelector('.timeline').dataset)")


# --- every page, width, theme ----------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_no_width_makes_the_page_wider_than_the_window(tab, tmp_path, source):
    opened(tab, tmp_path, source())
    for width in WIDTHS:
        tab.size(width)
        assert tab.value("document.documentElement.scrollWidth") <= width
        clipped = tab.value(
            "[...document.querySelectorAll('h1, h2, .caption, dd, .legend li, nav a')]"
            ".filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')"
            ".map((e) => e.textContent)"
        )
        assert clipped == []


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_labels_of_pictures_stay_inside(tab, tmp_path, source):
    opened(tab, tmp_path, source())
    for width in WIDTHS:
        tab.size(width)
        outside = tab.value(
            "[...document.querySelectorAll('figure svg text')].filter((t) => { const a = t.getBoundingClientRect(), "
            "b = t.closest('figure').getBoundingClientRect(); "
            "return a.width && (a.left < b.left - 8 || a.right > b.right + 8) })"
            ".map((t) => t.textContent)"
        )
        assert outside == [], width


def test_readings_do_not_cover_labels(tab, tmp_path):
    opened(tab, tmp_path, deep())
    tab.size(320)
    covered = tab.value(
        "[...document.querySelectorAll('#picture-time g[data-row], #picture-memory g[data-row]')].filter((g) => {"
        " const [a, b] = [...g.querySelectorAll('text')].map((t) => t.getBoundingClientRect()); return a.right > b.left })"
        ".map((g) => g.textContent)"
    )
    assert covered == []


def test_dark_and_light(tab, tmp_path):
    opened(tab, tmp_path, planned())
    colour = "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.querySelector('.p-compute')).fill"
    light = tab.value(colour)
    tab.theme("dark")
    dark = tab.value(colour)
    assert light != dark
    tab.click("#theme")
    assert tab.value("document.getElementById('theme').textContent") == "Theme: light"
    assert tab.value(colour) == light
    tab.click("#theme")
    tab.theme("light")
    assert tab.value(colour) == dark
    tab.click("#theme")
    assert tab.value(colour) == light


# --- pictures ----------------------------------------------------------------------------------------------


def test_bars_are_as_long_as_the_numbers_say(tab, tmp_path):
    data = opened(tab, tmp_path, planned())
    lengths = (
        "Object.fromEntries([...document.querySelectorAll('#picture-{} [data-key]')].map((r) => "
        "[r.parentNode.dataset.row + '/' + r.dataset.key, r.getBoundingClientRect().width / r.ownerSVGElement.clientWidth]))"
    )
    time = data["pictures"]["time"]
    for name, share in tab.value(lengths.format("time")).items():
        key = name.split("/")[1]
        expected = 1.0 if key == "step" else time[key] / time["step_time_s"]
        assert share == pytest.approx(expected, abs=2e-3), name
    memory = data["pictures"]["memory"]
    drawn = tab.value(lengths.format("memory"))
    for stage in memory["stages"]:
        total = sum(share for name, share in drawn.items() if name.startswith(f"{stage['index']}/"))
        assert total == pytest.approx(stage["total_bytes"] / memory["capacity_bytes"], abs=3e-3)


def test_the_figures_at_the_top_are_those_of_the_plan(tab, tmp_path):
    data = opened(tab, tmp_path, planned(), rank=2)
    plan = data["result"]["plans"][1]
    shown = tab.value(
        "Object.fromEntries([...document.querySelectorAll('.figures [data-key]')].map((e) => [e.dataset.key, e.dataset.value]))"
    )
    assert float(shown["step_time_s"]) == plan["predicted"]["step_time_s"]
    assert float(shown["peak_bytes"]) == plan["memory"]["peak_bytes"]
    assert tab.value("document.querySelector('tr.marked').cells[0].textContent") == "2"


def test_every_operation_is_on_the_timeline(tab, tmp_path):
    data = opened(tab, tmp_path, deep())
    line = data["pictures"]["timeline"]
    counts = tab.value(
        "[...document.querySelectorAll('.timeline g[data-row]')].map((g) => Object.fromEntries("
        "[...g.querySelectorAll('path')].map((p) => [p.getAttribute('class'), Number(p.dataset.count)])))"
    )
    passes = deep()["parallel"]["micro_batches"] * deep()["parallel"]["vpp"]
    assert len(counts) == len(line["stages"]) == 16
    assert all(drawn["f-forward"] == drawn["f-backward"] == passes for drawn in counts)
    ends = tab.value(
        "[...document.querySelectorAll('.timeline g[data-row]')].map((g) => Math.max(...[...g.querySelectorAll('path')]"
        ".map((p) => { const b = p.getBBox(); return b.x + b.width })))"
    )
    width = tab.value("document.querySelector('.timeline').clientWidth")
    assert max(ends) == pytest.approx(width, abs=2 + width * line["tied_s"] / line["step_time_s"])


def test_points_lie_where_their_numbers_say(tab, tmp_path):
    data = opened(tab, tmp_path, planned())
    points = data["pictures"]["pareto"]["points"]
    drawn = tab.value(
        "Object.fromEntries([...document.querySelectorAll('#picture-pareto circle')].map((c) => "
        "[c.dataset.rank, [c.cx.baseVal.value, c.cy.baseVal.value]]))"
    )
    assert len(drawn) == len(points)
    low, high = (pick(points, key=lambda p: p["step_time_s"]) for pick in (min, max))
    span = drawn[str(high["rank"])][0] - drawn[str(low["rank"])][0]
    for point in points:
        share = (point["step_time_s"] - low["step_time_s"]) / (high["step_time_s"] - low["step_time_s"])
        assert drawn[str(point["rank"])][0] - drawn[str(low["rank"])][0] == pytest.approx(share * span, abs=0.5)


def test_curves_of_a_sweep(tab, tmp_path):
    data = opened(tab, tmp_path, sweep())
    sizes = tab.value("[...document.querySelectorAll('#picture-scaling circle')].map((c) => Number(c.dataset.gpus))")
    assert sizes == [p["gpus"] for one in data["pictures"]["scaling"]["series"] for p in one["points"]]


# --- sorting -------------------------------------------------------------------------------------------------


def test_headings_sort_by_mouse(tab, tmp_path):
    data = opened(tab, tmp_path, planned())
    gib = tab.value("[...document.querySelectorAll('#plans-table th')].findIndex((th) => th.textContent === 'GiB')")
    button = f"#plans-table th:nth-child({gib + 1}) button"
    by_memory = sorted(data["result"]["plans"], key=lambda p: p["memory"]["peak_bytes"])
    tab.click(button)
    assert column(tab, 0) == [str(p["rank"]) for p in by_memory]
    assert tab.value("document.querySelector('#plans-table th[aria-sort]').ariaSort") == "ascending"
    tab.click(button)
    assert [float(text) for text in column(tab, gib)] == sorted((float(text) for text in column(tab, gib)), reverse=True)
    assert tab.value("document.querySelectorAll('#plans-table th[aria-sort]').length") == 1


def test_headings_sort_by_keyboard(tab, tmp_path):
    opened(tab, tmp_path, planned())
    tab.value("document.querySelector('#plans-table th:nth-child(3) button').focus()")
    tab.key("Enter", text="\r")
    tensor = [int(text) for text in column(tab, 2)]
    assert tensor == sorted(tensor)
    tab.key(" ", code="Space", text=" ")
    assert [int(text) for text in column(tab, 2)] == sorted(tensor, reverse=True)


def test_everything_that_does_something_can_be_reached_by_tab(tab, tmp_path):
    opened(tab, tmp_path, planned())
    wanted = tab.value("document.querySelectorAll('button, a[href], summary, .timeline, .scroll').length")
    closed = tab.value("document.querySelectorAll('details:not([open]) :is(button, .scroll, pre)').length")
    reached = set()
    for _ in range(wanted + 10):
        tab.key("Tab")
        place = tab.value(
            "(() => { const e = document.activeElement; const b = e.getBoundingClientRect();"
            " return [e.tagName, e.id, e.textContent.slice(0, 40), Math.round(b.x), Math.round(b.y + scrollY)].join('|') })()"
        )
        reached.add(place)
    assert len(reached) >= wanted - closed


# --- zoom ------------------------------------------------------------------------------------------------------


def test_the_timeline_zooms_by_mouse(tab, tmp_path):
    opened(tab, tmp_path, deep())
    whole = window(tab)
    tab.click("[data-do=in]")
    assert window(tab)[1] - window(tab)[0] == (whole[1] - whole[0]) / 2
    x, y = tab.centre(".timeline")
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400, modifiers=2)
    near = window(tab)
    assert near[1] - near[0] < (whole[1] - whole[0]) / 2.5
    tab.mouse("mousePressed", x, y)
    tab.mouse("mouseMoved", x - 100, y)
    tab.mouse("mouseReleased", x - 100, y)
    assert window(tab)[0] > near[0]
    tab.click("[data-do=reset]")
    assert window(tab) == whole
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
    assert window(tab) == whole, "the wheel alone scrolls the page"


def test_the_timeline_zooms_by_keyboard(tab, tmp_path):
    opened(tab, tmp_path, deep())
    whole = window(tab)
    tab.value("document.querySelector('.timeline').focus()")
    for _ in range(7):
        tab.key("+", text="+")
    near = window(tab)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 128, rel=1e-6)
    labels = tab.value("document.querySelectorAll('.timeline text.op').length")
    assert labels > 20, "passes wide enough carry their micro-batch"
    tab.key("ArrowRight")
    assert window(tab)[0] - near[0] == pytest.approx((near[1] - near[0]) / 4, rel=1e-6)
    tab.key("ArrowLeft")
    tab.key("-", text="-")
    assert window(tab)[1] - window(tab)[0] == pytest.approx((whole[1] - whole[0]) / 64, rel=1e-6)
    tab.key("0", text="0")
    assert window(tab) == whole


def test_pointing_names_the_pass(tab, tmp_path):
    data = opened(tab, tmp_path, deep())
    stage = data["pictures"]["timeline"]["stages"][0]
    first = stage["operations"][stage["codes"][0]]
    tab.value("document.querySelector('.timeline').scrollIntoView({block: 'center', behavior: 'instant'})")
    x, y, width = tab.value(
        "(() => { const b = document.querySelector('.timeline').getBoundingClientRect(); return [b.x, b.y, b.width] })()"
    )
    at = 34 + (width - 34) * first["length"] / data["pictures"]["timeline"]["ticks"] / 2
    tab.mouse("mouseMoved", x + at, y + 6, button="none", buttons=0)
    assert tab.value("document.getElementById('timeline-point').textContent").startswith(
        "Stage 0: forward, chunk 0, micro-batch 0, 0 s to "
    )


# --- names, paper, no script -------------------------------------------------------------------------------------


def test_names_do_nothing(tab, tmp_path):
    source = planned()
    source["model"]["name"] = source["cluster"]["name"] = NASTY
    source["plans"][0]["warnings"] = [NASTY]
    source["assumptions"].append({"key": NASTY, "value": NASTY, "origin": "given"})
    opened(tab, tmp_path, source)
    assert tab.value("document.querySelectorAll('img, script').length") == 2
    assert tab.value("document.title").split() == f"{NASTY} on {NASTY}".split()
    assert tab.value("document.querySelector('.notice').textContent") == NASTY
    tab.click("#raw summary")
    tab.value("new Promise((done) => setTimeout(done, 100))")
    assert tab.value("JSON.parse(document.querySelector('#raw pre').textContent).training.seq_len") == 8192


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_prints(tab, tmp_path, theme):
    opened(tab, tmp_path, planned())
    tab.theme(theme)
    made = tab.pdf()
    assert made.startswith(b"%PDF-")
    assert len(made) > 40_000
    tab.theme(theme, media="print")
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.value("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_pictures_as_files_open_too(tab, tmp_path):
    written(tmp_path, planned(), figures=tmp_path / "f")
    for file in sorted((tmp_path / "f").glob("*.svg")):
        tab.open(file.as_uri())
        box = tab.value("(({width, height}) => [width, height])(document.documentElement.getBBox())")
        size = tab.value("[document.documentElement.width.baseVal.value, document.documentElement.height.baseVal.value]")
        assert box[0] <= size[0] + 4, file.name
        assert box[1] <= size[1] + 4, file.name
