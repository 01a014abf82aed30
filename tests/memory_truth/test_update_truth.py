"""What the optimizer's update and gradients of embeddings take for their time in torch, against what is counted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from shardwright.models.dtypes import PRECISIONS
from shardwright.planner.cost.ends import end_gradients
from shardwright.planner.stacks import load_stack

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
live_bytes = pytest.importorskip("live_bytes")

SHAPE, COUNT = (64, 128), 5
VOCAB, HIDDEN, TOKENS = 512, 64, 32


def peak_of_a_step(**how):
    """Bytes a parameter that a step of AdamW makes and lets go, states apart."""
    weights = [torch.nn.Parameter(torch.ones(SHAPE)) for _ in range(COUNT)]
    optimizer = torch.optim.AdamW(weights, **how)
    for weight in weights:
        weight.grad = torch.ones(SHAPE)
    optimizer.step()
    with live_bytes.Live(lambda t: t.shape == SHAPE and t.untyped_storage()._cdata not in held) as live:
        held = {t.untyped_storage()._cdata for t in (*weights, *(w.grad for w in weights))}
        held |= {t.untyped_storage()._cdata for state in optimizer.state.values() for t in state.values() if t.dim()}
        optimizer.step()
    return live.peak / (COUNT * SHAPE[0] * SHAPE[1])


@pytest.mark.parametrize("stack", ["torchtitan", "torchtitan-eager", "pytorch-fsdp1", "fms-fsdp"])
def test_adamw_of_all_parameters_at_once_makes_their_denominators(stack):
    assert peak_of_a_step(foreach=True) == load_stack(stack).update_bytes


@pytest.mark.parametrize("stack", ["nanotron", "megatron-core"])
def test_fused_adamw_makes_nothing(stack):
    assert peak_of_a_step(fused=True) == load_stack(stack).update_bytes


def test_adamw_parameter_by_parameter_makes_what_one_takes():
    """Of many parameters nothing is left to count."""
    assert peak_of_a_step(foreach=False) <= 3 * 4 / COUNT
    assert load_stack("pytorch-fsdp2").update_bytes == 0


def made_of_an_embedding(micro_batches):
    """Bytes of gradients of an embedding alive at once in the last of so many backward passes, but for the one that is held."""
    table = torch.nn.Parameter(torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16))
    places = torch.arange(TOKENS)
    with live_bytes.Live(lambda t: t.shape == (VOCAB, HIDDEN) and t.untyped_storage()._cdata != own) as live:
        own = table.untyped_storage()._cdata
        for _ in range(micro_batches):
            torch.nn.functional.embedding(places, table).float().sum().backward()
    return live.peak - table.grad.nbytes


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_gradients_of_an_embedding_are_made_apart_from_the_second_micro_batch_on(micro_batches):
    job = SimpleNamespace(grad_bytes=2, precision=PRECISIONS["bf16"])
    problem = SimpleNamespace(job=job, stack=load_stack("megatron-2021"))
    batch = SimpleNamespace(micro_batches=np.array([micro_batches]), zero=np.array([0]))
    each = np.array([[float(VOCAB * HIDDEN)]])
    counted = end_gradients(batch, (each, each, 2 * each), np.array([[False]]), problem)
    assert counted.embedding.item() == made_of_an_embedding(micro_batches)
    assert counted.kept.item() == counted.reduced.item() == 0
