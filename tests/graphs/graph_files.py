"""The graph files of these tests and what torch counted of them; small ONNX graphs and archives made on the spot."""

import json
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parent
FILES = FOLDER / "files"
TRUTH = json.loads((FOLDER / "truth.json").read_text(encoding="utf-8"))
NAMES = sorted(TRUTH)


def program_of(path):
    """The serialised program of an archive."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(next(n for n in archive.namelist() if n.endswith("model.json"))))


def write_archive(path, program, version="0", form="pt2", compression=zipfile.ZIP_DEFLATED):
    """An archive around a program."""
    text = program if isinstance(program, (bytes, str)) else json.dumps(program)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("m/archive_format", form)
        archive.writestr("m/archive_version", version)
        archive.writestr("m/models/model.json", text)
    return str(path)


def changed(path, name, change):
    """A copy of a test graph's program with one thing changed, written to `path`."""
    program = program_of(FILES / f"{name}.pt2")
    change(program["graph_module"]["graph"])
    return write_archive(path, program)


def onnx_graph(path, nodes, inputs, weights=(), outputs=(("y", None),), opset=18, domains=()):
    """Writes an ONNX file.

    Args:
        path: where.
        nodes: (operator, inputs, outputs, attributes) or with a name and a domain.
        inputs: (name, shape); a text is a dynamic dim.
        weights: (name, shape).
        outputs: (name, shape or None).
        opset: of the standard operators.
        domains: further domains.
    """
    from onnx import TensorProto, helper, save

    made = []
    for index, (kind, read, written, how) in enumerate(nodes):
        domain, _, bare = kind.rpartition("::")
        made.append(helper.make_node(bare, read, written, name=f"{bare.lower()}_{index}", domain=domain, **how))
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        [_weight(name, shape) for name, shape in weights],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    save(helper.make_model(graph, opset_imports=imports), str(path))
    return str(path)


def _weight(name, shape):
    from math import prod

    from onnx import TensorProto, helper

    return helper.make_tensor(name, TensorProto.FLOAT, shape, [0.5] * prod(shape))
