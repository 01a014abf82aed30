"""Graph files count as torch counts: parameters once where shared, FLOPs exactly; layers are found and folded."""

from math import prod

import pytest
from graph_files import FILES, NAMES, TRUTH

from shardwright.models.catalog import load_model, model_from_dict
from shardwright.models.graph import OperatorKind

SUFFIXES = (".pt2", ".onnx")


@pytest.fixture(params=[f"{name}{suffix}" for name in NAMES for suffix in SUFFIXES])
def file(request):
    if request.param.endswith(".onnx"):
        pytest.importorskip("onnx")
    return FILES / request.param


def loaded(file):
    return load_model(str(file))


def test_files_are_small():
    sizes = {path.name: path.stat().st_size for path in FILES.iterdir()}
    assert len(sizes) == len(NAMES) * len(SUFFIXES)
    assert max(sizes.values()) <= 200_000


def test_parameters_are_those_that_torch_counts(file):
    key = "parameters" if file.suffix == ".pt2" else "parameters_onnx"
    assert loaded(file).parameters == TRUTH[file.stem][key]


def test_forward_flops_are_those_that_torch_counts(file):
    graph = loaded(file)
    assert graph.flops_forward(graph.origin.batch, graph.origin.seq or 1) == TRUTH[file.stem]["flops_forward"]


def test_backward_flops_are_those_that_torch_counts_but_for_the_first_products(file):
    """torch makes no gradient of what is fed; everything else takes two products for one (attention: as torch counts, 2.5)."""
    graph, truth = loaded(file), TRUTH[file.stem]
    sizes = {"batch": graph.origin.batch, "seq": graph.origin.seq or 1}
    both = 0
    for count, unit in parts(graph):
        dims = {**unit.dims, **sizes}
        for operator in unit.operators:
            both += count * (operator.flops_forward(dims, causal=False) + operator.flops_backward(dims, causal=False))
    fed = both - truth["flops_forward_backward"]
    cores = sum(
        c * o.flops_forward({**u.dims, **sizes}, causal=False) for c, u in parts(graph) for o in u.operators if o.attention
    )
    first = fed_products(graph, sizes)
    assert fed in {first, first + cores // 2}


def parts(graph):
    return [(1, graph.embedding), *zip(graph.kind_counts, graph.layer_kinds, strict=True), (1, graph.head)]


def fed_products(graph, sizes):
    """FLOPs of products that read what is fed, forward: the gradient that nobody needs."""
    total = 0
    for count, unit in parts(graph):
        border = {spec.name for spec in unit.border}
        made = {spec.name for o in unit.operators for spec in o.outputs}
        for operator in unit.operators:
            if operator.gemm is not None and not ({s.name for s in operator.inputs} & (border | made)):
                total += count * operator.flops_forward({**unit.dims, **sizes}, causal=False)
    return total


PATTERNS = {
    "gpt": [12],
    "llama.pt2": [6],
    "llama.onnx": [1, 5],
    "wide_resnet": [1, 2, 1, 3, 1, 5, 1, 2],
    "two_tower": [4, 1, 4],
}


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_equal_blocks_are_one_kind_of_layer(name, suffix):
    stem, _, own = name.partition(".")
    if own and f".{own}" != suffix:
        return
    if suffix == ".onnx":
        pytest.importorskip("onnx")
    pattern = loaded(FILES / f"{stem}{suffix}").pattern
    assert [len(run) for run in runs(pattern)] == PATTERNS[name]


def runs(pattern):
    made = [[pattern[0]]]
    for kind in pattern[1:]:
        if kind == made[-1][-1]:
            made[-1].append(kind)
        else:
            made.append([kind])
    return made


def test_modules_of_layers_are_told():
    graph = loaded(FILES / "gpt.pt2")
    assert graph.origin.modules == tuple(f"h.{i}" for i in range(12))


@pytest.mark.parametrize("name", ["unet", "wide_resnet"])
def test_layers_are_balanced(name):
    graph = loaded(FILES / f"{name}.pt2")
    batch, seq = graph.origin.batch, graph.origin.seq or 1
    flops = [graph.layer_kinds[kind].flops_forward(batch, seq) for kind in graph.pattern]
    assert max(flops) <= 2.5 * sum(flops) / len(flops)


def test_batch_is_followed_through_the_graph(file):
    """Twice the batch is twice the FLOPs, but for scores of all samples of a batch against all."""
    graph = loaded(file)
    batch, seq = graph.origin.batch, graph.origin.seq or 1
    ratio = graph.flops_forward(2 * batch, seq) / graph.flops_forward(batch, seq)
    assert ratio == 2 if file.stem != "two_tower" else 2 < ratio < 2.01


def test_attention_is_found_again():
    pytest.importorskip("onnx")
    for name, count in (("gpt", 1), ("llama", 1), ("unet", 1)):
        for suffix in SUFFIXES:
            graph = loaded(FILES / f"{name}{suffix}")
            cores = [o.attention for o in graph.layer_kinds[-1 if name == "llama" else 0].operators if o.attention]
            cores = cores or [o.attention for u in graph.layer_kinds for o in u.operators if o.attention]
            assert len(cores) >= count
            assert cores[0].causal == (name != "unet")


def test_dims_are_named_from_use():
    graph = loaded(FILES / "gpt.pt2")
    (layer,) = graph.layer_kinds
    assert layer.dims["heads"] == 12
    assert layer.dims["head_dim"] == 64
    qkv = layer.operator("linear")
    assert qkv.outputs[0].dims[:2] == ("batch", "seq")
    assert qkv.outputs[0].dims[-2:] == ("heads", "head_dim")
    assert qkv.parameters[0].dims[-1] == layer.border[0].dims[-1]
    convolution = next(
        o for u in loaded(FILES / "wide_resnet.pt2").layer_kinds for o in u.operators if o.kind is OperatorKind.GEMM
    )
    assert "batch" in convolution.gemm.m
    assert any(dim.startswith("channels") for dim in convolution.gemm.n[0])


def test_every_dim_has_a_size(file):
    graph = loaded(file)
    for _, unit in parts(graph):
        sizes = unit.sizes(2, 3)
        for operator in unit.operators:
            for spec in (*operator.inputs, *operator.outputs, *operator.parameters, *operator.saved):
                assert spec.elements(sizes) == prod(sizes[dim] for dim in spec.dims) >= 1


def test_each_operator_reads_what_the_layer_has(file):
    graph = loaded(file)
    for _, unit in parts(graph):
        known = {spec.name for spec in unit.border}
        fed = {s.name for o in unit.operators for s in o.inputs} - {s.name for o in unit.operators for s in o.outputs} - known
        for operator in unit.operators:
            assert {s.name for s in operator.inputs} <= known | fed
            known |= {s.name for s in operator.outputs}


def test_the_stored_form_is_the_graph(file):
    graph = loaded(file)
    again = model_from_dict(graph.to_dict())
    assert again.to_dict() == graph.to_dict()
    assert again.digest == graph.digest
    assert again == graph
