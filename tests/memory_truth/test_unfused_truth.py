"""Bytes that torch moves in what Megatron-Core leaves unfused around experts and rotations, operator by operator."""

from __future__ import annotations

import pytest

from shardwright.planner.cost.experts import BIAS_BYTES, CLAMP_BYTES, SCALE_BYTES, WIDE_BIAS_BYTES

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
dispatching = pytest.importorskip("torch.utils._python_dispatch")
leaves = pytest.importorskip("torch.utils._pytree").tree_leaves

ROWS, WIDTH = 4096, 512
FUSED_ROTATION = 4.0
"""Bytes a value of a rotation that reads and writes once, which the operator itself counts."""


class Traffic(dispatching.TorchDispatchMode):
    """Adds up what operators read and write; views move nothing."""

    moved = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        read, written = ([t for t in leaves(x) if isinstance(t, torch.Tensor)] for x in ((args, kwargs), out))
        places = {t.untyped_storage().data_ptr() for t in read}
        in_place = func.__name__.split(".")[0].endswith("_")
        if in_place or any(t.untyped_storage().data_ptr() not in places for t in written):
            self.moved += sum(t.numel() * t.element_size() for t in (*read, *written))
        return out


def bytes_a_value(run, source):
    with Traffic() as forward:
        out = run(source)
    gradient = torch.ones_like(out)
    with Traffic() as backward:
        out.backward(gradient)
    return forward.moved / source.numel(), backward.moved / source.numel()


def values(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def test_clamped_halves_joined_again():
    def clamp(wide):
        gate, up = wide.chunk(2, -1)
        return torch.cat((gate.clamp(max=7.0), up.clamp(min=-7.0, max=7.0)), -1)

    assert bytes_a_value(clamp, values(ROWS, WIDTH)) == pytest.approx(CLAMP_BYTES, rel=0.01)


def test_a_rotation_with_a_factor():
    factors = torch.randn(ROWS // 64, 1, 1, WIDTH, dtype=torch.bfloat16)

    def rotate(heads):
        turned, rest = heads[..., :WIDTH], heads[..., WIDTH:]
        first, second = torch.chunk(turned, 2, -1)
        turned = turned * factors + torch.cat((-second, first), -1) * factors
        return torch.cat((turned, rest), -1)

    expected = [each + FUSED_ROTATION for each in SCALE_BYTES]
    assert bytes_a_value(rotate, values(ROWS // 64, 1, 64, WIDTH)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", BIAS_BYTES), ("float32", WIDE_BIAS_BYTES)])
def test_biases_by_expert(dtype, expected):
    probabilities, biases = values(ROWS, 1, dtype=getattr(torch, dtype)), [values(WIDTH) for _ in range(2)]

    def add(rows):
        pieces = zip(torch.split(rows, ROWS // 2), biases, torch.split(probabilities, ROWS // 2), strict=True)
        return torch.cat([piece + bias * each for piece, bias, each in pieces]).to(rows.dtype)

    assert bytes_a_value(add, values(ROWS, WIDTH)) == pytest.approx(expected, rel=0.02)
