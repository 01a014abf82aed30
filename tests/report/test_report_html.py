"""The HTML report: what it holds, that it needs nothing else, and that names in it stay names."""

import base64
import hashlib
import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import jsonschema
import pytest
from html_samples import NASTY, Tags, data_of, deep, planned, sweep, too_large

from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError
from shardwright.planner.report.html import colours, figures
from shardwright.planner.report.html.document import report
from shardwright.planner.report.html.page import LIMIT_BYTES
from shardwright.planner.report.html.topology import MANY
from shardwright.planner.report.time_table import LABELS
from shardwright.planner.schema import json_schema

SVG = "{http://www.w3.org/2000/svg}"


def made(tmp_path, source, **more):
    done = report(source, tmp_path / "r.html", **more)
    return (tmp_path / "r.html").read_text(encoding="utf-8"), done.to_dict()


def segments(text, picture):
    """(row, key) -> number of the bars of a picture."""
    figure = re.search(rf'<figure id="picture-{picture}".*?</figure>', text, re.DOTALL)[0]
    root = ElementTree.fromstring(re.search(r"<svg width=\"100%\".*</svg>", figure, re.DOTALL)[0].replace("&nbsp;", " "))
    rows = root.findall(".//g[@data-row]")
    return {
        (row.get("data-row"), r.get("data-key")): float(r.get("data-value")) for row in rows for r in row if r.get("data-key")
    }


# --- the whole ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "pictures"),
    [
        (planned, ["time", "memory", "timeline", "topology", "pareto", "search"]),
        (deep, ["time", "memory", "timeline", "topology"]),
        (too_large, ["time", "memory", "timeline", "topology", "pareto", "search"]),
        (sweep, ["scaling"]),
    ],
)
def test_a_page_has_its_pictures_and_their_data(tmp_path, source, pictures):
    text, record = made(tmp_path, source())
    jsonschema.validate(record, json_schema("report"))
    assert record["pictures"] == pictures
    assert list(data_of(text)["pictures"]) == pictures
    assert record["bytes"] == len(text.encode()) < LIMIT_BYTES


@pytest.mark.parametrize("source", [planned, sweep])
def test_a_page_needs_nothing_else(tmp_path, source):
    text, _ = made(tmp_path, source())
    tags = Tags(text)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in tags.tags}
    for _, attributes in tags.tags:
        assert not {"src", "srcset", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "#").startswith("#")
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {"#hatch"}


def test_the_policy_allows_exactly_the_style_and_the_script_of_the_page(tmp_path):
    text, _ = made(tmp_path, planned())
    policy = next(m["content"] for m in Tags(text).named("meta") if m.get("http-equiv") == "Content-Security-Policy")
    for pattern, name in ((r"<style>(.*?)</style>", "style-src"), (r"<script>(.*?)</script>", "script-src")):
        blocks = re.findall(pattern, text, re.DOTALL)
        assert len(blocks) == 1
        digest = base64.b64encode(hashlib.sha256(blocks[0].encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_the_same_result_gives_the_same_bytes(tmp_path):
    first, _ = made(tmp_path, planned())
    again, _ = made(tmp_path, planned(), force=True)
    assert first == again


def test_ids_are_used_once_and_labels_lead_somewhere(tmp_path):
    text, _ = made(tmp_path, planned())
    tags = Tags(text)
    ids = [attributes["id"] for _, attributes in tags.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labels = {name for _, a in tags.tags for name in a.get("aria-labelledby", "").split()}
    assert labels <= set(ids)
    assert {a["href"][1:] for a in tags.named("a")} <= set(ids)
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in tags.named("svg") if svg.get("role") == "img")
    assert len(tags.named("caption")) == len(tags.named("table"))
    assert tags.named("html")[0]["lang"] == "en"


# --- names stay names ----------------------------------------------------------------------------------


def test_names_from_a_result_are_inert(tmp_path):
    source = planned()
    source["model"]["name"] = source["cluster"]["name"] = NASTY
    source["plans"][0]["warnings"] = [NASTY]
    source["assumptions"].append({"key": NASTY, "value": [NASTY, {"a": NASTY}], "origin": "given"})
    source["plans"][0]["communication"][0]["bottleneck_link"] = NASTY
    source["plans"][0]["sources"][NASTY] = {"origin": NASTY, "source": NASTY, "median_error": None}
    text, record = made(tmp_path, source, figures=tmp_path / "f")
    tags = Tags(text)
    assert [a.get("type") for a in tags.named("script")] == ["application/json", None]
    assert tags.named("img") == []
    assert NASTY in "".join(tags.texts)
    assert data_of(text)["result"]["model"]["name"] == NASTY
    for file in record["figures"]:
        if file.endswith(".svg"):
            root = ElementTree.parse(file).getroot()
            assert {e.tag for e in root.iter()} <= {f"{SVG}{n}" for n in _DRAWN}


_DRAWN = {"svg", "g", "rect", "line", "text", "title", "style", "defs", "pattern", "path", "circle"}


def test_characters_that_xml_does_not_know_are_replaced(tmp_path):
    source = planned()
    source["plans"][0]["placement"] = None
    source["inputs"]["cluster"]["name"] = "a"
    source["cluster"]["name"] = "bell \x07 escape \x1b[31m zero \x00"
    text, _ = made(tmp_path, source)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", text)
    assert "bell \N{REPLACEMENT CHARACTER} escape" in text


# --- pictures say what the JSON says -------------------------------------------------------------------


def test_bars_of_memory_are_those_of_the_plan(tmp_path):
    text, _ = made(tmp_path, planned(), rank=2)
    stages = planned()["plans"][1]["stages"]
    drawn = segments(text, "memory")
    for stage in stages:
        parts = {
            name: value for name, value in stage["memory"].items() if name not in {"total_bytes", "capacity_bytes"} and value
        }
        assert {key: value for (row, key), value in drawn.items() if row == str(stage["index"])} == parts
    assert data_of(text)["pictures"]["memory"]["stages"] == [{"index": s["index"], **s["memory"]} for s in stages]


def test_bars_of_time_are_those_of_the_plan(tmp_path):
    text, _ = made(tmp_path, planned())
    time, predicted = (planned()["plans"][0][name] for name in ("time", "predicted"))
    drawn = {key: value for (_, key), value in segments(text, "time").items()}
    assert drawn == pytest.approx({name: time[name] for name in LABELS if time[name]} | {"step": predicted["step_time_s"]})


def test_bars_of_the_search_account_for_every_candidate(tmp_path):
    text, _ = made(tmp_path, planned())
    drawn = segments(text, "search")
    assert sum(drawn.values()) == planned()["search"]["candidates"]


def test_the_timeline_ends_with_the_step(tmp_path):
    text, _ = made(tmp_path, deep())
    line = data_of(text)["pictures"]["timeline"]
    assert line["simulated_step_s"] == pytest.approx(line["step_time_s"], rel=1e-9)
    assert line["step_time_s"] == deep()["predicted"]["step_time_s"]
    ends = [s["last"] + sum(s["tail"].values()) for s in line["stages"]]
    assert max(ends) + line["tied_s"] / line["step_time_s"] * line["ticks"] == pytest.approx(line["ticks"], abs=5)
    parallel = deep()["parallel"]
    for stage in line["stages"]:
        assert len(stage["codes"]) == len(stage["starts"]) == 2 * parallel["vpp"] * parallel["micro_batches"]
        assert sum(count for _, count in stage["micro_batches"]) == len(stage["codes"])
        spans = [
            (start, start + stage["operations"][code]["length"])
            for code, start in zip(stage["codes"], stage["starts"], strict=True)
        ]
        assert all(after >= end - 2 for (_, end), (after, _) in pairwise(spans))
        busy = sum(stage["operations"][code]["length"] for code in stage["codes"])
        assert busy / line["ticks"] * line["simulated_step_s"] == pytest.approx(stage["busy_s"], rel=1e-5)


def test_every_gpu_stands_on_its_stage(tmp_path):
    text, _ = made(tmp_path, deep())
    figure = re.search(r'<figure id="picture-topology".*?</figure>', text, re.DOTALL)[0]
    drawn = {int(rank): int(stage) for rank, stage in re.findall(r'data-rank="(\d+)" data-stage="(\d+)"', figure)}
    assert len(drawn) == deep()["cluster"]["gpus"]
    assert all(f"{min(r for r in drawn if drawn[r] == s['index'])}-" in s["ranks"] for s in deep()["stages"])


def test_many_hosts_alike_are_one_card(tmp_path):
    from shardwright.planner.estimation import estimate
    from shardwright.planner.plans import Degrees

    source = estimate("llama3-8b", "dgx-h100:128", seq_len=4096, global_batch=1024, degrees=Degrees(tp=2, pp=2)).to_dict()
    text, _ = made(tmp_path, source)
    hosts = data_of(text)["pictures"]["topology"]["hosts"]
    assert sum(host["count"] for host in hosts) == 128 > MANY
    assert len(hosts) == 2


def test_the_front_is_what_no_plan_beats(tmp_path):
    text, _ = made(tmp_path, planned())
    points = data_of(text)["pictures"]["pareto"]["points"]
    assert [p["rank"] for p in points] == [p["rank"] for p in planned()["plans"]]
    front = [p for p in points if not p["beaten"]]
    assert front
    for point in points:
        better = [f for f in front if f["step_time_s"] <= point["step_time_s"] and f["peak_bytes"] <= point["peak_bytes"]]
        assert better
        assert point["beaten"] == (point not in front)


def test_a_front_that_was_searched_is_drawn_with_money(tmp_path):
    from shardwright.planner.problem import PricingOptions
    from shardwright.planner.search.options import SearchOptions
    from shardwright.planner.search.run import plan

    search = SearchOptions(effort="scan", top=5, pareto=True)
    options = PricingOptions(objective="cost")
    source = plan("llama3-8b", "dgx-h100:4", seq_len=8192, global_batch=64, options=options, search=search).to_dict()
    text, record = made(tmp_path, source)
    assert record["pictures"][-3:] == ["pareto", "money", "search"]
    pictures = data_of(text)["pictures"]
    steps = {p["step_time_s"] for p in pictures["pareto"]["points"]}
    assert {round(p["step_time_s"], 9) for p in source["pareto"]} <= {round(step, 9) for step in steps}
    assert {p["rank"] for p in pictures["pareto"]["points"]} == {None, *range(1, len(source["plans"]) + 1)}
    cheapest = min(pictures["money"]["points"], key=lambda p: p["usd_per_1m_tokens"])
    assert not cheapest["beaten"]


def test_a_curve_of_a_sweep_starts_perfect(tmp_path):
    text, _ = made(tmp_path, sweep())
    series = data_of(text)["pictures"]["scaling"]["series"]
    assert [one["name"] for one in series] == ["llama3-8b", "mistral-7b"]
    for one in series:
        assert [p["gpus"] for p in one["points"]] == [8, 16, 32]
        assert one["points"][0]["efficiency"] == 1.0
    assert "infeasible: nothing fits" in text


def test_what_does_not_fit_is_shown_as_such(tmp_path):
    text, _ = made(tmp_path, too_large())
    assert "Nothing fits" in text
    assert "Too large (&gt;)" in text
    assert data_of(text)["pictures"]["memory"]["stages"][0]["total_bytes"] > 85e9


def test_interleaved_micro_batches_that_do_not_fill_their_groups_have_no_timeline(tmp_path):
    from shardwright.planner.estimation import estimate
    from shardwright.planner.plans import Degrees

    source = estimate("llama3-8b", "dgx-h100:1", seq_len=4096, global_batch=6, degrees=Degrees(tp=2, pp=4, vpp=2)).to_dict()
    text, record = made(tmp_path, source)
    assert "timeline" not in record["pictures"]
    assert "do not fill groups of 4" in text


# --- what is embedded ------------------------------------------------------------------------------------


def test_the_plan_in_detail_is_embedded_whole_and_others_in_short(tmp_path):
    text, _ = made(tmp_path, planned(), rank=3)
    plans = data_of(text)["result"]["plans"]
    assert plans[2] == planned()["plans"][2]
    assert "stages" not in plans[0]
    assert plans[0]["predicted"] == planned()["plans"][0]["predicted"]
    assert data_of(text)["result"]["inputs"] == planned()["inputs"]


def test_what_is_too_large_is_left_out_and_said(tmp_path, monkeypatch):
    from shardwright.planner.report.html import document

    whole, _ = made(tmp_path, planned())
    monkeypatch.setattr(document, "LIMIT_BYTES", len(whole.encode()))
    text, record = made(tmp_path, planned(), force=True)
    assert "inputs.calibration.inline" in record["notes"][0]
    assert data_of(text)["result"]["inputs"]["calibration"]["inline"] is None
    monkeypatch.setattr(document, "LIMIT_BYTES", 1_000)
    with pytest.raises(InvalidValueError, match="larger than"):
        report(planned(), tmp_path / "s.html")


def test_a_very_long_step_is_folded(tmp_path, monkeypatch):
    from shardwright.planner.report.html import timeline

    monkeypatch.setattr(timeline, "DRAWN", 3200)
    text, _ = made(tmp_path, deep())
    line = data_of(text)["pictures"]["timeline"]
    for stage in line["stages"]:
        assert len(stage["codes"]) == 200
        assert stage["fold"]["operations"] + 200 == 2 * 2 * deep()["parallel"]["micro_batches"]
        assert sum(count for _, count in stage["micro_batches"]) == 200
    assert "the first and the last are drawn" in text


# --- files -----------------------------------------------------------------------------------------------


def test_pictures_are_files_too(tmp_path):
    _, record = made(tmp_path, planned(), figures=tmp_path / "deep" / "f")
    names = {f"{picture}.svg" for picture in record["pictures"]}
    assert {p.name for p in (tmp_path / "deep" / "f").iterdir() if p.suffix == ".svg"} == names
    for name in names:
        root = ElementTree.parse(tmp_path / "deep" / "f" / name).getroot()
        assert root.tag == f"{SVG}svg"
        assert "var(" not in (tmp_path / "deep" / "f" / name).read_text(encoding="utf-8")
        assert len(list(root.iter(f"{SVG}text"))) > 3


def test_png_files_or_what_they_need(tmp_path, monkeypatch):
    class Renderer:
        @staticmethod
        def svg_to_bytes(svg_string, zoom):
            return b"\x89PNG" + str(len(svg_string)).encode()

    monkeypatch.setattr(figures, "_renderer", lambda: Renderer)
    _, record = made(tmp_path, planned(), figures=tmp_path / "f")
    assert {p.suffix for p in (tmp_path / "f").iterdir()} == {".svg", ".png"}
    assert record["notes"] == []
    monkeypatch.setattr(figures, "_renderer", lambda: None)
    _, record = made(tmp_path, planned(), figures=tmp_path / "g", force=True)
    assert "pip install resvg-py" in record["notes"][0]


def test_png_files_are_pictures(tmp_path):
    pytest.importorskip("resvg_py", reason="extra `figures` is not installed")
    made(tmp_path, planned(), figures=tmp_path / "f")
    for file in (tmp_path / "f").glob("*.png"):
        assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert file.stat().st_size > 5_000


def test_nothing_is_replaced_unasked(tmp_path):
    (tmp_path / "r.html").write_text("mine", encoding="utf-8")
    with pytest.raises(ConflictError, match="exists already") as caught:
        report(planned(), tmp_path / "r.html")
    assert caught.value.where == "-o"
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == "mine"
    report(planned(), tmp_path / "r.html", force=True)
    assert "llama3-8b" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_nothing_is_written_if_a_picture_is_in_the_way(tmp_path):
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "time.svg").write_text("mine", encoding="utf-8")
    with pytest.raises(ConflictError, match=r"time.svg"):
        report(planned(), tmp_path / "r.html", figures=tmp_path / "f")
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["time.svg"]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for target, more in (
        (tmp_path, {}),
        (tmp_path / "file" / "r.html", {}),
        (tmp_path / "r.html", {"figures": tmp_path / "file"}),
    ):
        with pytest.raises(InvalidValueError):
            report(planned(), target, **more)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_picture_that_cannot_be_written_leaves_no_page(tmp_path, monkeypatch):
    from pathlib import Path

    from shardwright.planner.report.html.writing import write_files

    whole = {tmp_path / "a.html": b"a", tmp_path / "b" / "c": b"c"}
    (tmp_path / "b").write_text("", encoding="utf-8")
    with pytest.raises(InvalidValueError):
        write_files(whole, "-o")
    assert [p.name for p in Path(tmp_path).iterdir()] == ["b"]


# --- sources ---------------------------------------------------------------------------------------------


def test_sources_are_read_or_refused(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps(sweep()), encoding="utf-8")
    assert made(tmp_path, str(tmp_path / "sweep.json"))[1]["pictures"] == ["scaling"]
    for text in ("{", "[]", '{"kind": "emission", "schema_version": 1}', '{"kind": "sweep-result", "points": []}'):
        (tmp_path / "bad.json").write_text(text, encoding="utf-8")
        with pytest.raises((DamagedFileError, InvalidValueError)):
            report(str(tmp_path / "bad.json"), tmp_path / "x.html")
    with pytest.raises(InvalidValueError, match="no rank 99"):
        report(planned(), tmp_path / "x.html", rank=99)
    with pytest.raises(ConflictError, match="no ranks"):
        report(sweep(), tmp_path / "x.html", rank=2)
    assert not (tmp_path / "x.html").exists()


def test_a_store_is_read_without_the_sweep_that_filled_it(tmp_path):
    from shardwright.planner.sweep.run import sweep as run

    store = tmp_path / "points.db"
    models = ["llama3-8b", "llama3-70b"]
    run(models, node="dgx-h100", nodes=[2, 1], seq_len=2048, global_batch=64, engine="local", workers=1, store=store)
    text, record = made(tmp_path, str(store))
    assert record["pictures"] == ["scaling"]
    points = data_of(text)["result"]["points"]
    said = [(p["key"]["model"], p["key"]["gpus"], p["status"]) for p in points]
    assert said[:2] == [("llama3-70b", 8, "infeasible"), ("llama3-70b", 16, "ok")]
    assert said[2:] == [("llama3-8b", 8, "ok"), ("llama3-8b", 16, "ok")]
    assert "about" not in points[0]
    (tmp_path / "other.db").write_bytes(b"SQLite format 3\0" + b"\0" * 100)
    with pytest.raises(DamagedFileError, match="no store of sweeps"):
        report(str(tmp_path / "other.db"), tmp_path / "x.html")


# --- colours -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_letters_can_be_read(dark):
    paper = {name: pair[dark] for name, pair in colours.PAPER.items()}
    for letters in ("text", "muted", "accent"):
        for ground in ("bg", "surface", "raised"):
            assert colours.contrast(paper[letters], paper[ground]) >= 4.5, (letters, ground)
    for name, pair in colours.FILLS.items():
        if name.startswith(("p-", "m-", "f-", "c-")) and name not in {"m-reserve", "p-bubble", "f-fold"}:
            assert colours.contrast(pair[dark], paper["surface"]) >= 1.6, name


def test_numbers_on_stages_can_be_read():
    assert all(colours.contrast(colours.ink(fill), fill) >= 4.5 for fill in colours.STAGES)
    assert len(set(colours.STAGES)) == len(colours.STAGES) == 12
