"""Errors by what runs are: labels, sums over sources, and the table."""

import pytest
from rows import fake_estimate, row
from test_validate import found

from shardwright.errors import UnknownNameError
from shardwright.planner.problem import PricingOptions
from shardwright.planner.report.output import render
from shardwright.planner.report.style import Style
from shardwright.planner.validation.labels import SCALES, WAYS, labels_of, ordered
from shardwright.planner.validation.rows import read_run
from shardwright.planner.validation.summary import Outcome, broken_down

A100, LORA = {"node": "dgx-a100-80g"}, {"model": "Llama-2-7B [lora]"}
EXPERTS = {"model": "Mixtral-8x7B", "params_b": 46.7, "ffn": 14336, "kv_heads": 8, "experts": 8, "topk": 2}


def labels(**cells):
    return labels_of(read_run(row(**cells), PricingOptions()).problem)


@pytest.mark.parametrize(
    ("cells", "way", "label"),
    [
        ({}, "hardware", "hopper"), (A100, "hardware", "ampere"), ({}, "kind", "dense"), (LORA, "kind", "fine-tuning"),
        (EXPERTS, "kind", "experts"), ({"gpus": 8}, "scale", SCALES[0]), ({"gpus": 16}, "scale", SCALES[1]),
        ({"gpus": 64}, "scale", SCALES[1]), ({"gpus": 512, "global_batch": 512}, "scale", SCALES[2]),
        ({"gpus": 1024, "global_batch": 512}, "scale", SCALES[3]), ({}, "precision", "bf16"),
        ({"precision": "FP8"}, "precision", "fp8"), ({"precision": "NVFP4", "node": "dgx-b200"}, "precision", "fp4"),
    ],
)  # fmt: skip
def test_labels(cells, way, label):
    assert labels(**cells)[way] == label


def test_every_way_labels_every_run():
    assert set(labels()) == set(WAYS)


def test_labels_are_shown_in_a_natural_order():
    assert ordered("precision", {"fp8", "bf16", "fp32", "odd"}) == ["fp32", "bf16", "fp8", "odd"]
    assert ordered("scale", reversed(SCALES)) == list(SCALES)


def outcome(group, error, **labels_):
    return Outcome(
        source_group=group, choice="c", scored=True, measured_s=1.0, predicted_s=1 + error, labels=labels_, fits=True
    )


def test_a_label_averages_its_sources_not_its_rows():
    rows = [outcome("a", 0.1, kind="dense")] * 9 + [outcome("b", 0.5, kind="dense"), outcome("b", 0.2, kind="experts")]
    rows += [outcome("loose", 9.0, kind="dense"), Outcome(source_group="a", choice="c", scored=False, skipped_because="no")]
    summed = broken_down(rows, "kind", {"loose"})
    assert list(summed) == ["dense", "experts"]
    assert summed["dense"]["median"] == pytest.approx(0.3)
    assert (summed["dense"]["scored"], summed["dense"]["groups"]) == (10, 2)
    assert summed["experts"]["groups"] == 1


def test_the_document_breaks_errors_down_every_way(tmp_path):
    data, rows, summary = found(tmp_path, row(), row(**A100, source_group="h", gpus=64), row(model="x [qlora]"))
    for way in WAYS:
        parts = data[f"by_{way}"]
        assert sum(part["scored"] for part in parts.values()) == summary["scored"] == 2
        assert {r["labels"][way] for r in rows[:2]} == set(parts)
    assert rows[2]["labels"] == {}
    assert data["by_hardware"]["ampere"]["median"] == data["by_source"]["h"]["median"]


def test_shares_of_the_step_come_with_every_row(tmp_path):
    _, rows, _ = found(tmp_path, row(global_batch=65), row(model="x [qlora]"))
    assert rows[0]["time_shares"] == {"compute": pytest.approx(0.75), "exposed_tp": pytest.approx(0.25)}
    assert rows[1]["time_shares"] == {}


def test_the_width_of_the_interval_is_stated(tmp_path):
    _, _, summary = found(tmp_path, row(step_time_s=1.05), row(step_time_s=3.0))
    assert summary["interval_width"] == pytest.approx(0.2)
    assert summary["interval_coverage"] == 0.5


@pytest.mark.parametrize("by", WAYS)
def test_the_table_is_by_what_is_asked_for(tmp_path, by):
    data, _, _ = found(tmp_path, row(), row(**A100, gpus=128, precision="FP16", step_time_s=1.5), by=by)
    table = render(data, "table", Style(width=100, colour=False)).split("\n\n")[0].splitlines()
    assert table[0].split()[:3] == [by, "scored", "sources"]
    assert [line.split("  ")[0] for line in table[1 : 1 + len(data[f"by_{by}"])]] == list(data[f"by_{by}"])


def test_the_worst_rows_say_where_their_predicted_time_goes(tmp_path):
    def estimator(problem, degrees):
        made = fake_estimate(problem, degrees)
        if degrees.tp == 8:
            made["time"] = {"compute_s": 0.4, "exposed_tp_s": 0.6}
        return made

    runs = [row(tp=8, pp=1, step_time_s=3.0), *[row(step_time_s=1.0)] * 19]
    data, _, _ = found(tmp_path, *runs, estimator=estimator)
    text = " ".join(render(data, "table", Style(width=100, colour=False)).split())
    assert "beside compute" in text
    assert "tp 60 %" in text
    assert "The worst 2 runs spend more of the predicted step in tp 42 % (all: 27 %)." in text


def test_an_unknown_breakdown_is_misuse(tmp_path):
    with pytest.raises(UnknownNameError):
        found(tmp_path, row(), by="colour")
