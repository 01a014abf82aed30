"""Parameters, gradients and optimizer states against those that torch holds on one rank of a fake process group."""

from __future__ import annotations

import pytest

from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

SIZES = {"layers": 2, "hidden": 64, "heads": 8, "kv_heads": 8, "ffn": 160, "vocab": 1024}
WORLD = 8
WAYS = {
    "replicated": ({"zero": 0}, None),
    "fsdp2": ({"zero": 3}, (WORLD,)),
    "hsdp": ({"zero": 3, "dp_replicate": 2}, (2, WORLD // 2)),
}


@pytest.fixture
def group():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    yield
    dist.destroy_process_group()


def model_of(graph):
    """One module a layer and end, with parameters of the shapes of the graph."""
    model = torch.nn.Module()
    for place, unit in enumerate([graph.embedding, *(graph.layer_kinds[k] for k in graph.pattern), graph.head]):
        part = torch.nn.Module()
        for spec in unit.parameter_specs:
            shape = [{**unit.dims}[dim] for dim in spec.dims]
            part.register_parameter(spec.name, torch.nn.Parameter(torch.zeros(shape)))
        model.add_module(f"part{place}", part)
    return model


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def held(model):
    """(parameters, gradients, Adam's moments), bytes."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    optimizer.step()
    moments = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    groups = (list(model.parameters()), [p.grad for p in model.parameters()], moments)
    return tuple(sum(local(t).nbytes for t in tensors) for tensors in groups)


def counted(graph, zero, precision="fp32"):
    """(parameters, gradients, optimizer states) of a rank, bytes."""
    given = {"seq_len": 64, "global_batch": WORLD, "degrees": Degrees(zero=zero)}
    options = PricingOptions(precision=precision, grad_dtype="fp32", stack="pytorch-fsdp2")
    memory = estimate(graph, "dgx-h100:1", **given, options=options).to_dict()["stages"][0]["memory"]
    return tuple(memory[f"{name}_bytes"] for name in ("parameters", "gradients", "optimizer"))


def graph_of(**sizes):
    return build_graph(ModelSpec.from_dict({"name": "m", "positions": "none", **SIZES, **sizes}))


class Part(torch.nn.Module):
    """A module whose output depends on each of its parameters."""

    def forward(self, x):
        return x + sum(p.sum() for p in self.parameters()).to(x.dtype)


def test_zero_2_keeps_parameters_whole_until_the_step(group):
    """FSDP2 that reshards after the backward pass: whole 16-bit parameters beside shards of master, moments and gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    graph = graph_of()
    parts = []
    for source in model_of(graph).children():
        part = Part()
        for name, parameter in source.named_parameters():
            part.register_parameter(name, parameter)
        parts.append(part)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in parts:
        fully_shard(part, mesh=init_device_mesh("cpu", (WORLD,)), mp_policy=policy, reshard_after_forward=False)
    x = torch.zeros(1, requires_grad=True)
    for part in parts:
        x = part(x)
    whole = sum(local(p).nbytes for part in parts for p in part.parameters())
    x.backward()
    weights = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.AdamW(weights, foreach=False)
    optimizer.step()
    states = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    gradients = sum(local(p.grad).nbytes for p in weights)
    assert (whole, gradients, sum(local(t).nbytes for t in [*weights, *states])) == counted(graph, 2, "bf16")


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_zero_1_shares_the_moments_alone(group):
    """Of ranks that deal out whole parameters (ours cut them anywhere, as Megatron-Core): the mean over ranks."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    graph = graph_of()
    model = model_of(graph)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, foreach=False)
    parameters, gradients, states = counted(graph, 1)
    assert parameters == gradients == sum(p.nbytes for p in model.parameters())
    dealt = [sum(p.nbytes for one in groups for p in one["params"]) for groups in optimizer._partition_parameters()]
    assert len(dealt) == WORLD
    assert 2 * sum(dealt) / WORLD == states
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.optim.step()
    moments = [t for state in optimizer.optim.state.values() for t in state.values() if t.dim()]
    assert sum(t.nbytes for t in moments) == 2 * dealt[0]


@pytest.mark.parametrize("way", WAYS)
def test_states_of_a_rank(way, group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    degrees, mesh = WAYS[way]
    graph = build_graph(ModelSpec.from_dict({"name": "m", "positions": "none", **SIZES}))
    model = model_of(graph)
    if mesh is not None:
        devices = init_device_mesh("cpu", mesh, mesh_dim_names=("replicate", "shard")[-len(mesh) :])
        for part in model.children():
            fully_shard(part, mesh=devices)
    given = {"seq_len": 64, "global_batch": WORLD, "degrees": Degrees(**degrees)}
    options = PricingOptions(precision="fp32", grad_dtype="fp32", stack="pytorch-fsdp2")
    memory = estimate(graph, "dgx-h100:1", **given, options=options).to_dict()["stages"][0]["memory"]
    assert held(model) == tuple(memory[f"{name}_bytes"] for name in ("parameters", "gradients", "optimizer"))
