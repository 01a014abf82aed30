"""The whole command: rows in, the JSON document out."""

import csv
import json
import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import fake_estimate, row

from shardwright.documents import rounded
from shardwright.errors import ConflictError, ShardwrightError, UnknownNameError
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.offloading import offload_of
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.report.output import render
from shardwright.planner.report.style import Style
from shardwright.planner.site.shrinkage import interval_share, site_shift
from shardwright.planner.validation.rows import price_run, read_run
from shardwright.planner.validation.run import UNSCORED_GROUPS, validate

SUMMARY = {
    "rows", "scored", "skipped", "median", "mean", "p90", "bias", "memory_median", "memory_p90", "oom_called", "ran_refused",
    "tau", "regret", "jobs_ranked", "interval_coverage", "interval_width", "groups",
}  # fmt: skip
ROW = {
    "id", "source_group", "status", "reason", "measured_step_time_s", "predicted_step_time_s", "error", "interval_low_s",
    "interval_high_s", "measured_peak_gib", "predicted_peak_gib", "memory_error", "outcome", "predicted_fits",
}  # fmt: skip


def write(path, *rows):
    names = [f.name for f in fields(rows[0]) if f.name != "line"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for number, run in enumerate(rows):
            cells = {name: getattr(run, name) for name in names}
            writer.writerow({k: "" if v is None else v for k, v in cells.items()} | {"id": f"r{number}"})
    return path


def found(tmp_path, *rows, estimator=fake_estimate, **options):
    data = validate(write(tmp_path / "runs.csv", *rows), estimator=estimator, **options).to_dict()
    return data, data["rows"], data["summary"]


def test_the_document_has_the_agreed_keys(tmp_path):
    data, rows, summary = found(tmp_path, row(), row(source_group="h", peak_mem_gib=40.0, memory_meter="allocated"))
    assert data["kind"] == "validation"
    assert set(summary) == SUMMARY
    assert set(data["by_source"]) == {"g", "h"}
    assert all(set(group) == SUMMARY for group in data["by_source"].values())
    assert all(set(r) >= ROW for r in rows)
    json.dumps(rounded(data), allow_nan=False)


def test_errors_are_predicted_over_measured(tmp_path):
    _, rows, summary = found(tmp_path, row(step_time_s=2.0), row(step_time_s=0.8))
    assert [r["error"] for r in rows] == [pytest.approx(-0.5), pytest.approx(0.25)]
    assert summary["median"] == pytest.approx(0.375)
    assert summary["bias"] == pytest.approx(-0.125)


def test_memory_is_compared_in_the_meter_of_the_row(tmp_path):
    def estimator(problem, degrees):
        result = fake_estimate(problem, degrees)
        result["memory"]["meters"] = {"allocated_bytes": 10 * 2**30, "reserved_bytes": 20 * 2**30, "device_bytes": 30 * 2**30}
        return result

    cells = [row(peak_mem_gib=20.0, memory_meter=meter) for meter in ("allocated", "reserved", "device", "")]
    _, rows, _ = found(tmp_path, *cells, estimator=estimator)
    assert [r["memory_error"] for r in rows] == [pytest.approx(e) for e in (-0.5, 0.0, 0.5, 0.0)]


def test_out_of_memory_runs_and_memory_only_runs(tmp_path):
    oom = row(outcome="oom", step_time_s=None)
    memory_only = row(step_time_s=None, peak_mem_gib=40.0)
    _, rows, summary = found(tmp_path, oom, memory_only, row(), estimator=lambda p, d: fake_estimate(p, d, filled=1.2))
    assert [r["status"] for r in rows] == ["ok"] * 3
    assert [r["error"] is None for r in rows] == [True, True, False]
    assert rows[1]["memory_error"] is not None
    assert (summary["oom_called"], summary["ran_refused"]) == (1.0, 1.0)
    assert rows[0]["predicted_fits"] is False


def test_skipped_rows_are_counted_with_a_reason(tmp_path):
    lora, blank = row(model="Llama-2-7B [qlora]"), row(step_time_s=None)
    _, rows, summary = found(tmp_path, lora, blank, row())
    assert [r["status"] for r in rows] == ["skipped", "skipped", "ok"]
    assert "LoRA" in rows[0]["reason"]
    assert "neither a time nor a memory" in rows[1]["reason"]
    assert rows[2]["reason"] is None
    assert (summary["rows"], summary["scored"], summary["skipped"]) == (3, 1, 2)


def test_a_node_nobody_knows_is_skipped_beside_others_and_refused_alone(tmp_path):
    odd = row(node="dgx-h1000")
    _, rows, _ = found(tmp_path, odd, row())
    assert rows[0]["reason"].startswith("unknown node preset 'dgx-h1000' (did you mean dgx-h100")
    with pytest.raises(UnknownNameError) as caught:
        found(tmp_path, odd)
    assert caught.value.where.endswith("runs.csv:2: node")
    assert "dgx-h100" in caught.value.hint


def test_a_file_of_which_nothing_is_modelled_is_an_answer(tmp_path):
    _, rows, summary = found(tmp_path, row(model="Llama-2-7B [qlora]"), row(precision="int3"))
    assert [r["status"] for r in rows] == ["skipped"] * 2
    assert summary["skipped"] == 2


def test_the_table_names_the_first_run_of_a_reason(tmp_path):
    data, _, _ = found(tmp_path, row(precision="int3"), row(), row(precision="int3"))
    assert "2 × the precision 'int3' is not known: r0, …" in render(data, "table", Style(width=100))


def test_runs_of_adapters_are_priced_as_such(tmp_path):
    lora = {"model": "Llama-2-7B [lora]"}
    runs = row(), row(**lora), row(**lora, notes="LoRA rank-256")
    _, rows, summary = found(tmp_path, *runs, estimator=estimate_degrees)
    assert summary["scored"] == 3
    full, small, large = (r["predicted_step_time_s"] for r in rows)
    assert small < large < full


def test_flagged_rows_and_unscored_groups_are_reported_and_not_averaged(tmp_path):
    rows = [row(step_time_s=1.25), row(step_time_s=9.0, notes="FLAG: something"), row(step_time_s=9.0, source_group="loose")]
    data, made, summary = found(tmp_path, *rows, unscored_groups=("loose",))
    assert summary["median"] == pytest.approx(0.2)
    assert [r["scored"] for r in made] == [True, False, False]
    assert all(r["error"] is not None for r in made)
    assert data["by_source"]["loose"]["scored"] == 0
    assert data["by_source"]["loose"]["median"] == pytest.approx(8 / 9)
    assert data["unscored_groups"] == ["loose"]
    assert found(tmp_path, *rows, unscored_groups=())[2]["scored"] == 2
    assert UNSCORED_GROUPS == ("bs-v100", "nanotron-log", "internevo-mem")


def test_words_that_contain_flag_are_no_flag(tmp_path):
    _, made, _ = found(tmp_path, row(notes="no FLAGS set"))
    assert made[0]["scored"]


def test_an_anchor_calibrates_its_group_and_is_not_scored(tmp_path):
    rows = [
        row(step_time_s=1.1),
        row(step_time_s=1.2),
        row(step_time_s=1.0, source_group="h"),
        row(source_group="i", step_time_s=3.0),
    ]
    _, made, summary = found(tmp_path, *rows, anchor="first")
    assert [r["scored"] for r in made] == [False, True, False, False]
    assert 1.0 < made[1]["predicted_step_time_s"] < 1.1
    assert made[1]["interval_high_s"] == pytest.approx((1 + 0.1 * interval_share(1)) * made[1]["predicted_step_time_s"])
    assert made[2]["predicted_step_time_s"] == pytest.approx(1.0)
    assert summary["scored"] == 1


@pytest.mark.parametrize("other", [{"framework": "torchtitan"}, {"node": "dgx-a100-80g"}, {"precision": "FP8"}])
def test_an_anchor_says_nothing_of_another_class(tmp_path, other):
    _, made, _ = found(tmp_path, row(step_time_s=1.1), row(**other), anchor="first")
    assert made[1]["predicted_step_time_s"] == pytest.approx(1.0)


@given(st.floats(-0.9, 5.0))
def test_an_anchor_never_moves_predictions_past_itself(error):
    shift, residual = site_shift(error), math.log1p(error)
    assert abs(shift) <= abs(residual)
    assert shift * residual >= 0


def test_an_odd_run_moves_predictions_less():
    assert site_shift(0.1) / math.log1p(0.1) > site_shift(1.0) / math.log1p(1.0)


def test_what_is_fitted_is_said(tmp_path):
    runs = [found(tmp_path, row(), row(tp=1), fit=fit)[0] for fit in ("all", "none", "loso")]
    assert runs[0]["summary"] == runs[1]["summary"] == runs[2]["summary"]  # the stand-in knows no factors
    assert [run["fit"] for run in runs] == ["all", "none", "loso"]
    assert len({run["note"] for run in runs}) == 3
    assert all("no blind test" in run["note"] for run in runs)


def test_wrong_words_are_misuse(tmp_path):
    with pytest.raises(UnknownNameError):
        found(tmp_path, row(), fit="some")
    with pytest.raises(UnknownNameError):
        found(tmp_path, row(), anchor="last")


def test_a_ragged_batch_is_scaled(tmp_path):
    _, made, _ = found(tmp_path, row(global_batch=65, step_time_s=1.0))
    assert made[0]["predicted_step_time_s"] == pytest.approx(65 / 64)
    assert "priced_batch=64" in made[0]["defaults"]


def test_ranking_is_within_one_job(tmp_path):
    def estimator(problem, degrees):
        return fake_estimate(problem, degrees, step_s=float(degrees.tp))

    rows = [
        row(tp=1, step_time_s=1.0),
        row(tp=2, step_time_s=3.0),
        row(tp=4, step_time_s=2.0),
        row(tp=4, step_time_s=0.1, gpus=32),
    ]
    _, _, summary = found(tmp_path, *rows, estimator=estimator)
    assert summary["tau"] == pytest.approx(1 / 3)
    assert summary["regret"] == 0.0


def test_runs_again_and_other_arithmetic_rank_nothing(tmp_path):
    _, _, summary = found(tmp_path, row(step_time_s=1.0), row(step_time_s=1.3), row(step_time_s=0.7, precision="FP8"))
    assert (summary["tau"], summary["regret"], summary["jobs_ranked"]) == (None, None, 0)


def test_the_first_legal_reading_is_priced():
    run = read_run(row(layers=30, pp=4, vp=2, gpus=16, params_b=6.3), PricingOptions())
    seen = []

    def estimator(problem, degrees):
        seen.append(degrees)
        return fake_estimate(problem, degrees, violations=("layers-stages",) if degrees.vpp > 1 else ())

    price_run(run, "reserved", estimator)
    assert seen[0].vpp == 2
    assert seen[-1] == Degrees(
        tp=2, pp=4, vpp=1, micro_batch=1, zero=1, sequence_parallel=True, recompute="none", layers_per_stage=(7, 8, 8, 7)
    )


def test_a_rule_that_refuses_every_reading_is_named(tmp_path):
    _, made, _ = found(tmp_path, row(), estimator=lambda p, d: fake_estimate(p, d, violations=("attention-heads",)))
    assert "attention-heads" in made[0]["reason"]


def test_memory_is_no_refusal(tmp_path):
    _, made, _ = found(tmp_path, row(), estimator=lambda p, d: fake_estimate(p, d, violations=("memory",), filled=2.0))
    assert made[0]["status"] == "ok"
    assert made[0]["predicted_fits"] is False


def test_blank_recompute_takes_the_cheapest_that_fits():
    run = read_run(row(framework="MaxText", recompute=""), PricingOptions())
    seen = []

    def estimator(problem, degrees):
        seen.append(degrees.recompute)
        return fake_estimate(problem, degrees, filled={"none": 1.5, "selective": 0.97, "full": 0.3}[degrees.recompute])

    assert price_run(run, "reserved", estimator).fits
    assert seen == ["none", "selective", "full"]


@pytest.mark.parametrize(("changes", "stages"), [
    ({}, [0, 1]), ({"zero_or_fsdp": "zero0"}, [0]), ({"outcome": "oom"}, [0, 1]), ({"framework": "Megatron-LM 2021"}, [0]),
])  # fmt: skip
def test_a_blank_sharding_of_deepspeed_is_one_that_fits(changes, stages):
    given = {"framework": "Megatron-DeepSpeed", "zero_or_fsdp": "", "recompute": "full", **changes}
    run = read_run(row(**given), PricingOptions())
    seen = []

    def estimator(problem, degrees):
        seen.append(degrees.zero)
        return fake_estimate(problem, degrees, filled={0: 1.2, 1: 0.5}[degrees.zero])

    assert price_run(run, "reserved", estimator).fits == (len(stages) > 1)
    assert list(dict.fromkeys(seen)) == stages


def test_errors_of_pricing_skip_the_row(tmp_path):
    def estimator(problem, degrees):
        raise ConflictError("these cannot both hold")

    _, made, _ = found(tmp_path, row(), estimator=estimator)
    assert "cannot both hold" in made[0]["reason"]


def test_options_apply_to_all_rows():
    run = read_run(row(), PricingOptions(stack="pytorch-fsdp2", overrides=("cluster.internode_bytes_per_s=25e9",)))
    assert run.problem.stack.id == "pytorch-fsdp2"
    assert run.problem.cluster.node.internode_bytes_per_s == 25e9


@pytest.mark.parametrize(
    ("text", "zero", "held"),
    [
        ("", "zero3", "none"),
        ("none", "zero3", "none"),
        ("optimizer", "zero2", "optimizer"),
        ("optimizer+params", "zero3", "optimizer,parameters"),
        ("full cpu offload", "zero3", "activations,optimizer,parameters"),
        ("full cpu offload", "zero1", "activations,optimizer"),
        ("activations:8layers", "zero1", "activations=0.25"),
        ("activation checkpoints in CPU", "zero1", "activations"),
    ],
)
def test_what_a_run_offloaded_is_read(text, zero, held):
    run = read_run(row(offload=text, zero_or_fsdp=zero), PricingOptions())
    assert {offload_of(degrees.offload).text for degrees in run.readings} == {held}


def test_an_offload_that_says_nothing_is_refused():
    with pytest.raises(ShardwrightError, match="offload of 'nvme-something'"):
        read_run(row(offload="nvme-something"), PricingOptions())


def test_published_runs_are_predicted(reference_data, tmp_path):
    """At most eight runs a source group, evenly taken; the benchmark `validate_runs.py` prints all of them."""
    cells = sample(reference_data / "ground_truth" / "measured_runs.csv", tmp_path / "some.csv", of_a_group=8)
    data = validate(tmp_path / "some.csv").to_dict()
    summary = data["summary"]
    assert summary["median"] < 0.13
    assert summary["mean"] < 0.2
    assert summary["oom_called"] > 0.5
    told = [r for r in data["rows"] if states_time_and_shape(cells[r["id"]])]
    skipped = [r["id"] for r in told if r["status"] == "skipped"]
    assert len(skipped) < 0.05 * len(told), skipped


def test_plans_of_one_job_are_ranked(reference_data, tmp_path):
    header, *lines = (reference_data / "ground_truth" / "vtrain_single_node.csv").read_text(encoding="utf-8").splitlines()
    chosen = [line for line in lines if ",GPT-h1024-L24," in line]
    (tmp_path / "some.csv").write_text("\n".join([header, *chosen]), encoding="utf-8")
    data = validate(tmp_path / "some.csv").to_dict()
    assert data["summary"]["scored"] == len(chosen) > 50
    assert data["summary"]["tau"] > 0.7
    assert 0 <= data["summary"]["regret"] < 0.15
    line = render(data, "table", Style(width=100)).splitlines()[1].split()
    assert line[-3:] == [f"{data['summary']['tau']:.2f}", f"{100 * data['summary']['regret']:.1f}", "%"]


def sample(source, target, of_a_group):
    with source.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    groups = {r["source_group"]: [] for r in rows}
    for r in rows:
        groups[r["source_group"]].append(r)
    chosen = [r for members in groups.values() for r in members[:: -(-len(members) // of_a_group)] if r["outcome"] == "ok"]
    chosen += [r for r in rows if r["outcome"] == "oom"]
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(chosen)
    return {r["id"]: r for r in chosen}


def states_time_and_shape(cells):
    timed = cells["step_time_s"] or cells["tokens_per_s_per_gpu"]
    degrees = cells["tp"] and cells["pp"]
    return timed and degrees and cells["layers"] and cells["hidden"] and "[lora]" not in cells["model"]
