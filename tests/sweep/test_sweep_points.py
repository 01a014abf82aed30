"""Points of a sweep and the digests of what they depend on."""

import dataclasses
from pathlib import Path

import pytest
from sweep_cases import SMALL, request_of

from shardwright.errors import ConflictError, InvalidValueError, UnknownNameError
from shardwright.hardware import catalog
from shardwright.planner.records.sweep.schema import is_sweep, read_sweep
from shardwright.planner.sweep import points
from shardwright.planner.sweep.points import check_prices, points_of, prepared
from shardwright.planner.sweep.request import requested


def keys(request):
    return [point.key for point in points_of(request)]


def digests(request):
    return {(p.model, p.node, p.nodes): prepared(p, request).digest for p in points_of(request)}


def test_points_are_the_product_with_sizes_innermost():
    request = request_of(model="gpt2,llama3.1-8b", node=["dgx-h100", "dgx-a100-80g"], precision="bf16,fp16")
    made = keys(request)
    assert len(made) == 2 * 2 * 2 * 3
    assert [key["nodes"] for key in made[:4]] == [1, 2, 4, 1]
    assert [key["model"] for key in made] == ["gpt2"] * 12 + ["llama3.1-8b"] * 12
    assert len({str(key) for key in made}) == len(made)


def test_batch_rules():
    request = request_of(global_batch=None, batch_per_gpu="0.5,2", tokens_per_batch="1048576", nodes="1,2")
    assert [(k["batch_rule"], k["global_batch"]) for k in keys(request)] == [
        ("0.5 a GPU", 4),
        ("0.5 a GPU", 8),
        ("2 a GPU", 16),
        ("2 a GPU", 32),
        ("1048576 tokens", 1024),
        ("1048576 tokens", 1024),
    ]


def test_what_is_left_to_the_sweep():
    request = requested({"model": "llama3.1-8b", "node": "dgx-h100"})
    made = keys(request)
    assert [key["gpus"] for key in made] == [8 * 2**power for power in range(12)]
    assert {key["seq_len"] for key in made} == {8192}
    assert {key["global_batch"] for key in made} == {512}
    assert {key["precision"] for key in made} == {"bf16"}
    old = keys(requested({"model": "gpt2", "node": "dgx1-v100-32g", "nodes": 1}))
    assert [(key["precision"], key["seq_len"]) for key in old] == [("fp16", 1024)]


def test_gpus_instead_of_nodes():
    request = request_of(nodes=None, gpus="4,8,20")
    assert [(k["nodes"], k["gpus"]) for k in keys(request)] == [(1, 4), (1, 8), (3, 20)]
    assert points.problem_of(points_of(request)[2], request).cluster.gpus == 20


@pytest.mark.parametrize(
    ("changes", "error", "where"),
    [
        ({"node": "dgx-h10"}, UnknownNameError, "--node"),
        ({"model": "gpt-9"}, UnknownNameError, "MODEL"),
        ({"gpus": 8}, ConflictError, "--gpus"),
        ({"precision": "bf17"}, UnknownNameError, "--precision"),
        ({"framework": "jax"}, UnknownNameError, "--framework"),
        ({"global_batch": None, "tokens_per_batch": 1000}, InvalidValueError, "--tokens-per-batch"),
        ({"global_batch": None, "batch_per_gpu": 0.3}, InvalidValueError, "--batch-per-gpu"),
        ({"fix": {"dp": "2"}}, ConflictError, "--fix"),
        ({"effort": "hard"}, UnknownNameError, "--effort"),
        ({"nodes": "1..9999+1", "seq_len": "1..99+1"}, InvalidValueError, "sweep"),
    ],
)
def test_bad_input_is_refused_with_its_place(changes, error, where):
    with pytest.raises(error) as fault:
        points_of(request_of(**changes))
    assert fault.value.where == where


def test_an_objective_needs_its_price(monkeypatch):
    real = catalog.load_node("dgx-h100")
    unpriced = dataclasses.replace(real, usd_per_gpu_hour=None, price_source="")
    monkeypatch.setattr(catalog, "_node", lambda name: unpriced)
    request = request_of(objective="cost")
    with pytest.raises(InvalidValueError, match="price"):
        check_prices(points_of(request), request)
    request = request_of(objective="cost", price="dgx-h100=2")
    check_prices(points_of(request), request)


def test_a_price_is_of_a_node_type_of_the_sweep():
    request = request_of(node="dgx-h100,dgx-a100-80g", price=["dgx-a100-80g=2"])
    check_prices(points_of(request), request)
    prices = [points.problem_of(p, request).cluster.node.usd_per_gpu_hour for p in points_of(request)[2:4]]
    assert prices == [catalog.load_node("dgx-h100").usd_per_gpu_hour, 2.0]
    with pytest.raises(InvalidValueError, match="no dgx-a100-80g here"):
        check_prices(points_of(request_of()), request_of(price="dgx-a100-80g=2"))


# --- digests ------------------------------------------------------------------------------------------


def test_digests_are_stable_and_distinct():
    assert digests(request_of()) == digests(request_of())
    assert len(set(digests(request_of()).values())) == 3


@pytest.mark.parametrize("changes", [{"set": "stack.dp_exposed_floor=0.5"}, {"top": 2}, {"optimizer": "sgd"}, {"tie": 0.5}])
def test_what_holds_for_all_points_touches_all(changes):
    before, after = digests(request_of()), digests(request_of(**changes))
    assert all(before[key] != after[key] for key in before)


def test_a_changed_node_preset_touches_exactly_its_points(monkeypatch):
    request = request_of(node="dgx-h100,dgx-a100-80g")
    before = digests(request)
    real = catalog._node

    def changed(name):
        node = real(name)
        return dataclasses.replace(node, internode_bytes_per_s=node.internode_bytes_per_s / 2) if name == "dgx-h100" else node

    monkeypatch.setattr(catalog, "_node", changed)
    after = digests(request)
    assert {key for key in before if before[key] != after[key]} == {key for key in before if key[1] == "dgx-h100"}


def test_changed_curves_of_links_touch_the_points(monkeypatch):
    before = digests(request_of())
    real = points.fabric_of
    monkeypatch.setattr(points, "fabric_of", lambda cluster: dataclasses.replace(real(cluster), rails=3))
    assert all(before[key] != value for key, value in digests(request_of()).items())


def test_other_source_touches_all(monkeypatch):
    before = digests(request_of())
    monkeypatch.setattr(points, "program_digest", lambda: "other")
    assert set(before.values()).isdisjoint(digests(request_of()).values())


def test_a_larger_sweep_keeps_the_digests_of_its_points():
    small, large = digests(request_of()), digests(request_of(nodes="1,2,3,4", model="gpt2,llama3.1-8b"))
    assert small.items() <= large.items()


# --- sweep.yaml ---------------------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return path


YAML = "model: gpt2\nnode: dgx-h100\nnodes: [1, 2..4x2]\nseq_len: 1024\nglobal_batch: 256\n"


def test_a_file_says_what_options_say(tmp_path):
    file = read_sweep(written(tmp_path, YAML + "fix: {pp: 1, cp: 1}\neffort: scan\n"))
    assert digests(requested({}, file)) == digests(request_of())


def test_options_and_file_are_joined(tmp_path):
    file = read_sweep(written(tmp_path, YAML))
    assert len(points_of(requested({"precision": "bf16,fp16", "nodes": "1,2,4"}, file))) == 6


def test_options_against_the_file_are_refused(tmp_path):
    file = read_sweep(written(tmp_path, YAML))
    with pytest.raises(ConflictError, match=r"--nodes 8 contradicts .*sweep.yaml:3: nodes") as fault:
        requested({"nodes": "8"}, file)
    assert fault.value.where == "--nodes"


@pytest.mark.parametrize(
    ("line", "place", "error"),
    [
        ("nodez: 4", "sweep.yaml:6: nodez", UnknownNameError),
        ("top: 0", "sweep.yaml:6: top", InvalidValueError),
        ("batch_per_gpu: 4..2x2", "sweep.yaml:6: batch_per_gpu", InvalidValueError),
        ("precision: bf17", "sweep.yaml:6: precision", UnknownNameError),
        ("fix: {tp: x}", "sweep.yaml:6: fix", InvalidValueError),
        ("gpus: 8", "sweep.yaml:6: gpus", ConflictError),
    ],
)
def test_mistakes_in_a_file_are_named_with_their_line(tmp_path, line, place, error):
    path = written(tmp_path, YAML + line + "\n")
    with pytest.raises(error) as fault:
        requested({}, read_sweep(path))
    assert fault.value.where.endswith(place)


def test_unknown_names_in_a_file_are_named_with_their_line(tmp_path):
    file = read_sweep(written(tmp_path, YAML.replace("dgx-h100", "dgx-h10")))
    with pytest.raises(UnknownNameError) as fault:
        points_of(requested({}, file))
    assert fault.value.where.endswith("sweep.yaml:2: node")


def test_a_model_file_is_no_sweep(tmp_path):
    model = tmp_path / "model.yaml"
    model.write_text("name: m\nlayers: 2\nhidden: 64\nheads: 4\nvocab: 100\nffn: 128\n", encoding="utf-8")
    assert not is_sweep(str(model))
    assert is_sweep(str(written(tmp_path, YAML)))
    assert not is_sweep(SMALL["model"])
