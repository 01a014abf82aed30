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


class WithoutOutput(torch.autograd.Function):
    """A module whose output is thrown away once it was read, and made again in the backward pass (Megatron-Core)."""

    @staticmethod
    def forward(ctx, function, *given):
        ctx.save_for_backward(*given)
        ctx.function = function
        with torch.no_grad():
            made = function(*given)
        return made if isinstance(made, torch.Tensor) else tuple(made)

    @staticmethod
    def backward(ctx, *gradients):
        given = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            made = ctx.function(*given)
        torch.autograd.backward(made, gradients)
        return None, *(t.grad for t in given)


class Kernel(torch.autograd.Function):
    """One kernel that keeps some of the tensors it reads."""

    @staticmethod
    def forward(ctx, function, keeps, *given):
        ctx.save_for_backward(*(given[place] for place in keeps))
        return function(*given)

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError("only what is kept is looked at")


class Quantised(torch.autograd.Function):
    """A product that keeps its input as it read it: in 8 or 4 bits, with its scales (Transformer Engine)."""

    @staticmethod
    def forward(ctx, x, weight, recipe):
        ctx.save_for_backward(*recipe(x), weight)
        return functional.linear(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("only what is kept is looked at")


def by_tensor(x):
    """8 bits a value, one scale."""
    return x.to(torch.float8_e4m3fn), torch.ones((), dtype=torch.float32)


def by_tiles(x):
    """8 bits a value, a scale in fp32 for 128 of them."""
    return x.to(torch.float8_e4m3fn), torch.ones(x.numel() // 128, dtype=torch.float32)


def by_blocks(x):
    """8 bits a value, a scale of 8 bits for 32 of them."""
    return x.to(torch.float8_e4m3fn), torch.ones(x.numel() // 32, dtype=torch.uint8)


def in_4_bits(x):
    """4 bits a value, a scale of 8 bits for 16 of them."""
    return torch.ones(x.numel() // 2, dtype=torch.uint8), torch.ones(x.numel() // 16, dtype=torch.float8_e4m3fn)


def as_read(x):
    """The input in 16 bits, to be cast once more in the backward pass (torchao)."""
    return (x,)


RECIPES = {"fp8-tensorwise": by_tensor, "fp8-blockwise": by_tiles, "mxfp8": by_blocks, "nvfp4": in_4_bits, "as read": as_read}


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
    shared: int = 0
    fused_gate: bool = False
    sinks: bool = False
    ep: int = 1
    recipe: str | None = None
    dtype: torch.dtype = torch.float32
    again: frozenset[str] = frozenset()

    def weight(self, *shape):
        return torch.randn(*shape, dtype=self.dtype).mul_(0.02).requires_grad_()

    def linear(self, x, wide):
        return functional.linear(x, self.weight(wide, x.shape[-1]), self.weight(wide) if self.bias else None)

    def wide(self, x, widths):
        """Products of one input, which are one product where it is quantised."""
        if self.recipe is None:
            return [self.linear(x, width) for width in widths]
        made = Quantised.apply(x, self.weight(sum(widths), x.shape[-1]), RECIPES[self.recipe])
        return [part.clone() for part in made.split(widths, dim=-1)]

    def product(self, x, width):
        return self.wide(x, [width])[0]

    def read(self, name, function, given, reader):
        """What a reader makes of a module's output, which is thrown away where the module is one of those run again."""
        if name not in self.again:
            return reader(function(*given))
        made = WithoutOutput.apply(function, *given)
        out = reader(made)
        for tensor in (made,) if isinstance(made, torch.Tensor) else made:
            tensor.untyped_storage().resize_(0)
        return out

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
        if self.sinks:
            return self.core_with_sinks(query, key, value)
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

    def core_with_sinks(self, query, key, value):
        """One kernel, as those with one more logit a head: it keeps the logarithm of its denominators too."""
        spread = torch.zeros(query.shape[:3], dtype=torch.float32)
        sinks = self.weight(query.shape[1])
        out = Kernel.apply(lambda *given: given[0].clone(), (0, 1, 2, 3, 4), query, key, value, spread, sinks)
        return Kernel.apply(lambda given: given.view_as(given), (0,), out)

    def attention(self, x):
        if self.latent is not None:
            mixed = self.latent_core(x)
        else:
            heads, kv_heads = self.heads // self.tp, self.kv_heads // self.tp
            parts = self.wide(x, [n * self.dim for n in (heads, kv_heads, kv_heads)])
            query, key, value = map(self.split, parts, (heads, kv_heads, kv_heads))
            if self.qk_norm:
                query, key = self.normed(query), self.normed(key)
            mixed = self.run("core_attn", self.core, query, key, value)
        joined = mixed.transpose(1, 2).reshape(x.shape[0], mixed.shape[2], -1)
        return self.product(joined, self.hidden)

    def latent_core(self, x):
        q_rank, kv_rank, nope, rope, width = self.latent
        heads = self.heads // self.tp

        def made(narrow_query, narrow, shared):
            query = self.split(self.linear(narrow_query, heads * (nope + rope)), heads)
            first = self.split(self.linear(narrow, heads * nope), heads)
            value = self.split(self.linear(narrow, heads * width), heads)
            last = shared[:, None].expand(-1, heads, -1, -1)
            return query, torch.cat((first, last), -1), value

        narrow_query, narrow = self.normed(self.linear(x, q_rank)), self.normed(self.linear(x, kv_rank))
        given = tuple(map(self.gathered, (narrow_query, narrow, self.linear(x, rope))))
        if {"mla_up_proj", "core_attn"} <= self.again:
            return checkpoint(lambda *three: self.core(*made(*three)), *given, use_reentrant=False)
        return self.read("mla_up_proj", made, given, lambda three: self.run("core_attn", self.core, *three))

    def activated(self, gate, up):
        if self.gated and self.fused_gate:
            return Kernel.apply(lambda g, u: functional.silu(g) * u, (0, 1), gate, up)
        return functional.silu(gate) * up if self.gated else functional.gelu(up)

    def mlp(self, x, width=None):
        ffn = (width or self.ffn) // self.tp
        *gates, up = self.wide(x, [ffn, ffn] if self.gated else [ffn])
        gate = gates[0] if gates else None
        if "mlp_act" not in self.again:
            return self.product(self.activated(gate, up), self.hidden)
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

    def fused_moe(self, x):
        """Experts of one rank of ep as Megatron-Core runs them: routing, moving and activation are one kernel each."""
        tokens = x.reshape(-1, self.hidden)
        count, local = len(tokens) * self.topk, self.experts // self.ep
        scores = self.linear(tokens, self.experts).to(torch.float32).softmax(-1)
        places = torch.arange(count, dtype=torch.int32).reshape(-1, self.topk)
        shares = Kernel.apply(lambda given: given[:, : self.topk].clone(), (), scores)
        copies = Kernel.apply(lambda given, _: given.repeat(self.topk, 1), (1,), tokens, places)
        received = Kernel.apply(torch.clone, (), copies)
        weights = Kernel.apply(lambda given: given.reshape(-1).clone(), (), shares)
        made = []
        for part, share in zip(received.chunk(local), weights.chunk(local), strict=True):
            gate, up = self.wide(part, [self.ffn, self.ffn])
            made.append(self.read("moe_act", weighted, (gate, up, share), lambda given: self.product(given, self.hidden)))
        returned = Kernel.apply(torch.clone, (), torch.cat(made))
        routed = Kernel.apply(lambda given, _: given[: len(tokens)].clone(), (1,), returned, places).view_as(x)
        return routed + self.run("shared_experts", lambda given: self.mlp(given, self.shared), x) if self.shared else routed

    def block(self, x, name, function):
        """Norm, gather, block, scatter and residual."""

        late = name == "attn" and self.latent is not None
        entered = (lambda given: given) if late else self.gathered
        made = self.read("layernorm", self.normed, (x,), lambda given: self.run(name, function, entered(given)))
        return x + (Scatter.apply(made, self.tp) if self.tp > 1 else made)

    def forward(self, x):
        return self.run("layer", self.blocks, x)

    def blocks(self, x):
        mid = self.block(x, "attn", self.attention)
        if not self.experts:
            return self.block(mid, "mlp", self.mlp)
        return self.block(mid, "moe", self.fused_moe if self.fused_gate else self.moe)


def weighted(gate, up, share):
    """The gated activation of experts, weighted: one kernel that keeps what it reads."""
    return Kernel.apply(lambda g, u, w: (functional.silu(g) * u * w[:, None]).to(g.dtype), (0, 1, 2), gate, up, share)


def kept_bytes(layer, function=None):
    """Bytes that autograd keeps of a layer beside its parameters: each storage once, scalars and booleans left out."""
    kept, weights = [], set()

    def pack(tensor):
        whole = tensor._base if tensor._base is not None else tensor
        if any(t.is_leaf and t.requires_grad for t in (tensor, whole)):
            weights.add(tensor.untyped_storage()._cdata)
        elif tensor.dim() and tensor.dtype != torch.bool:
            kept.append(tensor)
        return tensor

    stream = torch.randn(layer.batch, layer.seq // (layer.tp * layer.cp), layer.hidden, dtype=layer.dtype)
    stream = (stream.requires_grad_() * 1).view(stream.shape)
    stream = torch.add(stream, 0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = (function or layer.forward)(stream)
    del out
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in kept}
    return sum(size for place, size in storages.items() if place not in weights)


def head_bytes(layer, vocab):
    """Bytes that autograd keeps of the last norm, the output product and a cross entropy in fp32."""

    def head(x):
        labels = torch.zeros(layer.batch * layer.seq, dtype=torch.int64)
        logits = layer.linear(layer.normed(x), vocab).to(torch.float32)
        return functional.cross_entropy(logits.view(-1, vocab), labels)

    return kept_bytes(layer, head)
