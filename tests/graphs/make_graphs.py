"""Writes `files/` and `truth.json`: graphs of `torch_models.py` as torch.export and ONNX, and what torch counts of them.

    python tests/graphs/make_graphs.py [NAME ...]

Run where torch, onnx and onnxscript are installed. torch.export programs are made on the meta device, so they hold no
weights; of ONNX files the weights are dropped (`external data` that is not shipped). Both are small: zip members are
deflated, and what exporters note of source lines is taken out. Parameters are counted once where they are shared; FLOPs are
those of `torch.utils.flop_counter`, forward, and forward and backward.
"""

import io
import json
import re
import sys
import warnings
import zipfile
from pathlib import Path

import onnx
import torch
from torch.utils.flop_counter import FlopCounterMode
from torch_models import FOR_ONNX, MODELS

FILES = Path(__file__).parent / "files"
TRUTH = Path(__file__).parent / "truth.json"
LIMIT_BYTES = 200_000
KEPT_ELEMENTS = 64
OLDER = {"gpt", "wide_resnet", "unet"}
"""Models exported to ONNX by the older exporter; the others by the one built on torch.export."""
NOTES = {"stack_trace", "torch_fn", "source_fn_stack"}


def counted(name):
    """Parameters and FLOPs as torch counts them; buffers apart, which ONNX does not tell from parameters."""
    module, inputs = built(name)
    with FlopCounterMode(display=False) as forward:
        module(*inputs)
    module, inputs = built(name, other=FOR_ONNX.get(name))
    buffers = sum(b.numel() for key, b in module.named_buffers() if key in {"cos", "sin"})
    in_onnx = sum(p.numel() for p in module.parameters()) + buffers
    module, inputs = built(name)
    with FlopCounterMode(display=False) as both:
        loss(module(*inputs)).backward()
    return {
        "parameters": sum(p.numel() for p in module.parameters()),
        "parameters_onnx": in_onnx,
        "flops_forward": forward.get_total_flops(),
        "flops_forward_backward": both.get_total_flops(),
        "torch": torch.__version__.partition("+")[0],
    }


def loss(out):
    """A scalar to differentiate."""
    return out if out.dim() == 0 else out.float().sum()


def built(name, device="meta", other=None):
    """Module and inputs on a device."""
    make, inputs = MODELS[name]
    with torch.device(device):
        return (other or make)(), inputs()


def exported(name):
    """The bytes of a torch.export archive on the meta device, deflated, without notes on source lines."""
    module, inputs = built(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, inputs)
        saved = io.BytesIO()
        torch.export.save(program, saved)
    out = io.BytesIO()
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for info in source.infolist():
            if "/data/" in info.filename or "/.data/" in info.filename:
                continue  # shapes stand in the program
            data = source.read(info)
            if info.filename.endswith("model.json"):
                data = json.dumps(without_notes(json.loads(data)), separators=(",", ":")).encode()
            target.writestr(zipfile.ZipInfo(info.filename, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def without_notes(program):
    """The program without source lines."""
    for node in program["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {key: value for key, value in node["metadata"].items() if key not in NOTES}
    return program


def onnx_bytes(name):
    """The bytes of an ONNX file without weights."""
    module, inputs = built(name, "cpu", FOR_ONNX.get(name))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)  # equal initialisers would be joined to one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = (
            older(module, inputs)
            if name in OLDER
            else torch.onnx.export(module, inputs, dynamo=True, verbose=False).model_proto
        )
    for tensor in model.graph.initializer:
        lightened(tensor)
    for item in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del item.metadata_props[:]
    del model.graph.metadata_props[:]
    model.graph.doc_string = ""
    return model.SerializeToString(deterministic=True)


def older(module, inputs):
    """The model of the exporter by TorchScript, which keeps batch norms and ties as they are."""
    saved = io.BytesIO()
    how = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False, "opset_version": 17}
    torch.onnx.export(module, inputs, saved, dynamo=False, **how)
    return onnx.load_from_string(saved.getvalue())


def lightened(tensor):
    """Drops the data of large tensors."""
    elements = 1
    for size in tensor.dims:
        elements *= size
    if elements > KEPT_ELEMENTS:
        tensor.ClearField("raw_data")
        tensor.data_location = 1
        tensor.external_data.add(key="location", value="not-shipped")


def main(names):
    """Writes the files of some models, of all if none is named."""
    truth = json.loads(TRUTH.read_text()) if TRUTH.exists() else {}
    FILES.mkdir(exist_ok=True)
    for name in names or MODELS:
        truth[name] = counted(name)
        for suffix, data in ((".pt2", exported(name)), (".onnx", onnx_bytes(name))):
            if len(data) > LIMIT_BYTES:
                raise SystemExit(f"{name}{suffix} would have {len(data)} bytes")
            (FILES / (name + suffix)).write_bytes(data)
            sys.stdout.write(f"{name}{suffix}: {len(data)} bytes\n")
        TRUTH.write_text(json.dumps(dict(sorted(truth.items())), indent=2) + "\n")


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if re.fullmatch(r"\w+", name)])
