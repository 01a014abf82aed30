"""A decoder-only language model in plain PyTorch, as config.yaml describes it.

`Model(config, chunk)` builds the layers of one pipeline chunk: embeddings on the first, norm and head on the last. Weights
depend on their names alone (`fill`), so that every way to divide the model starts from the same numbers.
"""

import hashlib

import torch
from torch import nn
from torch.nn import functional

GATED = {"swiglu": functional.silu, "geglu": functional.gelu, "reglu": functional.relu}
PLAIN = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "silu": functional.silu,
}


def norm(config):
    """The norm of the residual stream."""
    kind = config["norm"]
    if kind == "rmsnorm":
        return nn.RMSNorm(config["hidden"], eps=1e-5)
    return nn.LayerNorm(config["hidden"], bias=kind == "layernorm", elementwise_affine=kind != "layernorm-plain")


def rotate(x, positions):
    """Rotary embedding of [batch, tokens, heads, size] at the given positions, halves paired."""
    half = x.shape[-1] // 2
    frequency = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angle = positions.to(torch.float32)[:, None] * (1e4**-frequency)[None, :]
    cos, sin = angle.cos()[None, :, None, :].to(x.dtype), angle.sin()[None, :, None, :].to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Attention(nn.Module):
    """Causal attention with grouped keys and values."""

    def __init__(self, config, core):
        super().__init__()
        self.size, self.rope, self.core = config["head_dim"], config["positions"] == "rope", core
        width, kv_width = config["heads"] * self.size, config["kv_heads"] * self.size
        self.wq = nn.Linear(config["hidden"], width, bias=config["qkv_bias"])
        self.wk = nn.Linear(config["hidden"], kv_width, bias=config["qkv_bias"])
        self.wv = nn.Linear(config["hidden"], kv_width, bias=config["qkv_bias"])
        self.wo = nn.Linear(width, config["hidden"], bias=config["out_bias"])
        if config["qk_norm"] == "head":
            self.q_norm, self.k_norm = nn.RMSNorm(self.size, eps=1e-5), nn.RMSNorm(self.size, eps=1e-5)

    def forward(self, x, positions):
        batch, tokens, _ = x.shape
        q, k, v = (w(x).view(batch, tokens, -1, self.size) for w in (self.wq, self.wk, self.wv))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rope:
            q, k = rotate(q, positions), rotate(k, positions)
        return self.wo(attend(self.core, q, k, v).reshape(batch, tokens, -1))


class LatentAttention(nn.Module):
    """Attention over compressed keys and values (arXiv 2405.04434, section 2.1)."""

    def __init__(self, config, core):
        super().__init__()
        latent, self.heads, self.core = config["mla"], config["heads"], core
        self.nope, self.turned, self.value = latent["nope_dim"], latent["rope_dim"], latent["v_dim"]
        width = self.heads * (self.nope + self.turned)
        if latent["q_rank"]:
            self.wq_a, self.q_norm = nn.Linear(config["hidden"], latent["q_rank"], bias=False), nn.RMSNorm(latent["q_rank"])
        self.wq_b = nn.Linear(latent["q_rank"] or config["hidden"], width, bias=False)
        self.wkv_a = nn.Linear(config["hidden"], latent["kv_rank"] + self.turned, bias=False)
        self.kv_norm = nn.RMSNorm(latent["kv_rank"])
        self.wkv_b = nn.Linear(latent["kv_rank"], self.heads * (self.nope + self.value), bias=False)
        self.wo = nn.Linear(self.heads * self.value, config["hidden"], bias=False)

    def forward(self, x, positions):
        batch, tokens, _ = x.shape
        compressed = self.q_norm(self.wq_a(x)) if hasattr(self, "wq_a") else x
        q = self.wq_b(compressed).view(batch, tokens, self.heads, -1)
        q_nope, q_turned = q.split([self.nope, self.turned], dim=-1)
        latent, k_turned = self.wkv_a(x).split([self.wkv_b.in_features, self.turned], dim=-1)
        k_nope, v = self.wkv_b(self.kv_norm(latent)).view(batch, tokens, self.heads, -1).split([self.nope, self.value], dim=-1)
        k_turned = rotate(k_turned[:, :, None, :], positions).expand(-1, -1, self.heads, -1)
        q = torch.cat((q_nope, rotate(q_turned, positions)), dim=-1)
        k = torch.cat((k_nope, k_turned), dim=-1)
        v = functional.pad(v, (0, k.shape[-1] - self.value))
        out = attend(self.core, q, k, v)[..., : self.value]
        return self.wo(out.reshape(batch, tokens, -1))


def attend(core, q, k, v):
    """Attention of [batch, tokens, heads, size], keys and values repeated for their groups of queries."""
    groups = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(groups, dim=2) if groups > 1 else t for t in (k, v))
    return core(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)


def whole_sequence(q, k, v):
    """Causal attention where a rank holds the whole sequence; [batch, heads, tokens, size]."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class FeedForward(nn.Module):
    """Dense feed-forward block."""

    def __init__(self, config, width):
        super().__init__()
        hidden, bias = config["hidden"], config["mlp_bias"]
        self.w1 = nn.Linear(hidden, width, bias=bias)
        self.w2 = nn.Linear(width, hidden, bias=bias)
        self.gate = GATED.get(config["activation"])
        if self.gate:
            self.w3 = nn.Linear(hidden, width, bias=bias)
        self.plain = PLAIN.get(config["activation"])

    def forward(self, x):
        return self.w2(self.gate(self.w1(x)) * self.w3(x) if self.gate else self.plain(self.w1(x)))


class ScaledGradient(torch.autograd.Function):
    """The identity, with its gradient scaled."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None


class Experts(nn.Module):
    """Weights of the experts this rank holds, one matrix product an expert.

    Tokens of `ep` ranks meet here, while averaging over the ranks that share these weights counts each as one: gradients are
    scaled by `gradient_scale` (tp / ep) so that they are means over all tokens, as those of dense weights are.
    """

    gradient_scale = 1.0

    def __init__(self, config, count):
        super().__init__()
        hidden, width = config["hidden"], config["moe"]["expert_ffn"]
        self.gate, self.plain = GATED.get(config["activation"]), PLAIN.get(config["activation"])
        self.w1 = nn.Parameter(torch.empty(count, hidden, width))
        self.w2 = nn.Parameter(torch.empty(count, width, hidden))
        if self.gate:
            self.w3 = nn.Parameter(torch.empty(count, hidden, width))

    def forward(self, x, counts):
        w1, w2 = (ScaledGradient.apply(w, self.gradient_scale) for w in (self.w1, self.w2))
        w3 = ScaledGradient.apply(self.w3, self.gradient_scale) if self.gate else None
        made = []
        for i, part in enumerate(x.split(counts)):
            inner = self.gate(part @ w1[i]) * (part @ w3[i]) if self.gate else self.plain(part @ w1[i])
            made.append(inner @ w2[i])
        return torch.cat(made)


class MixtureOfExperts(nn.Module):
    """Token-choice routing without dropping; `exchange` moves tokens to the ranks of their experts."""

    def __init__(self, config, exchange):
        super().__init__()
        moe = config["moe"]
        self.count, self.topk, self.exchange = moe["experts"], moe["topk"], exchange
        self.router = nn.Linear(config["hidden"], moe["experts"], bias=moe["router_bias"])
        self.experts = Experts(config, moe["experts"] // exchange.size)
        self.shared = FeedForward(config, moe["shared_ffn"]) if moe["shared_ffn"] else None

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        scores = self.router(x).reshape(-1, self.count).float().softmax(dim=-1)
        weights, chosen = scores.topk(self.topk, dim=-1)
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(flat.dtype)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.count)
        done = self.exchange(flat[order // self.topk], counts, self.experts)
        out = torch.zeros_like(flat).index_add(0, order // self.topk, done * weights.flatten()[order, None])
        out = out.view_as(x)
        return out if self.shared is None else out + self.shared(x)


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, config, layer, core, exchange):
        super().__init__()
        dense = config["moe"] is None or layer in config["moe"]["dense_layers"]
        self.attention_norm, self.mlp_norm = norm(config), norm(config)
        self.attention = (LatentAttention if config["mla"] else Attention)(config, core)
        self.mlp = FeedForward(config, config["ffn"]) if dense else MixtureOfExperts(config, exchange)

    def forward(self, x, positions):
        x = x + self.attention(self.attention_norm(x), positions)
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    """The layers `chunk["layers"]`, with embeddings on the first chunk and the head on the last."""

    def __init__(self, config, chunk, core, exchange, positions):
        super().__init__()
        self.positions = positions
        if chunk["first"]:
            self.embedding = nn.Embedding(config["vocab"], config["hidden"])
            if config["positions"] == "learned":
                self.position_embedding = nn.Embedding(config["max_positions"], config["hidden"])
        self.layers = nn.ModuleDict({str(i): Block(config, i, core, exchange) for i in chunk["layers"]})
        if chunk["last"]:
            self.norm = norm(config)
            self.head = nn.Linear(config["hidden"], config["vocab"], bias=config["head_bias"])
            if config["tied_embeddings"] and chunk["first"]:
                self.head.weight = self.embedding.weight

    def forward(self, x, loss=None):
        """The stream, or logits; with `loss`, a function of what the head reads and of the head, what that gives."""
        positions = self.positions.to(x.device)
        if hasattr(self, "embedding"):
            x = self.embedding(x)
        if hasattr(self, "position_embedding"):
            x = x + self.position_embedding(positions[None, :])
        for layer in self.layers.values():
            x = layer(x, positions)
        if not hasattr(self, "head"):
            return x
        return self.head(self.norm(x)) if loss is None else loss(self.norm(x), self.head)


def fill(model, seed, expert_rank):
    """Weights from the names of the parameters: the same numbers however the model is divided."""
    seen = set()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if id(weight) in seen:
                continue
            seen.add(id(weight))
            if "norm" in name and weight.dim() == 1:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
            elif ".experts." in name:
                count = weight.shape[0]
                for i in range(count):
                    draw(weight[i], f"{name}.{expert_rank * count + i}", seed)
            elif name.endswith("bias"):
                weight.zero_()
            else:
                draw(weight, name, seed)


def draw(weight, name, seed):
    """Normal numbers of a generator seeded by name and seed."""
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7], "big")
    numbers = torch.randn(weight.shape, generator=torch.Generator().manual_seed(key))
    weight.copy_(numbers * 0.02)
