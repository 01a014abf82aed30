"""`shard` as people call it: the record, the report, the drawings, what fits, what is refused."""

import json
import xml.etree.ElementTree as ET

import jsonschema
import pytest
from operator_problems import problem_of

import shardwright
from shardwright.errors import ConflictError, InvalidValueError, UnknownNameError
from shardwright.planner.report.output import render
from shardwright.planner.report.sharding_drawing import dot_text, edges_of, svg_text
from shardwright.planner.report.style import Style
from shardwright.planner.schema import json_schema
from shardwright.planner.search.operators.menu import EPSILON, MOST, operator_menu
from shardwright.planner.search.operators.mesh import parse_mesh
from shardwright.planner.search.operators.options import ShardOptions

JOB = {"seq_len": 4096, "global_batch": 16}


def found(mesh="dp=2,tp=8", model="llama3.1-8b", cluster="dgx-h100:2", framework="any", layer=None, job=None, **options):
    return shardwright.shard(
        model,
        cluster,
        **(job or JOB),
        sharding=ShardOptions(mesh=parse_mesh(mesh), **options),
        layer=layer,
        options=shardwright.PricingOptions(framework=framework),
    )


@pytest.fixture(scope="module")
def whole():
    return found().to_dict()


def test_the_record_keeps_its_schema(whole):
    jsonschema.Draft202012Validator(json_schema("sharding")).validate(json.loads(json.dumps(whole)))
    assert list(whole["layers"][1]["operators"][0]["divides"]) == ["dp", "tp"]
    assert [layer["count"] for layer in whole["layers"]] == [1, 32, 1]


def test_layers_add_up_to_the_whole(whole):
    for way in ("forward_s", "backward_s"):
        total = sum(layer["count"] * layer[way] for layer in whole["layers"])
        assert total == pytest.approx(whole["predicted"][way], rel=1e-9)
    assert whole["predicted"]["pass_s"] >= whole["program"]["lp_bound_s"] * (1 - 1e-9)
    assert whole["program"]["proven_optimal"]
    kept = sum(layer["count"] * (layer["states_bytes"] + layer["saved_bytes"]) for layer in whole["layers"])
    transient = max(layer["transient_bytes"] for layer in whole["layers"])
    assert kept + transient == pytest.approx(whole["predicted"]["memory_bytes"], abs=200)
    assert whole["predicted"]["memory_bytes"] <= whole["budget_bytes"]


def test_every_operator_has_a_cost_and_a_runner_up_that_is_not_faster(whole):
    for layer in whole["layers"]:
        for operator in layer["operators"]:
            assert operator["forward_s"] + operator["backward_s"] > 0
            assert operator["runner_up"]["divides"] != operator["divides"]
            assert operator["runner_up"]["difference_s"] >= -1e-9


def test_what_is_not_resharded_is_read_as_it_was_written(whole):
    for layer in whole["layers"]:
        moved = {(row["tensor"], reader) for row in layer["resharding"] for reader in row["readers"]}
        written = {}
        for operator in layer["operators"]:
            for tensor, placement in operator["reads"].items():
                if tensor in written and (tensor, operator["name"]) not in moved:
                    slices = [a for a in placement if written[tensor][a] != placement[a]]
                    assert all(written[tensor][a] == "R" for a in slices)
            written |= operator["writes"]


def test_drawings_show_every_operator_and_every_move(whole):
    picture, graph = svg_text(whole), dot_text(whole)
    root = ET.fromstring(picture)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    moves = sum(bool(edge["moved"]) for layer in whole["layers"] for edge in edges_of(layer))
    assert graph.count("fontcolor") == picture.count('font-size="9"') == moves
    for layer in whole["layers"]:
        for operator in layer["operators"]:
            assert operator["name"] in texts
            assert f'/{operator["name"]}"' in graph
    assert graph.count("{") == graph.count("}")


def test_reports_in_all_formats(whole):
    table = render(whole, "table", Style())
    assert "proven optimal" in " ".join(table.split())
    assert all(len(line) <= 80 for line in table.splitlines())
    rows = render(whole, "csv", Style()).splitlines()
    assert len(rows) == 1 + sum(len(layer["operators"]) for layer in whole["layers"])
    assert json.loads(render(whole, "json", Style()))["kind"] == "sharding"


def test_the_same_question_has_the_same_answer(whole):
    again = found().to_dict()
    assert {k: v for k, v in again.items() if k != "run"} == {k: v for k, v in whole.items() if k != "run"}


def test_nothing_fits_and_the_least_that_would_is_told():
    tight = found(memory_bytes=2**30)
    assert tight.exit_code == 1
    assert tight.data["layers"] == []
    least = tight.data["least_memory_bytes"]
    assert found(memory_bytes=least * 1.01).exit_code == 0
    assert found(memory_bytes=least * 0.98).exit_code == 1
    jsonschema.Draft202012Validator(json_schema("sharding")).validate(json.loads(json.dumps(tight.to_dict())))


def test_one_layer_alone_has_no_budget():
    alone = found(layer="3").data
    assert alone["budget_bytes"] is None
    assert [layer["count"] for layer in alone["layers"]] == [1]
    assert found(layer="head").data["layers"][0]["layer"] == "head"


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_takes_time_and_saves_memory(whole, recompute):
    again = found(recompute=recompute).data
    layer, before = again["layers"][1], whole["layers"][1]
    assert layer["saved_bytes"] < before["saved_bytes"]
    assert again["predicted"]["pass_s"] > whole["predicted"]["pass_s"]


def test_more_micro_batches_in_flight_keep_more():
    one, four = found(micro_batches=4).data, found(micro_batches=4, in_flight=4).data
    assert four["predicted"]["memory_bytes"] > one["predicted"]["memory_bytes"]


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_targets_get_what_they_can_express(framework, whole):
    data = found(framework=framework).data
    assert data["variant"]
    assert data["dtensor"] is None
    for operator in data["layers"][1]["operators"]:
        assert operator["divides"]["dp"] == "batch"
        assert operator["divides"]["tp"] in {"heads", "kv_heads", "ffn", "seq", None}


def test_pytorch_gets_a_plan_of_dtensor_placements():
    data = found(framework="pytorch").data
    plan = data["dtensor"]
    names = {p for layer in data["layers"] for o in layer["operators"] for p in o["parameters"]}
    assert set(plan["parameters"]) == names
    words = {w for placements in plan["parameters"].values() for w in placements}
    assert words <= {"Replicate()", *(f"Shard({i})" for i in range(4))}
    assert all(len(placements) == 2 for placements in plan["parameters"].values())


@pytest.mark.parametrize(
    ("error", "given"),
    [
        (ConflictError, {"mesh": "dp=3,tp=8"}),
        (ConflictError, {"mesh": "dp=4,tp=8"}),
        (InvalidValueError, {"micro_batches": 3}),
        (InvalidValueError, {"micro_batches": 0}),
        (InvalidValueError, {"memory_bytes": -1.0}),
        (InvalidValueError, {"layer": "99"}),
        (UnknownNameError, {"layer": "embeding"}),
        (UnknownNameError, {"recompute": "some"}),
    ],
)
def test_what_cannot_be_is_refused(error, given):
    with pytest.raises(error):
        found(**given)


def test_the_menu_of_a_layer_holds_no_entry_that_another_makes_useless():
    problem = problem_of("llama3.1-8b", "dgx-h100:1", seq_len=4096, batch=1, framework="any")
    menu = operator_menu(problem.graph.layer_kinds[0], problem, ShardOptions(mesh=parse_mesh("tp=8")))
    assert 4 <= len(menu) <= MOST
    assert len({entry.recompute for entry in menu}) > 1
    for one in menu:
        for other in menu:
            if other is not one:
                assert not all(a <= b * (1 - EPSILON) for a, b in zip(other.columns, one.columns, strict=True))
    times = [entry.forward_s + entry.backward_s for entry in menu]
    assert times == sorted(times)
    assert min(e.saved_bytes for e in menu) < menu[0].saved_bytes


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3", "gpt2", "qwen3-8b", "gpt-oss-20b"])
def test_models_of_all_kinds_are_divided(model):
    data = found(mesh="dp=4,tp=4", model=model, layer="1", job={"seq_len": 1024, "global_batch": 16}).data
    assert data["program"]["operators"] >= 8
    assert data["predicted"]["pass_s"] > 0


COMMAND = ["shard", "llama3.1-8b", "--cluster", "dgx-h100:1", "--seq-len", "512", "--global-batch", "1", "--mesh", "tp=8"]


def test_the_command_prints_one_document_and_draws(tmp_path, capsys):
    from shardwright.cli import run

    drawings = [tmp_path / "layer.svg", tmp_path / "layer.dot"]
    code = run([*COMMAND, "--layer", "0", "--format", "json", "--svg", str(drawings[0]), "--dot", str(drawings[1])])
    printed = capsys.readouterr()
    assert code == 0
    assert json.loads(printed.out)["kind"] == "sharding"
    assert drawings[0].read_text(encoding="utf-8").startswith("<svg")
    assert drawings[1].read_text(encoding="utf-8").startswith("digraph")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--mesh", "tp=9"], "9 ranks"),
        (["--mesh", "tp"], "no axis of a mesh"),
        (["--mesh", "tp=8", "--layer", "40"], "layers are 0 to 31"),
        (["--mesh", "tp=8", "--svg", "nowhere/x.svg"], "nowhere/x.svg"),
        (["--mesh", "tp=8", "--framework", "deepspeed"], "does not divide operators"),
        ([], "missing --mesh"),
    ],
)
def test_misuse_is_named_and_prints_nothing(more, said, capsys):
    from shardwright.cli import run

    assert run([*COMMAND[:-2], *more]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
