"""torch itself: counts recorded in `truth.json` are those it gives today, and what it exports today reads the same."""

import importlib.util
import sys

import pytest
from graph_files import FOLDER, NAMES, TRUTH

from shardwright.models.catalog import load_model

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]
torch = pytest.importorskip("torch")


def script():
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("torch_models", FOLDER / "torch_models.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


def built(name):
    make, inputs = script().MODELS[name]
    with torch.device("meta"):
        return make(), inputs()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_recorded_counts_are_those_of_torch(name):
    from torch.utils.flop_counter import FlopCounterMode

    module, inputs = built(name)
    with FlopCounterMode(display=False) as counter:
        module(*inputs)
    assert sum(p.numel() for p in module.parameters()) == TRUTH[name]["parameters"]
    assert counter.get_total_flops() == TRUTH[name]["flops_forward"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("decomposed", [False, True], ids=["exported", "decomposed"])
def test_what_torch_exports_today_reads_the_same(name, decomposed, tmp_path):
    module, inputs = built(name)
    program = torch.export.export(module, inputs)
    program = program.run_decompositions() if decomposed else program
    torch.export.save(program, tmp_path / "a.pt2")
    graph = load_model(str(tmp_path / "a.pt2"))
    assert graph.parameters == TRUTH[name]["parameters"]
    assert graph.flops_forward(graph.origin.batch, graph.origin.seq or 1) == TRUTH[name]["flops_forward"]


@pytest.mark.filterwarnings("ignore")
def test_a_dynamic_batch_is_bound(tmp_path):
    module, inputs = built("dlrm")
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(module, inputs, dynamic_shapes=({0: batch}, {0: batch}, {0: batch}))
    torch.export.save(program, tmp_path / "a.pt2")
    graph = load_model(str(tmp_path / "a.pt2"), dims=("dense.0=64",))
    assert graph.origin.batch == 64
    assert graph.flops_forward(64, 1) == TRUTH["dlrm"]["flops_forward"]


LIBRARY = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_layer": 4}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}),
    "bert": ("BertForMaskedLM", "BertConfig", {"num_hidden_layers": 4}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LIBRARY)
def test_models_of_transformers_read_the_same(name, tmp_path):
    """Modules as users have them: masks made of positions, rotations under no_grad, losses over shifted labels."""
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    module_name, config_name, sizes = LIBRARY[name]
    config = getattr(transformers, config_name)(**sizes, use_cache=False)
    module = getattr(transformers, module_name)(config)
    fed = {key: torch.zeros(2, 64, dtype=torch.long) for key in ("input_ids", "labels")}
    math = torch.nn.attention.SDPBackend.MATH  # of the kernels for CPUs the only one whose products torch counts
    with torch.nn.attention.sdpa_kernel(math), FlopCounterMode(display=False) as counter:
        module(**fed)
    torch.export.save(torch.export.export(module, (), fed), tmp_path / "a.pt2")
    graph = load_model(str(tmp_path / "a.pt2"))
    assert graph.parameters == sum(p.numel() for p in module.parameters())
    assert graph.flops_forward(2, 64) == counter.get_total_flops()
    assert graph.pattern[:4] == (0, 0, 0, 0)
    assert graph.origin.seq == 64
