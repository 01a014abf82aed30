"""Layers written operator by operator in plain torch, and a count of what autograd keeps of them.

Widths are those of one rank: heads and feed-forward width divided by tp, the sequence by tp outside tensor-parallel regions
(sequence parallelism), by cp everywhere. `Gather` stands for the exchange between the two, of which autograd keeps nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Gather(torch.autograd.Function):
    """All ranks' parts of the sequence: here the own part, repeated."""

    @staticmethod
    def forward(ctx, x, parts):
        ctx.parts = parts
        return x.repeat(1, parts, 1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.reshape(gradient.shape[0], ctx.parts, -1, gradient.shape[2]).sum(1), None


class Scatter(torch.autograd.Function):
    """The own part of the sequence of a sum over ranks."""

    @staticmethod
    def forward(ctx, x, parts):
        ctx.parts = parts
        return x[:, : x.shape[1] // parts].clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.repeat(1, ctx.parts, 1), None


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Sizes and choices of a layer; `again` names the modules that are run again."""

    batch: int = 2
    seq: int = 32
    hidden: int = 64
    heads: int = 8
    kv_heads: int = 8
    dim: int = 8
    ffn: int = 160
    norm: str = "layernorm"
    gated: bool = False
    qk_norm: bool = False
    bias: bool = False
    window: int | None = None
    fused: bool = True
    latent: tuple[int, int, int, int, int] | None = None
    experts: int = 0
    topk: int = 2
    tp: int = 1
    cp: int = 1
    dtype: torch.dtype = torch.float32
    again: frozenset[str] = frozenset()

    def weight(self, *shape):
        return torch.randn(*shape, dtype=self.dtype).mul_(0.02).requires_grad_()

    def linear(self, x, wide):
        return functional.linear(x, self.weight(wide, x.shape[-1]), self.weight(wide) if self.bias else None)

    def run(self, name, function, *given):
        return checkpoint(function, *given, use_reentrant=False) if name in self.again else function(*given)

    def normed(self, x):
        width = x.shape[-1]
        if self.norm == "layernorm":
            return functional.layer_norm(x, (width,), self.weight(width), self.weight(width))
        wide = x.to(torch.float32)
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight(width) * scaled.to(x.dtype)

    def gathered(self, x):
        return Gather.apply(x, self.tp) if self.tp > 1 else x

    def split(self, x, heads):
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)

    def core(self, query, key, value):
        if self.fused:
            mask = None
            if self.window is not None:
                places = torch.arange(query.shape[2])
                far = places[:, None] - places[None, :]
                mask = (far >= 0) & (far < self.window)
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        return scores.softmax(-1) @ value

    def attention(self, x):
        if self.latent is not None:
            mixed = self.latent_core(x)
        else:
            heads, kv_heads = self.heads // self.tp, self.kv_heads // self.tp
            query, key, value = (self.split(self.linear(x, n * self.dim), n) for n in (heads, kv_heads, kv_heads))
            if self.qk_norm:
                query, key = self.normed(query), self.normed(key)
            mixed = self.run("core_attn", self.core, query, key, value)
        joined = mixed.transpose(1, 2).reshape(x.shape[0], mixed.shape[2], -1)
        return self.linear(joined, self.hidden)

    def latent_core(self, x):
        q_rank, kv_rank, nope, rope, width = self.latent
        heads = self.heads // self.tp

        def mixed(narrow_query, narrow, shared):
            query = self.split(self.linear(narrow_query, heads * (nope + rope)), heads)
            first = self.split(self.linear(narrow, heads * nope), heads)
            value = self.split(self.linear(narrow, heads * width), heads)
            last = shared[:, None].expand(-1, heads, -1, -1)
            return self.core(query, torch.cat((first, last), -1), value)

        narrow_query, narrow = self.normed(self.linear(x, q_rank)), self.normed(self.linear(x, kv_rank))
        return self.run("mla_up_proj", mixed, *map(self.gathered, (narrow_query, narrow, self.linear(x, rope))))

    def activated(self, gate, up):
        return functional.silu(gate) * up if self.gated else functional.gelu(up)

    def mlp(self, x):
        ffn = self.ffn // self.tp
        gate, up = self.linear(x, ffn) if self.gated else None, self.linear(x, ffn)
        if "mlp_act" not in self.again:
            return self.linear(self.activated(gate, up), self.hidden)
        weight = self.weight(self.hidden, ffn)
        return checkpoint(lambda g, u: functional.linear(self.activated(g, u), weight), gate, up, use_reentrant=False)

    def moe(self, x):
        tokens = x.reshape(-1, self.hidden)
        chosen = torch.arange(len(tokens) * self.topk).reshape(-1, self.topk) % self.experts
        scores = self.linear(tokens, self.experts).to(torch.float32).softmax(-1)
        order = chosen.reshape(-1).argsort(stable=True)
        rows = tokens.index_select(0, order // self.topk)
        share = scores.gather(1, chosen).reshape(-1).index_select(0, order)
        parts = rows.chunk(self.experts)
        wide = [(self.linear(part, self.ffn), self.linear(part, self.ffn)) for part in parts]
        acted = [functional.silu(gate) * up for gate, up in wide]
        made = torch.cat([self.linear(part, self.hidden) for part in acted])
        weighted = made * share[:, None].to(self.dtype)
        return torch.zeros_like(tokens).index_add(0, order // self.topk, weighted).view_as(x)

    def block(self, x, name, function):
        """Norm, gather, block, scatter and residual."""

        late = name == "attn" and self.latent is not None
        entered = self.normed(x) if late else self.gathered(self.normed(x))
        made = self.run(name, function, entered)
        return x + (Scatter.apply(made, self.tp) if self.tp > 1 else made)

    def forward(self, x):
        return self.run("layer", self.blocks, x)

    def blocks(self, x):
        mid = self.block(x, "attn", self.attention)
        return self.block(mid, "moe", self.moe) if self.experts else self.block(mid, "mlp", self.mlp)


def kept_bytes(layer, function=None):
    """Bytes that autograd keeps of a layer beside its parameters: each storage once, scalars and booleans left out."""
    found, given = {}, []

    def pack(tensor):
        leaf = tensor.is_leaf and tensor.requires_grad
        whole = tensor._base if tensor._base is not None else tensor
        if tensor.dim() and not (leaf or (whole.is_leaf and whole.requires_grad)) and tensor.dtype != torch.bool:
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        given.append(tensor)
        return tensor

    stream = torch.randn(layer.batch, layer.seq // (layer.tp * layer.cp), layer.hidden, dtype=layer.dtype)
    stream = (stream.requires_grad_() * 1).view(stream.shape)
    stream = torch.add(stream, 0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = (function or layer.forward)(stream)
    del out
    return sum(found.values())


def head_bytes(layer, vocab):
    """Bytes that autograd keeps of the last norm, the output product and a cross entropy in fp32."""

    def head(x):
        labels = torch.zeros(layer.batch * layer.seq, dtype=torch.int64)
        logits = layer.linear(layer.normed(x), vocab).to(torch.float32)
        return functional.cross_entropy(logits.view(-1, vocab), labels)

    return kept_bytes(layer, head)
