"""Attention over a sequence that is divided among ranks, and exchange of tokens with the ranks of their experts.

Context parallelism: the sequence is cut into 2·cp pieces and rank r holds pieces r and 2·cp-1-r, so that causal attention is
the same work everywhere.

    p2p         keys and values travel round the ring; partial results are merged by their log-sum-exp (arXiv 2310.01889)
    allgather   keys and values are gathered once, attention masks by position
    a2a         heads are exchanged for tokens and back (arXiv 2309.14509)
"""

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd, all_to_all_single_autograd
from torch.nn import functional


def held_positions(tokens, rank, size):
    """Positions of the tokens a rank holds."""
    pieces = torch.arange(tokens).chunk(2 * size)
    return torch.cat((pieces[rank], pieces[2 * size - 1 - rank])) if size > 1 else torch.arange(tokens)


def all_positions(tokens, size):
    """Positions in the order of the ranks that hold them."""
    return torch.cat([held_positions(tokens, rank, size) for rank in range(size)])


class Gathered:
    """Attention of local queries to all keys and values, gathered once."""

    def __init__(self, tokens, group):
        self.group, size, rank = group, dist.get_world_size(group), dist.get_rank(group)
        everywhere = all_positions(tokens, size)
        self.order = everywhere.argsort()
        self.mask = held_positions(tokens, rank, size)[:, None] >= torch.arange(tokens)[None, :]

    def __call__(self, q, k, v):
        k, v = (all_gather_tensor_autograd(t.contiguous(), 2, self.group)[:, :, self.order.to(t.device)] for t in (k, v))
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask.to(q.device))


class HeadExchange:
    """Whole sequences of a share of the heads, by two all-to-alls."""

    def __init__(self, tokens, group):
        self.group, self.size = group, dist.get_world_size(group)
        self.order = all_positions(tokens, self.size).argsort()
        self.back = self.order.argsort()

    def __call__(self, q, k, v):
        q, k, v = (self.heads_for_tokens(t)[:, :, self.order.to(t.device)] for t in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.tokens_for_heads(out[:, :, self.back.to(out.device)])

    def heads_for_tokens(self, x):
        batch, heads, tokens, size = x.shape
        parts = x.view(batch, self.size, heads // self.size, tokens, size).transpose(0, 1).contiguous()
        moved = self.move(parts)  # [ranks, batch, heads/ranks, tokens, size]
        return moved.permute(1, 2, 0, 3, 4).reshape(batch, heads // self.size, self.size * tokens, size)

    def tokens_for_heads(self, x):
        batch, heads, tokens, size = x.shape
        parts = x.view(batch, heads, self.size, tokens // self.size, size).permute(2, 0, 1, 3, 4).contiguous()
        moved = self.move(parts)  # [ranks, batch, heads, tokens/ranks, size]
        return moved.transpose(0, 1).reshape(batch, self.size * heads, tokens // self.size, size)

    def move(self, parts):
        return all_to_all_single_autograd(parts, None, None, self.group).view_as(parts)


class Ring:
    """Keys and values travel round the ring of ranks."""

    def __init__(self, tokens, group):
        self.group = group

    def __call__(self, q, k, v):
        return RingAttention.apply(q.contiguous(), k.contiguous(), v.contiguous(), self.group)


def passed_on(tensors, group):
    """The tensors of the previous rank of the ring."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    to, origin = (dist.get_global_rank(group, (rank + step) % size) for step in (1, -1))
    received = [torch.empty_like(t) for t in tensors]
    pairs = [dist.P2POp(dist.isend, t.contiguous(), to, group) for t in tensors]
    pairs += [dist.P2POp(dist.irecv, t, origin, group) for t in received]
    for request in dist.batch_isend_irecv(pairs):
        request.wait()
    return received


def kernel(q, k, v, causal):
    """(output, log-sum-exp, what the backward needs besides) of one block."""
    if q.is_cuda:
        made = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        return made[0], made[1], made[2:8]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out, lse, ()


def kernel_backward(grad, q, k, v, out, lse, causal, more):
    """(dq, dk, dv) of one block, from the output and log-sum-exp of the whole row."""
    if q.is_cuda:
        seq_q, seq_k, max_q, max_k, seed, offset = more
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, lse, seq_q, seq_k, max_q, max_k, 0.0, causal, seed, offset
        )
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, lse, 0.0, causal)


class RingAttention(torch.autograd.Function):
    """Causal attention over a ring; every block is whole or causal, so that no mask is made."""

    @staticmethod
    def forward(ctx, q, k, v, group):
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        half = q.shape[2] // 2
        out = torch.zeros_like(q, dtype=torch.float32)
        lse = torch.full(q.shape[:3], float("-inf"), device=q.device)
        keys, values, blocks = k, v, []
        for step in range(size):
            source = (rank - step) % size
            rows, columns, causal = blocks_of(rank, source, half)
            part, part_lse, more = kernel(q[:, :, rows], keys[:, :, columns], values[:, :, columns], causal)
            merge(out[:, :, rows], lse[:, :, rows], part, part_lse.reshape(part.shape[:3]))
            blocks.append(more)
            if step + 1 < size:
                keys, values = passed_on((keys, values), group)
        result = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, result, lse)
        ctx.group, ctx.blocks = group, blocks
        return result

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        size, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        half = q.shape[2] // 2
        grad = grad.contiguous()
        dq = torch.zeros_like(q)
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        keys, values = k, v
        for step in range(size):
            source = (rank - step) % size
            rows, columns, causal = blocks_of(rank, source, half)
            parts = (t[:, :, rows].contiguous() for t in (grad, q))
            dout, queries = parts
            gq, gk, gv = kernel_backward(
                dout,
                queries,
                keys[:, :, columns].contiguous(),
                values[:, :, columns].contiguous(),
                out[:, :, rows].contiguous(),
                lse[:, :, rows].contiguous(),
                causal,
                ctx.blocks[step],
            )
            dq[:, :, rows] += gq
            dk[:, :, columns] += gk
            dv[:, :, columns] += gv
            keys, values, dk, dv = passed_on((keys, values, dk, dv), ctx.group)
        return dq, dk, dv, None


def blocks_of(rank, source, half):
    """Which local queries meet which keys of another rank, and whether the block is causal."""
    everything = slice(0, 2 * half)
    if source == rank:
        return everything, everything, True
    if source < rank:
        return everything, slice(0, half), False
    return slice(half, 2 * half), everything, False


def merge(out, lse, part, part_lse):
    """Adds a block to rows in place; weights are the shares of the sums of exponentials."""
    total = torch.logaddexp(lse, part_lse)
    out.mul_((lse - total).exp()[..., None]).add_(part * (part_lse - total).exp()[..., None])
    lse.copy_(total)


CORES = {"p2p": Ring, "allgather": Gathered, "a2a": HeadExchange}


class ExpertExchange:
    """Moves tokens to the ranks that hold their experts, and back."""

    def __init__(self, group):
        self.group = group
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)

    def __call__(self, x, counts, experts):
        if self.size == 1:
            return experts(x, counts.tolist())
        local = counts.numel() // self.size
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=self.group)
        sent = counts.view(self.size, local).sum(dim=1).tolist()
        got = received.view(self.size, local).sum(dim=1).tolist()
        moved = all_to_all_single_autograd(x.contiguous(), got, sent, self.group)
        order = torch.repeat_interleave(torch.arange(local, device=x.device).repeat(self.size), received).argsort(stable=True)
        done = experts(moved[order], received.view(self.size, local).sum(dim=0).tolist())
        return all_to_all_single_autograd(done[order.argsort()].contiguous(), sent, got, self.group)
