"""What is alive at a loss: bytes a logit of each kind of cross entropy, whole and in pieces, against what is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from counted_layers import keys_of

from shardwright.models.dtypes import PRECISIONS
from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph
from shardwright.planner.axes.sharding import LocalSizes
from shardwright.planner.cost.losses import beside_bytes
from shardwright.planner.stacks import load_stack

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
torch_layers = pytest.importorskip("torch_layers")
live_bytes = pytest.importorskip("live_bytes")
functional = torch.nn.functional

TOKENS, VOCAB, HIDDEN = 256, 1024, 128


def head():
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    return x, weight, torch.arange(TOKENS) % VOCAB


def is_logits(tensor):
    return tensor.shape == (TOKENS, VOCAB)


def per_logit(loss, *, held=True):
    """Most bytes a logit that are alive, forward and backward; `held`: the caller keeps the logits until both are done."""
    x, weight, labels = head()
    with live_bytes.Live(is_logits) as live:
        logits = functional.linear(x, weight)
        made = loss(logits, labels)
        if not held:
            del logits
        made.backward()
    return live.peak / (TOKENS * VOCAB)


def eager(logits, labels):
    return functional.cross_entropy(logits.float(), labels)


def in_16_bits(logits, labels):
    return functional.cross_entropy(logits, labels)


class Fused(torch.autograd.Function):
    """One kernel that computes the gradient with the loss: beside the logits, or where they stood."""

    @staticmethod
    def forward(ctx, logits, beside):
        gradient = torch.zeros_like(logits) if beside else logits
        ctx.save_for_backward(gradient)
        return logits.new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return ctx.saved_tensors[0], None


def fused(logits, labels):
    return Fused.apply(logits, True)


@pytest.fixture
def megatron(monkeypatch):
    """Megatron-Core's own cross entropy, on a tensor-parallel group of one."""
    dist = pytest.importorskip("torch.distributed")
    core = pytest.importorskip("megatron.core.tensor_parallel.cross_entropy")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    for name, value in (("group", dist.group.WORLD), ("rank", 0), ("world_size", 1)):
        monkeypatch.setattr(core, f"get_tensor_model_parallel_{name}", lambda value=value: value)
    yield lambda logits, labels: core.vocab_parallel_cross_entropy(logits, labels).mean()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("stack", "loss", "held"),
    [
        ("torchtitan", eager, True),
        ("torchtitan-eager", eager, True),
        ("pytorch-fsdp1", eager, True),
        ("pytorch-fsdp2", eager, False),
        ("fms-fsdp", in_16_bits, True),
        ("llm-foundry", fused, True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bytes_a_logit_are_those_of_the_stack(stack, loss, held):
    assert per_logit(loss, held=held) == load_stack(stack).logit_saved_bytes


def test_bytes_a_logit_of_megatron(megatron):
    assert per_logit(megatron, held=False) == load_stack("megatron-core").logit_saved_bytes


@pytest.mark.parametrize("pieces", [2, 4])
def test_a_loss_in_pieces_holds_what_is_counted(pieces):
    """The head, the loss and the backward pass of each piece in turn, as torchtitan's `ChunkedLossWrapper` runs them."""
    x, weight, labels = head()
    rows = TOKENS // pieces
    shapes, given = {(rows, VOCAB), (VOCAB, HIDDEN), (TOKENS, HIDDEN)}, {t.untyped_storage()._cdata for t in (x, weight)}
    with live_bytes.Live(lambda t: t.shape in shapes and t.untyped_storage()._cdata not in given) as live:
        gradient = torch.zeros(TOKENS, HIDDEN, dtype=torch.float32)
        for piece in range(pieces):
            part = slice(piece * rows, (piece + 1) * rows)
            own = x[part].detach().requires_grad_()
            logits = functional.linear(own, weight)
            functional.cross_entropy(logits.float(), labels[part]).backward()
            gradient[part] = own.grad
            del logits
    each = load_stack("torchtitan").logit_saved_bytes
    assert live.peak == each * rows * VOCAB + beside(pieces)
    assert weight.grad.dtype == weight.dtype


def beside(pieces):
    """Bytes counted beside the logits of one piece."""
    sizes = {"layers": 1, "hidden": HIDDEN, "heads": 8, "kv_heads": 8, "ffn": 160, "vocab": VOCAB}
    unit = build_graph(ModelSpec.from_dict({"name": "m", **sizes})).head
    layer = torch_layers.Layer(batch=1, seq=TOKENS, hidden=HIDDEN)
    keys = replace(keys_of(layer), loss_chunks=np.array([pieces]))
    return float(beside_bytes(unit, LocalSizes(unit.dims, keys), PRECISIONS["bf16"])[0])


class Liger(torch.autograd.Function):
    """Head and loss in pieces whose gradients are made in the forward pass (arXiv 2410.10989)."""

    @staticmethod
    def forward(ctx, x, weight, labels, pieces):
        into_x, into_weight = torch.zeros_like(x), torch.zeros_like(weight)
        total = torch.zeros((), dtype=torch.float32)
        for part, target, gradient in zip(x.chunk(pieces), labels.chunk(pieces), into_x.chunk(pieces), strict=True):
            logits = part @ weight.t()
            places = torch.arange(len(part))
            total += (logits.logsumexp(1) - logits[places, target]).sum()
            logits = logits.softmax(1)
            logits[places, target] -= 1
            gradient.copy_(logits @ weight)
            into_weight += logits.t() @ part
        ctx.save_for_backward(into_x, into_weight)
        return total

    @staticmethod
    def backward(ctx, gradient):
        into_x, into_weight = ctx.saved_tensors
        return into_x * gradient, into_weight * gradient, None, None


def test_no_logits_are_kept_for_the_backward_pass_of_a_loss_in_pieces():
    x, weight, labels = (t.detach().double().requires_grad_() if t.is_floating_point() else t for t in head())
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        loss = Liger.apply(x, weight, labels, 4)
    loss.backward()
    found = x.grad.clone(), weight.grad.clone()
    assert kept == [(TOKENS, HIDDEN), (VOCAB, HIDDEN)]
    x.grad = weight.grad = None
    functional.cross_entropy(functional.linear(x, weight), labels, reduction="sum").backward()
    assert torch.allclose(found[0], x.grad)
    assert torch.allclose(found[1], weight.grad)
