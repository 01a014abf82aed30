"""Graphs are planned: priced like the native model of the same shape, split at layer borders, told on screen."""

import json
from dataclasses import replace

import pytest
from graph_files import FILES, NAMES

import shardwright
from shardwright import Degrees, PricingOptions, SearchOptions
from shardwright.cli import run
from shardwright.errors import ConflictError, InvalidValueError, UnsupportedError
from shardwright.models.catalog import load_model, load_spec
from shardwright.models.transformer import build_graph
from shardwright.planner.cost.context import make_context
from shardwright.planner.cost.network import network_of
from shardwright.planner.cost.sends import send_bytes
from shardwright.planner.cost.stages import fold
from shardwright.planner.plans import PlanBatch
from shardwright.planner.problem import build_problem
from shardwright.planner.settling import settle

TOLERANCE = {".pt2": 0.01, ".onnx": 0.03}
"""Of the step time of a graph against the native model of the same shape; ONNX has more operators. Stated in docs/graphs.md."""
PEAK_TOLERANCE = 0.005

PLANS = (
    {"micro_batch": 8, "zero": 3},
    {"micro_batch": 8, "zero": 0},
    {"micro_batch": 4, "pp": 2, "zero": 0},
    {"micro_batch": 4, "pp": 4, "vpp": 3, "zero": 0},
    {"micro_batch": 16, "zero": 3, "recompute": "full"},
)


WITHOUT_DROPOUT = build_graph(replace(load_model("gpt2").spec, dropout=False))
"""Of what the files hold: where masks are kept, a layer recomputed runs to its end, and not to the last product."""


def priced(model, **degrees):
    options = PricingOptions(framework="pytorch")
    return shardwright.estimate(
        model, "dgx-h100:1", seq_len=1024, global_batch=256, degrees=Degrees(**degrees), options=options
    ).to_dict()


@pytest.mark.parametrize("degrees", PLANS, ids=str)
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_a_gpt_from_a_graph_is_priced_like_the_preset(degrees, suffix):
    if suffix == ".onnx":
        pytest.importorskip("onnx")
    native, read = priced(WITHOUT_DROPOUT, **degrees), priced(str(FILES / f"gpt{suffix}"), **degrees)
    assert read["predicted"]["step_time_s"] == pytest.approx(native["predicted"]["step_time_s"], rel=TOLERANCE[suffix])
    assert read["memory"]["peak_bytes"] == pytest.approx(native["memory"]["peak_bytes"], rel=PEAK_TOLERANCE)
    assert read["predicted"]["mfu"] == pytest.approx(native["predicted"]["mfu"], rel=2 * TOLERANCE[suffix])
    states = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
    for ours, theirs in zip(read["stages"], native["stages"], strict=True):
        for part in states:
            assert ours["memory"][part] == pytest.approx(theirs["memory"][part], rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_every_graph_is_planned(name):
    search = SearchOptions(top=5, effort="scan")
    options = PricingOptions(framework="pytorch")
    result = shardwright.plan(
        str(FILES / f"{name}.pt2"), "dgx-h100:2", seq_len=None, global_batch=64, options=options, search=search
    )
    data = result.to_dict()
    assert result.exit_code == 0
    assert {plan["parallel"]["tp"] for plan in data["plans"]} == {1}
    assert {plan["parallel"]["cp"] for plan in data["plans"]} == {1}
    for plan in data["plans"]:
        layers = [i for stage in plan["stages"] for i in stage["layers"] if i is not None]
        assert sum(last - first + 1 for first, last in layers) == data["model"]["layers"]
        assert any("tensor, context and expert parallelism are not" in w for w in plan["warnings"])
    assert json.loads(json.dumps(data["inputs"]["model"])) == load_model(str(FILES / f"{name}.pt2")).to_dict()


def test_a_result_stands_alone(tmp_path):
    made = priced(str(FILES / "unet.pt2"), micro_batch=4, pp=2, zero=2)
    (tmp_path / "plan.json").write_text(json.dumps(made))
    again = shardwright.estimate_plan(str(tmp_path / "plan.json")).to_dict()
    assert again["predicted"] == made["predicted"]
    assert again["stages"] == made["stages"]
    assert again["inputs"]["model"] == made["inputs"]["model"]


def test_a_stage_border_sends_what_passes_over_it():
    """Skips of a U-Net are relayed: the message is the most that passes over a border of the split, not a hidden state."""
    problem = build_problem(str(FILES / "unet.pt2"), "dgx-h100:1", seq_len=None, global_batch=64)
    crossings = problem.graph.origin.crossings
    chunks = (5, 4, 4, 3)
    settled = settle(problem, Degrees(pp=4, micro_batch=2, zero=0, layers_per_stage=chunks))
    batch = PlanBatch.stack([settled.row])
    context, key = make_context(problem, batch, fold(problem.graph, [settled.split]), network_of(problem))
    places = (5, 9, 13)
    expected = max(sum(c.bytes(2, 1, 2) for c in crossings[place]) for place in places)
    assert send_bytes(context, key, batch.split)[0] == expected > 0


@pytest.mark.parametrize("degrees", [{"tp": 2}, {"cp": 2}])
def test_tensor_and_context_parallelism_are_refused_with_one_reason(degrees):
    data = priced(str(FILES / "gpt.pt2"), zero=0, **degrees)
    assert not data["feasible"]
    assert [v["rule"] for v in data["violations"]] == ["graph-axes"]
    assert data["predicted"] is None


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed"])
def test_targets_that_build_their_models_refuse_graphs(framework):
    with pytest.raises(ConflictError, match="read from a graph file") as caught:
        shardwright.plan(
            str(FILES / "gpt.pt2"),
            "dgx-h100:1",
            seq_len=None,
            global_batch=64,
            options=PricingOptions(framework=framework),
        )
    assert caught.value.where == "--framework"


def test_the_sequence_is_that_of_the_file():
    with pytest.raises(ConflictError, match="exported for sequences of 1024, not 512"):
        shardwright.estimate(str(FILES / "gpt.pt2"), "dgx-h100:1", seq_len=512, global_batch=8, degrees=Degrees())
    with pytest.raises(InvalidValueError, match="--seq-len is missing"):
        shardwright.estimate("gpt2", "dgx-h100:1", seq_len=None, global_batch=8, degrees=Degrees())


def test_what_needs_an_architecture_is_refused():
    options = PricingOptions(overrides=("model.layers=3",))
    with pytest.raises(ConflictError, match="graph file"):
        shardwright.estimate(
            str(FILES / "gpt.pt2"), "dgx-h100:1", seq_len=None, global_batch=8, degrees=Degrees(), options=options
        )
    with pytest.raises(InvalidValueError, match="has no product"):
        shardwright.estimate(
            str(FILES / "gpt.pt2"),
            "dgx-h100:1",
            seq_len=None,
            global_batch=8,
            degrees=Degrees(),
            options=PricingOptions(lora="rank=8,targets=qkv"),
        )


def test_dims_and_declarations_go_with_graph_files():
    for how in ({"dims": ("batch=4",)}, {"declared": ("A=opaque",)}):
        with pytest.raises(ConflictError, match="goes with a graph file"):
            load_model("gpt2", **how)
    with pytest.raises(UnsupportedError, match="not an architecture"):
        load_spec(FILES / "gpt.pt2")


# --- the command line -----------------------------------------------------------------------------------


def test_plan_and_show_say_what_was_read(capsys):
    assert run(["plan", str(FILES / "gpt.pt2"), "--cluster", "dgx-h100:1", "--global-batch", "64", "--top", "2"]) == 0
    shown = capsys.readouterr().out
    assert "layers are 12 clusters of the" in shown
    assert "64 sequences of 1,024 tokens" in shown
    assert run(["show", "models", str(FILES / "dlrm.pt2"), "--format", "json"]) == 0
    item = json.loads(capsys.readouterr().out)["item"]
    assert item["parameters"] == 51_561_281
    assert item["layers"] == len(item["borders"]) - 1
    assert sum(part["parameters"] * part["count"] for part in item["parts"].values()) == item["parameters"]


def test_bad_graphs_exit_2_with_nothing_on_standard_output(tmp_path, capsys):
    (tmp_path / "a.pt2").write_bytes(b"PK\x03\x04 no zip")
    command = ["plan", str(tmp_path / "a.pt2"), "--cluster", "dgx-h100:1", "--global-batch", "64"]
    assert run([*command, "--format", "json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err.strip().splitlines()[-1])["error"]["code"] == "damaged-file"
    assert run([*command, "--dim", "batch=0"]) == 2
    assert run([*command, "--declare", "A"]) == 2
    assert run(["plan", str(tmp_path / "none.onnx"), "--cluster", "dgx-h100:1", "--global-batch", "64"]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_the_same_file_gives_the_same_bytes(capsys):
    shown = []
    for _ in range(2):
        run(["show", "models", str(FILES / "wide_resnet.pt2"), "--format", "json"])
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
