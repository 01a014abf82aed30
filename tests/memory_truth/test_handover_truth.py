"""What torch's pipelines hold to hand over activations and gradients, against what is counted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from shardwright.planner.cost.handover import handover
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.stacks import load_stack

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

STAGES, ROWS, WIDTH = 4, 8, 16
BORDER = ROWS * WIDTH * 4
"""Bytes of what one micro-batch hands over, fp32."""


class Kept(torch.nn.Linear):
    """A stage that notes how many outputs its pipeline keeps at most, the one it makes among them."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.stage, self.most = None, 0

    def forward(self, x):
        made = super().forward(x)
        self.most = max(self.most, 1 + len(self.stage.fwd_cache))
        return made


def run(rank, count):
    """The stage of a rank after one step of 1F1B; other ranks are made up."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.pipelining._utils import InferenceMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=STAGES, store=FakeStore())
    try:
        shape = torch.zeros(ROWS, WIDTH, requires_grad=True)
        part = Kept()
        sizes = {"input_args": (shape,), "output_args": (shape,), "output_grads": (shape,), "input_grads": (shape,)}
        stage = part.stage = PipelineStage(part, rank, STAGES, torch.device("cpu"), **sizes)
        schedule = Schedule1F1B(stage, n_microbatches=count, loss_fn=lambda made, wanted: (made - wanted).sum())
        schedule._warmup_p2p = lambda stages, *_: setattr(stage, "_inference_mode", InferenceMode.STATIC)
        whole = torch.zeros(count * ROWS, WIDTH)
        schedule.step(*((whole,) if rank == 0 else ()), **({"target": whole, "losses": []} if rank == STAGES - 1 else {}))
    finally:
        dist.destroy_process_group()
    return stage, part.most


def received(stage):
    """Bytes of the buffers a stage receives into."""
    infos = (*stage.args_recv_info.values(), *stage.grad_recv_info.values())
    return sum(info.buffer.nbytes for each in infos for info in each if info.buffer is not None)


def counted(rank, count):
    """(always, while passes run, micro-batches in flight), bytes."""
    columns = {"pp": STAGES, "vpp": 1, "micro_batches": count, "schedule": SCHEDULE_IDS.index("1f1b"), "sp": 0, "tp": 1}
    batch = SimpleNamespace(**{name: np.array([value]) for name, value in columns.items()})
    alive, at = np.array([[float(min(count, STAGES - rank))]]), np.array([[rank]])
    found = handover(batch, np.array([[float(BORDER)]]), alive, (at, at), load_stack("torchtitan"))
    return found.always.item(), found.passing.item(), alive.item()


@pytest.mark.parametrize("count", [4, 12])
@pytest.mark.parametrize("rank", range(STAGES))
def test_buffers_and_outputs_are_those_of_torch(rank, count):
    """Inputs in flight lie in the buffers, and activations count them; so does the gradient of the stream in one of them."""
    stage, most = run(rank, count)
    always, passing, alive = counted(rank, count)
    inputs, gradient = alive * BORDER * (rank > 0), BORDER * (rank < STAGES - 1)
    assert always + inputs + gradient == received(stage)
    assert most == alive
    assert passing == (most * BORDER if rank < STAGES - 1 else 0)
