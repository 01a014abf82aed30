"""Head and loss in pieces: each goes forward and backward before the next, so that the logits of one alone are there."""

import torch
from torch.nn import functional


class LossInPieces(torch.autograd.Function):
    """Mean cross entropy of a linear head, whose gradients are made piece by piece in the forward pass."""

    @staticmethod
    def forward(ctx, x, weight, bias, labels, pieces):
        rows, gradient = x.detach().flatten(0, 1), torch.empty_like(x)
        head = [None if part is None else part.detach().requires_grad_() for part in (weight, bias)]
        parts = zip(rows.chunk(pieces), labels.flatten().chunk(pieces), gradient.view(rows.shape).chunk(pieces), strict=True)
        total = 0.0
        for part, target, into in parts:
            own = part.detach().requires_grad_()
            with torch.enable_grad():
                loss = functional.cross_entropy(functional.linear(own, *head).float(), target) * (len(part) / len(rows))
            loss.backward()
            into.copy_(own.grad)
            total = total + loss.detach()
        ctx.save_for_backward(gradient, *(None if part is None else part.grad for part in head))
        return total

    @staticmethod
    def backward(ctx, scale):
        return *(None if part is None else part * scale for part in ctx.saved_tensors), None, None


def loss_in_pieces(x, head, *, labels, pieces):
    """The loss of what the head reads."""
    return LossInPieces.apply(x, head.weight, head.bias, labels, pieces)
