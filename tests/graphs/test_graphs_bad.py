"""Graphs that cannot be used: the message names the node, the exit code is 2, nothing is executed."""

import contextlib
import json
import pickle
import zipfile

import pytest
from graph_files import FILES, changed, onnx_graph, program_of, write_archive

from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError, ShardwrightError, UnsupportedError
from shardwright.models.catalog import load_model
from shardwright.models.traced.document import from_document


def node(graph, kind):
    return next(n for n in graph["nodes"] if n["target"].startswith(f"torch.ops.aten.{kind}."))


# --- torch.export --------------------------------------------------------------------------------------


def test_a_cycle_names_its_node(tmp_path):
    def turn(graph):
        first, later = node(graph, "layer_norm"), node(graph, "gelu")
        first["inputs"][0]["arg"] = {"as_tensor": {"name": later["outputs"][0]["as_tensor"]["name"]}}

    with pytest.raises(DamagedFileError, match=r"node layer_norm reads gelu.*cycle"):
        load_model(changed(tmp_path / "a.pt2", "gpt", turn))


def test_a_tensor_that_nothing_makes_names_its_reader(tmp_path):
    def lose(graph):
        graph["nodes"] = [n for n in graph["nodes"] if not n["target"].startswith("torch.ops.aten.gelu.")]
        graph["tensor_values"].pop("gelu")

    with pytest.raises(DamagedFileError, match=r"node linear_3 reads the tensor gelu, which nothing makes"):
        load_model(changed(tmp_path / "a.pt2", "gpt", lose))


def test_an_unknown_operator_names_its_node_and_can_be_declared(tmp_path):
    def rename(graph):
        node(graph, "gelu")["target"] = "torch.ops.mylib.swiglu.default"

    path = changed(tmp_path / "a.pt2", "gpt", rename)
    with pytest.raises(UnsupportedError, match=r"node gelu: the operator mylib\.swiglu") as caught:
        load_model(path)
    assert "--declare mylib.swiglu=elementwise" in caught.value.hint
    plain = load_model(str(FILES / "gpt.pt2"))
    for declared in ("mylib.swiglu=elementwise", "torch.ops.mylib.swiglu.default=elementwise", "mylib.swiglu=opaque"):
        graph = load_model(path, declared=(declared,))
        assert graph.parameters == plain.parameters
        assert graph.flops_forward(2, 1024) == plain.flops_forward(2, 1024)


def test_a_missing_shape_names_the_node(tmp_path):
    with pytest.raises(DamagedFileError, match=r"node gelu: the shape of its output gelu is missing"):
        load_model(changed(tmp_path / "a.pt2", "gpt", lambda graph: graph["tensor_values"].pop("gelu")))


def symbolic(graph):
    symbol = {"as_expr": {"expr_str": "Symbol('s0', positive=True, integer=True)", "hint": {"as_int": 2}}}
    for meta in graph["tensor_values"].values():
        meta["sizes"] = [symbol if size == {"as_int": 2} else size for size in meta["sizes"]]
        product = {"as_expr": {"expr_str": "Mul(Integer(1024), Symbol('s0', positive=True, integer=True))"}}
        meta["sizes"] = [product if size == {"as_int": 2048} else size for size in meta["sizes"]]


def test_dynamic_dims_are_bound_by_symbol_or_place(tmp_path):
    path = changed(tmp_path / "a.pt2", "gpt", symbolic)
    with pytest.raises(InvalidValueError, match=r"dim 0 of the tensor \w+ is dynamic \(s0\)") as caught:
        load_model(path)
    assert "--dim s0=32" in caught.value.hint
    for dim in ("s0=8", "ids.0=8"):
        assert load_model(path, dims=(dim,)).origin.batch == 8
    with pytest.raises(ConflictError, match="no dim of the graph is called batch") as caught:
        load_model(path, dims=("s0=8", "batch=8"))
    assert "dynamic are ids.0, labels.0, s0" in caught.value.hint
    with pytest.raises(ConflictError, match=r"ids.0"):
        load_model(str(FILES / "gpt.pt2"), dims=("ids.0=8",))


@pytest.mark.parametrize("text", ["__import__('os')", "Symbol(s0)", "Pow(Integer(9), Integer(99))", "lambda: 1", "(" * 500])
def test_sizes_are_computed_never_executed(tmp_path, text):
    def poison(graph):
        graph["tensor_values"]["gelu"]["sizes"][0] = {"as_expr": {"expr_str": text}}

    with pytest.raises(ShardwrightError, match="gelu"):
        load_model(changed(tmp_path / "a.pt2", "gpt", poison))


@pytest.mark.parametrize("size", [-1, 1 << 60, True, None, "2"])
def test_absurd_sizes_are_refused(tmp_path, size):
    def grow(graph):
        graph["tensor_values"]["gelu"]["sizes"][0] = {"as_int": size}

    with pytest.raises(ShardwrightError, match=r"gelu|cannot be read"):
        load_model(changed(tmp_path / "a.pt2", "gpt", grow))


def test_other_versions_are_named(tmp_path):
    program = program_of(FILES / "gpt.pt2")
    program["schema_version"] = {"major": 9, "minor": 1}
    with pytest.raises(UnsupportedError, match=r"schema 9\.1"):
        load_model(write_archive(tmp_path / "a.pt2", program))
    with pytest.raises(UnsupportedError, match="archive version '7'"):
        load_model(write_archive(tmp_path / "b.pt2", program, version="7"))
    with pytest.raises(UnsupportedError, match="format 'zip'"):
        load_model(write_archive(tmp_path / "c.pt2", program, form="zip"))


def test_a_zip_bomb_is_not_inflated(tmp_path):
    path = write_archive(tmp_path / "a.pt2", b'{"graph_module": "' + b"a" * (64 << 20) + b'"}')
    with pytest.raises(UnsupportedError, match="inflates from"):
        load_model(path)


def test_nothing_is_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "written"), "w")

    path = write_archive(tmp_path / "a.pt2", program_of(FILES / "two_tower.pt2"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("m/data/sample_inputs/model.pt", pickle.dumps(Evil()))
    assert load_model(path).layers
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_truncated_archives_are_damaged(tmp_path, share):
    data = (FILES / "gpt.pt2").read_bytes()
    (tmp_path / "a.pt2").write_bytes(data[: int(share * len(data))])
    with pytest.raises(DamagedFileError):
        load_model(str(tmp_path / "a.pt2"))


@pytest.mark.parametrize("text", ["[]", "{}", "nul", '{"graph_module": {}, "schema_version": {"major": 8}}', "[" * 100_000])
def test_programs_of_another_form_are_damaged(tmp_path, text):
    with pytest.raises(DamagedFileError):
        load_model(write_archive(tmp_path / "a.pt2", text))


def test_foreign_zips_are_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt2", "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(DamagedFileError, match=r"no archive of torch\.export"):
        load_model(str(tmp_path / "a.pt2"))
    with zipfile.ZipFile(tmp_path / "b.pt2", "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
    with pytest.raises(UnsupportedError, match=r"torch before 2\.8"):
        load_model(str(tmp_path / "b.pt2"))


@pytest.mark.parametrize("seed", range(40))
def test_programs_changed_at_random_never_break_the_reader(tmp_path, seed):
    import random

    chosen = random.Random(seed)
    program = program_of(FILES / "two_tower.pt2")
    spot, key = program["graph_module"], "graph"
    for _ in range(chosen.randint(1, 7)):
        inner = spot[key]
        if isinstance(inner, dict) and inner:
            spot, key = inner, chosen.choice(sorted(inner))
        elif isinstance(inner, list) and inner:
            spot, key = inner, chosen.randrange(len(inner))
    spot[key] = chosen.choice([None, -3, "x", [], {}, True, 1e300, {"as_int": 7}])
    with contextlib.suppress(ShardwrightError):  # anything else is a fault
        load_model(write_archive(tmp_path / "a.pt2", program))


def test_bodies_under_no_grad_are_read_in_place_and_others_refused(tmp_path):
    def wrapped(target):
        def wrap(graph):
            inner = node(graph, "gelu")
            made, read = inner["outputs"][0]["as_tensor"]["name"], inner["inputs"][0]["arg"]["as_tensor"]["name"]
            meta = graph["tensor_values"]
            body = json.loads(json.dumps(inner).replace(f'"{made}"', '"out"').replace(f'"{read}"', '"given"'))
            values = {"given": meta[read], "out": meta[made]}
            tensors = [[{"as_tensor": {"name": name}}] for name in values]
            body_graph = {"inputs": tensors[0], "outputs": tensors[1], "nodes": [body], "tensor_values": values}
            graph["nodes"][graph["nodes"].index(inner)] = {
                "target": f"torch.ops.higher_order.{target}",
                "inputs": [
                    {"name": "", "arg": {"as_bool": False}},
                    {"name": "", "arg": {"as_graph": {"name": "body", "graph": body_graph}}},
                    {"name": "", "arg": {"as_tensor": {"name": read}}},
                ],
                "outputs": [{"as_tensor": {"name": made}}],
                "name": "call",
            }

        return wrap

    read = load_model(changed(tmp_path / "a.pt2", "gpt", wrapped("wrap_with_set_grad_enabled")))
    plain = load_model(str(FILES / "gpt.pt2"))
    assert read.layer_kinds == plain.layer_kinds
    assert read.pattern == plain.pattern
    with pytest.raises(UnsupportedError, match=r"node call: the operator higher_order\.cond"):
        load_model(changed(tmp_path / "b.pt2", "gpt", wrapped("cond")))


# --- ONNX ----------------------------------------------------------------------------------------------

PLAIN = [("MatMul", ["x", "w"], ["h"], {}), ("Relu", ["h"], ["y"], {})]


def test_onnx_needs_its_extra(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    (tmp_path / "a.onnx").write_bytes(b"x")
    with pytest.raises(UnsupportedError, match="package onnx") as caught:
        load_model(str(tmp_path / "a.onnx"))
    assert "pip install onnx" in caught.value.hint


def test_onnx_cycles_and_lost_tensors_name_the_node(tmp_path):
    pytest.importorskip("onnx")
    inputs, weights = [("x", [4, 8])], [("w", [8, 8])]
    turned = [("MatMul", ["y", "w"], ["h"], {}), ("Relu", ["h"], ["y"], {})]
    with pytest.raises(DamagedFileError, match=r"node matmul_0 reads y, .*cycle"):
        load_model(onnx_graph(tmp_path / "a.onnx", turned, inputs, weights))
    lost = [("MatMul", ["x", "w"], ["h"], {}), ("Relu", ["z"], ["y"], {})]
    with pytest.raises(DamagedFileError, match="node relu_1 reads z, which nothing makes"):
        load_model(onnx_graph(tmp_path / "b.onnx", lost, inputs, weights))


def test_onnx_unknown_operators_name_the_node_and_can_be_declared(tmp_path):
    pytest.importorskip("onnx")
    nodes = [("MatMul", ["x", "w"], ["h"], {}), ("my.ops::Fancy", ["h"], ["g"], {}), ("MatMul", ["g", "v"], ["y"], {})]
    path = onnx_graph(tmp_path / "a.onnx", nodes, [("x", [4, 8])], [("w", [8, 6]), ("v", [6, 2])], domains=["my.ops"])
    with pytest.raises(UnsupportedError, match="node fancy_1: the operator Fancy"):
        load_model(path)
    for kind in ("elementwise", "opaque"):
        graph = load_model(path, declared=(f"Fancy={kind}",))
        assert graph.parameters == 8 * 6 + 6 * 2
        assert graph.flops_forward(4, 1) == 2 * 4 * (8 * 6 + 6 * 2)
    with pytest.raises(ConflictError, match="no operator Other"):
        load_model(path, declared=("Fancy=opaque", "Other=opaque"))
    with pytest.raises(ShardwrightError, match="kind of operator 'magic'"):
        load_model(path, declared=("Fancy=magic",))


def test_onnx_subgraphs_are_unknown_operators(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = onnx_graph(tmp_path / "a.onnx", PLAIN, [("x", [4, 8])], [("w", [8, 8])])
    model = onnx.load(path)
    model.graph.node[1].op_type = "Loop"
    onnx.save(model, path)
    with pytest.raises(UnsupportedError, match="node relu_1: the operator Loop"):
        load_model(path)


def test_onnx_dynamic_dims_are_bound_by_name_or_place(tmp_path):
    pytest.importorskip("onnx")
    path = onnx_graph(tmp_path / "a.onnx", PLAIN, [("x", ["batch", 8])], [("w", [8, 8])])
    with pytest.raises(InvalidValueError, match=r"dim 0 of the input x is dynamic \(batch\)") as caught:
        load_model(path)
    assert "--dim batch=32" in caught.value.hint
    for dim in ("batch=16", "x.0=16"):
        assert load_model(path, dims=(dim,)).origin.batch == 16
    with pytest.raises(ConflictError, match=r"called x.1"):
        load_model(path, dims=("batch=16", "x.1=8"))


def test_onnx_missing_shapes_name_the_node(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = onnx_graph(tmp_path / "a.onnx", PLAIN, [("x", [4, 8])], [("w", [8, 8])])
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    with pytest.raises(DamagedFileError, match="input x has no shape"):
        load_model(path)
    nodes = [("Reshape", ["x", "s"], ["h"], {}), ("MatMul", ["h", "w"], ["y"], {})]
    path = onnx_graph(tmp_path / "b.onnx", nodes, [("x", [4, 8]), ("s", [2])], [("w", [8, 8])])
    with pytest.raises(DamagedFileError, match=r"node reshape_0 \(Reshape\): the shape of its output h is missing"):
        load_model(path)


@pytest.mark.parametrize("data", [b"", b"\x08\x07", b"PK\x03\x04", b"hello world", b"\xff" * 100, b"\x80\x04}."])
def test_foreign_files_are_no_onnx(tmp_path, data):
    pytest.importorskip("onnx")
    (tmp_path / "a.onnx").write_bytes(data)
    with pytest.raises(DamagedFileError, match="no ONNX"):
        load_model(str(tmp_path / "a.onnx"))


@pytest.mark.parametrize("seed", range(25))
def test_bytes_changed_at_random_never_break_the_onnx_reader(tmp_path, seed):
    import random

    pytest.importorskip("onnx")
    chosen = random.Random(seed)
    data = bytearray((FILES / "two_tower.onnx").read_bytes())
    for _ in range(chosen.randint(1, 30)):
        data[chosen.randrange(len(data))] = chosen.randrange(256)
    (tmp_path / "a.onnx").write_bytes(bytes(data[: chosen.randint(len(data) // 2, len(data))]))
    with contextlib.suppress(ShardwrightError):
        load_model(str(tmp_path / "a.onnx"))


def test_a_batch_of_one_is_refused(tmp_path):
    pytest.importorskip("onnx")
    with pytest.raises(UnsupportedError, match="no dim of the inputs is a batch: x 1x8") as caught:
        load_model(onnx_graph(tmp_path / "a.onnx", PLAIN, [("x", [1, 8])], [("w", [8, 8])]))
    assert "batch of 2 or more" in caught.value.hint


def test_a_graph_without_parameters_is_refused(tmp_path):
    pytest.importorskip("onnx")
    with pytest.raises(UnsupportedError, match="no parameters to train"):
        load_model(onnx_graph(tmp_path / "a.onnx", [("Relu", ["x"], ["y"], {})], [("x", [4, 8])]))


# --- what is stored -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["name", "source", "batch", "seq", "layers", "units", "crossings", "modules", "operators", "tied"]
)
@pytest.mark.parametrize("value", [None, [], -1, "x", {"a": 1}])
def test_stored_graphs_of_another_form_are_damaged(key, value):
    document = json.loads(json.dumps(load_model(str(FILES / "two_tower.pt2")).to_dict()))
    if (key, value) in [("seq", None), ("source", "x"), ("name", "x")] or (key == "tied" and not isinstance(value, list)):
        return
    if key == "tied":
        value = None
        del document["tied"]
    else:
        document[key] = value
    if key == "modules" and value in ([], "x"):
        return
    with pytest.raises(DamagedFileError):
        from_document(document)
