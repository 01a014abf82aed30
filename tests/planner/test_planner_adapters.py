"""States, time and fit of adapters and frozen modules, and what packed documents cost, by hand arithmetic."""

import json

import numpy as np
import pytest
from planner_problems import degrees_at, some_rows

from shardwright.models.catalog import load_model
from shardwright.planner.estimation import estimate, estimate_degrees, estimate_plan
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem, problem_from_inputs
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan
from shardwright.planner.search.scan import scan
from shardwright.planner.search.space import declare, enumerate_legal
from shardwright.planner.stacks import load_stack

LORA = "rank=16,targets=qkv+out_proj+gate_up+down"
SMALL = {"model": "llama3.1-8b", "cluster": "dgx-h100:1", "seq_len": 4096, "global_batch": 32}
CARDS = {"model": "qwen3-30b-a3b", "cluster": "rtx-4090-pcie-8:1x4", "seq_len": 2048, "global_batch": 16}
GB = 1e9


def priced(job, degrees=None, **options):
    return estimate(**job, degrees=Degrees(**(degrees or {})), options=PricingOptions(**options)).to_dict()


def memory(record, stage=0):
    return record["stages"][stage]["memory"]


# --- states ------------------------------------------------------------------------------------------


def test_states_of_adapters_by_hand():
    """Frozen weights in 16 bits alone; 2 + 4 + 12 bytes an adapter parameter; r (k + n) of them a product."""
    adapters = 32 * 16 * ((4096 + 6144) + (4096 + 4096) + (4096 + 28672) + (14336 + 4096))
    base = load_model("llama3.1-8b").parameters
    got = priced(SMALL, {"zero": 0, "recompute": "full"}, lora=LORA)
    assert got["model"]["parameters"] == base
    assert got["model"]["trainable_parameters"] == adapters == 35_651_584
    assert memory(got)["parameters_bytes"] == 2 * (base + adapters)
    assert memory(got)["gradients_bytes"] == 4 * adapters
    assert memory(got)["optimizer_bytes"] == 12 * adapters


def test_only_adapters_are_reduced_and_gathered():
    got = priced(SMALL, {"zero": 1, "recompute": "full"}, lora=LORA)
    sent = {row["collective"]: row["message_bytes"] for row in got["communication"]}
    assert sent == {"reduce_scatter": 4 * 35_651_584, "all_gather": 2 * 35_651_584}
    assert memory(got)["optimizer_bytes"] == 12 * 35_651_584 / 8


def test_sharded_data_parallelism_gathers_frozen_weights_too():
    got = priced(SMALL, {"zero": 3, "recompute": "full"}, lora=LORA, framework="pytorch")
    rows = {row["collective"]: row for row in got["communication"]}
    passes = 2 * got["parallel"]["micro_batches"]
    total = rows["all_gather"]["message_bytes"] * rows["all_gather"]["count_per_step"] / passes
    assert total == pytest.approx(2 * (load_model("llama3.1-8b").parameters + 35_651_584), rel=1e-6)
    reduced = rows["reduce_scatter"]["message_bytes"] * rows["reduce_scatter"]["count_per_step"]
    width = 2 if got["inputs"]["training"]["grad_bytes"] == 2 else 4
    assert reduced == pytest.approx(width * 35_651_584 * got["parallel"]["micro_batches"], rel=1e-6)


def test_frozen_weights_are_replicated_until_everything_is_sharded():
    """34.4 B parameters with 33.5 B of them frozen: 64 GiB on each of 8 GPUs under ZeRO 2, an eighth under ZeRO 3."""
    job = {"model": "yi-34b", "cluster": "dgx-h200:1", "seq_len": 2048, "global_batch": 16}
    options = {"freeze": ("attention+mlp", "norms"), "framework": "deepspeed"}
    base = load_model("yi-34b").parameters
    by_stage = {zero: priced(job, {"zero": zero, "recompute": "full"}, **options) for zero in (1, 2, 3)}
    assert by_stage[2]["model"]["trainable_parameters"] == 2 * 64000 * 7168
    for zero, got in by_stage.items():
        assert memory(got)["parameters_bytes"] == pytest.approx(2 * base / (8 if zero == 3 else 1), rel=1e-3)
        scratch = load_stack("deepspeed").optimizer_scratch_bytes
        assert memory(got)["optimizer_bytes"] == pytest.approx((12 + scratch) * 2 * 64000 * 7168 / 8, rel=1e-3)
    assert 64 * GB < memory(by_stage[2])["parameters_bytes"] < 69 * GB
    assert memory(by_stage[2])["parameters_bytes"] / 2**30 == pytest.approx(64, abs=1)
    assert memory(by_stage[3])["parameters_bytes"] == pytest.approx(8.6 * GB, rel=0.01)


def test_seventy_billion_frozen_parameters():
    job = {"model": "llama3.1-70b", "cluster": "dgx-h200:1", "seq_len": 2048, "global_batch": 8}
    got = priced(job, {"tp": 8, "zero": 0, "recompute": "full"}, lora="rank=8,targets=attention")
    share = 2 * load_model("llama3.1-70b").parameters / 8
    assert share <= memory(got)["parameters_bytes"] < 1.01 * share
    columns, rows = 8192 + 8192, 8192 + 1024  # A of q, k, v and B of o stand whole on every rank
    whole, split = 3 * 8192 + 8192, 8192 + 2 * 1024 + 8192
    assert whole + split == 2 * columns + 2 * rows
    assert memory(got)["optimizer_bytes"] == 12 * 8 * 80 * (whole + split / 8)


def test_a_tied_head_that_is_frozen_exchanges_nothing_between_stages():
    job = {"model": "gpt2", "cluster": "dgx-a100-80g:1x2", "seq_len": 1024, "global_batch": 8}
    tied = [r for r in priced(job, {"pp": 2})["communication"] if (r["axis"], r["collective"]) == ("pp", "all_reduce")]
    frozen = priced(job, {"pp": 2}, freeze=("embeddings",))
    assert tied
    assert not [r for r in frozen["communication"] if (r["axis"], r["collective"]) == ("pp", "all_reduce")]


# --- fit and time ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "fits"),
    [({"ep": 4, "zero": 1}, True), ({"zero": 3}, True), ({"ep": 2, "zero": 1}, False), ({"ep": 2, "zero": 0}, False)],
)
def test_thirty_billion_parameters_on_four_cards(degrees, fits):
    """Adapters of a 30B-A3B on four cards of 24 GB: experts over all of them, or all sharded; not experts over two."""
    got = priced(CARDS, {**degrees, "recompute": "full"}, lora=LORA, framework="megatron")
    assert got["feasible"] is fits
    if not fits:
        experts = 2 * load_model("qwen3-30b-a3b").expert_parameters / 2
        assert experts > memory(got)["capacity_bytes"]
        assert memory(got)["parameters_bytes"] > experts
        assert [v["rule"] for v in got["violations"]] == ["memory"]


def test_the_search_finds_a_plan_of_adapters_where_nothing_fits_without():
    options = PricingOptions(lora=LORA)
    assert plan(**CARDS, options=options, search=SearchOptions(top=1, workers=1)).exit_code == 0
    assert plan(**CARDS, search=SearchOptions(top=1, workers=1)).exit_code == 1


@pytest.mark.parametrize("degrees", [{"zero": 1}, {"tp": 2, "zero": 1}, {"zero": 3}, {"pp": 2}, {"tp": 4, "recompute": "full"}])
def test_freezing_never_costs(degrees):
    full = priced(SMALL, degrees, framework="pytorch" if degrees.get("zero") == 3 else "megatron")
    for options in ({"freeze": ("mlp",)}, {"freeze": ("attention", "mlp", "norms")}, {"lora": LORA}):
        less = priced(SMALL, degrees, framework="pytorch" if degrees.get("zero") == 3 else "megatron", **options)
        assert less["predicted"]["step_time_s"] < full["predicted"]["step_time_s"]
        assert less["memory"]["peak_bytes"] < full["memory"]["peak_bytes"]


def test_a_larger_rank_costs_more():
    made = [priced(SMALL, {"tp": 2}, lora=f"rank={rank},targets=attention") for rank in (8, 64, 512)]
    for key in ("step_time_s", "model_tflops_per_gpu"):
        assert made[0]["predicted"][key] != made[2]["predicted"][key]
    assert made[0]["predicted"]["step_time_s"] < made[1]["predicted"]["step_time_s"] < made[2]["predicted"]["step_time_s"]
    assert made[0]["memory"]["peak_bytes"] < made[1]["memory"]["peak_bytes"] < made[2]["memory"]["peak_bytes"]


def test_model_flops_leave_out_gradients_of_frozen_weights():
    full, less = priced(SMALL, {"zero": 1}), priced(SMALL, {"zero": 1}, lora="rank=1,targets=v_proj")
    per_step = [r["predicted"]["model_tflops_per_gpu"] * r["predicted"]["step_time_s"] for r in (full, less)]
    weights = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    attention, adapters = 32 * 4 * 4096 * 4096, 32 * (4096 + 1024)
    expected = (4 * weights + 6 * adapters + 3 * attention) / (6 * weights + 3 * attention)
    assert per_step[1] / per_step[0] == pytest.approx(expected, rel=1e-9)


def test_frozen_products_gather_their_input_once():
    def gathers(record):
        return sum(r["count_per_step"] for r in record["communication"] if (r["axis"], r["collective"]) == ("tp", "all_gather"))

    plain, frozen = (priced(SMALL, {"tp": 2}, framework="megatron", **o) for o in ({}, {"freeze": ("mlp",)}))
    assert gathers(plain) - gathers(frozen) == 32 * plain["parallel"]["micro_batches"]


# --- one truth, round trip, assumptions --------------------------------------------------------------


def test_the_search_and_the_estimate_price_alike():
    problem = build_problem(**CARDS, options=PricingOptions(lora=LORA))
    made = scan(problem, enumerate_legal(problem, declare(problem, {"pp": "1"})), workers=1)
    for index in some_rows(made, 12):
        got = estimate_degrees(problem, degrees_at(made, index))
        assert got["predicted"]["step_time_s"] == pytest.approx(made.step_s[index], rel=1e-9)
        assert got["memory"]["peak_bytes"] == made.peak_bytes[index]


def test_saved_plans_price_again(tmp_path):
    path = tmp_path / "histogram.csv"
    path.write_text("512,100\n4096,7\n", encoding="utf-8")
    options = PricingOptions(lora=LORA, freeze=("all",), length_histogram=path)
    first = estimate(**SMALL, degrees=Degrees(tp=2, zero=1), options=options).to_dict()
    path.unlink()
    again = estimate_plan(json.loads(json.dumps(first))).to_dict()
    assert first["inputs"]["training"]["lora"] == {"rank": 16, "targets": LORA.split("targets=")[1].split("+")}
    assert again["inputs"] == first["inputs"]
    assert again["predicted"] == first["predicted"]
    assert again["stages"] == first["stages"]
    assert again["model"] == first["model"]
    problem = problem_from_inputs(first["inputs"])
    assert problem.job.lengths.rows == ((512, 100), (4096, 7))


def test_what_is_in_force_is_listed_and_nothing_else_is():
    plain, given = priced(SMALL), priced(SMALL, lora="rank=4,targets=mlp")
    listed = {row["key"]: (row["value"], row["origin"]) for row in given["assumptions"]}
    assert listed["training.lora.rank"] == (4, "given")
    assert listed["training.lora.targets"] == ("mlp", "given")
    assert listed["training.frozen"] == ("all but adapters", "given")
    assert "model.flops" in listed
    assert any("expressible_by" in text for text in given["warnings"])
    assert not any("expressible_by" in text for text in plain["warnings"])
    assert not [row for row in plain["assumptions"] if "lora" in row["key"] or "lengths" in row["key"]]
    assert "trainable_parameters" not in plain["model"]
    assert set(plain["inputs"]["training"]) == {"seq_len", "global_batch", "precision", "optimizer", "grad_bytes"}


# --- packed documents --------------------------------------------------------------------------------


@pytest.fixture
def histogram(tmp_path):
    def write(*rows):
        path = tmp_path / "histogram.csv"
        path.write_text("".join(f"{length},{count}\n" for length, count in rows), encoding="utf-8")
        return path

    return write


LONG = {**SMALL, "seq_len": 32768, "global_batch": 16}


@pytest.mark.parametrize("degrees", [{"zero": 1, "recompute": "full"}, {"cp": 4, "zero": 1}, {"tp": 2, "cp": 2, "pp": 2}])
def test_whole_documents_change_nothing(histogram, degrees):
    plain, packed = priced(LONG, degrees), priced(LONG, degrees, length_histogram=histogram((32768, 5)))
    assert packed["predicted"]["step_time_s"] == pytest.approx(plain["predicted"]["step_time_s"], rel=1e-12)
    assert packed["predicted"]["mfu"] == pytest.approx(plain["predicted"]["mfu"], rel=1e-12)


@pytest.mark.parametrize("degrees", [{"zero": 1, "recompute": "full"}, {"cp": 4, "zero": 1}])
def test_shorter_documents_are_faster_and_do_less(histogram, degrees):
    steps, flops = [], []
    for length in (32768, 8192, 1024):
        got = priced(LONG, degrees, length_histogram=histogram((length, 5)))
        steps.append(got["predicted"]["step_time_s"])
        flops.append(got["predicted"]["model_tflops_per_gpu"] * steps[-1])
    assert steps[0] > steps[1] > steps[2]
    assert flops[0] > flops[1] > flops[2]


def test_uneven_documents_wait_for_the_slowest(histogram):
    rows = ((512, 1000), (4096, 100), (32768, 10))
    got = priced(LONG, {"zero": 1, "recompute": "full"}, length_histogram=histogram(*rows))
    assert got["time"]["bubble_s"] > 0
    assert sum(got["time"].values()) == pytest.approx(got["predicted"]["step_time_s"], rel=1e-9)
    listed = {row["key"]: row["value"] for row in got["assumptions"]}
    total = sum(c * n for n, c in rows)
    assert listed["training.lengths.attended"] == pytest.approx(sum(c * n * n for n, c in rows) / total)
    assert listed["training.lengths.documents"] == 1110


def test_context_parallel_ranks_wait_in_every_micro_batch(histogram):
    path = histogram((512, 1000), (32768, 10))
    wide = priced({**LONG, "global_batch": 64}, {"cp": 8, "zero": 1}, length_histogram=path)
    assert wide["parallel"]["dp"] == 1
    assert wide["time"]["bubble_s"] > 0


def test_scores_that_cross_documents_are_computed_where_attention_is_not_fused(histogram):
    job = {"model": "gpt2", "cluster": "dgx-a100-80g:1", "seq_len": 1024, "global_batch": 8}
    stack = {"stack": "megatron-2021"}
    plain, packed = priced(job, **stack), priced(job, **stack, length_histogram=histogram((128, 5), (1024, 1)))
    assert packed["predicted"]["step_time_s"] == plain["predicted"]["step_time_s"]


def test_a_plan_of_packed_documents_prices_as_its_estimate(histogram):
    options = PricingOptions(length_histogram=histogram((512, 1000), (4096, 100), (32768, 10)))
    made = plan(**LONG, options=options, search=SearchOptions(top=2, workers=1))
    best = made.plans[0]
    again = estimate_plan(made.to_dict(), rank=1).to_dict()
    assert again["predicted"] == best["predicted"]
    assert np.isclose(sum(best["time"].values()), best["predicted"]["step_time_s"], rtol=1e-9)
