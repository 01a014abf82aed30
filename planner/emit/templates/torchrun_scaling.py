"""The loss scale of fp16: gradients too small for the format are kept, steps whose gradients overflow are left out.

The scale halves at an overflow and doubles after `STEADY` steps without one (arXiv 1710.03740, section 3.2). Whether there
was one is agreed on by all ranks, however the model is divided, so that all of them leave the same steps out.
"""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

START, STEADY = 2.0**16, 2000


class LossScale:
    """Multiplies losses; 1 and without effect in other precisions than fp16."""

    def __init__(self, precision):
        self.active = precision == "fp16"
        self.value = START if self.active else 1.0
        self.steady = 0

    def __call__(self, loss):
        return loss * self.value if self.active else loss

    def guarding(self, optimizer, parameters):
        """The update of a step: gradients are scaled back first, and left out where they overflowed."""

        def update():
            if not self.active or self.scaled_back(parameters):
                optimizer.step()
            optimizer.zero_grad()

        return update

    def scaled_back(self, parameters):
        """Divides gradients by the scale, and moves it; False where one of them, on any rank, is not finite."""
        grads = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters if p.grad is not None]
        device = "cuda" if torch.cuda.is_available() else "cpu"  # gradients may be on the host, groups exchange on devices
        finite = torch.ones(1, device=device)
        for grad in grads:
            finite *= grad.isfinite().all().to(device)
            grad.div_(self.value)
        dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        whole = bool(finite)
        self.steady = self.steady + 1 if whole else 0
        if not whole:
            self.value /= 2
        elif self.steady == STEADY:
            self.value, self.steady = self.value * 2, 0
        return whole
