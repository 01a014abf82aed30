"""Small torch modules of several families, exported by `make_graphs.py`; sizes are those of published models, weights never
kept."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Block(nn.Module):
    """A GPT-2 block without dropout."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.c_attn, self.c_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.c_fc, self.c_out = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.heads = heads

    def forward(self, x):
        b, s, h = x.shape
        parts = self.c_attn(self.ln_1(x)).split(h, dim=2)
        q, k, v = (part.view(b, s, self.heads, h // self.heads).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, s, h))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """A GPT-2 with tied embeddings and its loss."""

    def __init__(self, vocab=50257, hidden=768, heads=12, layers=12, positions=1024):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(positions, hidden)
        self.h = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), labels.flatten())


class LlamaBlock(nn.Module):
    """A Llama block: grouped heads repeated, rotated halves, gated feed-forward."""

    def __init__(self, hidden, heads, kv_heads, ffn):
        super().__init__()
        size = hidden // heads
        self.norm_1, self.norm_2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.q, self.k, self.v = (nn.Linear(hidden, n * size, bias=False) for n in (heads, kv_heads, kv_heads))
        self.o = nn.Linear(heads * size, hidden, bias=False)
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)
        self.size, self.repeat = size, heads // kv_heads

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        y = self.norm_1(x)
        q, k, v = (proj(y).view(b, s, -1, self.size).transpose(1, 2) for proj in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat((-t[..., self.size // 2 :], t[..., : self.size // 2]), dim=-1) * sin for t in (q, k))
        k, v = (t[:, :, None].expand(-1, -1, self.repeat, -1, -1).reshape(b, -1, s, self.size) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, -1)
        x = x + self.o(y)
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A small Llama with a head of its own."""

    def __init__(self, vocab=32000, hidden=1024, heads=16, kv_heads=4, ffn=2816, layers=6, positions=512):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(LlamaBlock(hidden, heads, kv_heads, ffn) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, vocab, bias=False)
        self.register_buffer("cos", torch.zeros(positions, hidden // heads), persistent=False)
        self.register_buffer("sin", torch.zeros(positions, hidden // heads), persistent=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos[: ids.shape[1]], self.sin[: ids.shape[1]])
        return self.head(self.norm(x))


class Bottleneck(nn.Module):
    """A bottleneck of a Wide-ResNet."""

    def __init__(self, inputs, width, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class WideResNet(nn.Module):
    """Wide-ResNet-50-2 (arXiv 1605.07146 as torchvision builds it)."""

    def __init__(self, classes=1000):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            width, outputs = 128 << stage, 256 << stage
            for index in range(count):
                blocks.append(Bottleneck(inputs, width, outputs, 2 if stage and not index else 1))
                inputs = outputs
        self.blocks, self.fc = nn.ModuleList(blocks), nn.Linear(2048, classes)

    def forward(self, images, labels):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1)), labels)


class Double(nn.Module):
    """Two convolutions with group norms."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.second = nn.Conv2d(inputs, outputs, 3, 1, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norm1, self.norm2 = nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)

    def forward(self, x):
        return F.silu(self.norm2(self.second(F.silu(self.norm1(self.first(x))))))


class UNet(nn.Module):
    """A U-Net with skips over four resolutions (arXiv 1505.04597), attention at the lowest, transposed convolutions up."""

    def __init__(self, channels=64, depth=4, classes=2):
        super().__init__()
        sizes = [channels << level for level in range(depth)]
        self.down = nn.ModuleList(Double(a, b) for a, b in zip([3, *sizes[:-1]], sizes, strict=True))
        last = sizes[-1]
        self.middle, self.qkv, self.out = Double(last, last), nn.Conv2d(last, 3 * last, 1), nn.Conv2d(last, last, 1)
        self.merge = nn.ModuleList(Double(2 * s, s // 2 if s > channels else s) for s in reversed(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(s, s, 2, 2) for s in reversed(sizes))
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, images, target):
        x, skips = images, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).reshape(b, 3, 8, c // 8, h * w).transpose(3, 4).unbind(1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, c, h, w))
        for up, merge, skip in zip(self.up, self.merge, reversed(skips), strict=True):
            x = merge(torch.cat((skip, up(x)), dim=1))
        return F.mse_loss(self.head(x), target)


class Summed(nn.Embedding):
    """An embedding bag as lookup and sum: what ONNX can say in two operators."""

    def forward(self, indices):
        return super().forward(indices).sum(dim=1)


class Dlrm(nn.Module):
    """A DLRM (arXiv 1906.00091): dense features, embedding bags of two indices, pairwise dot products."""

    def __init__(self, tables=8, rows=100_000, size=64, bags=True):
        super().__init__()
        made = (nn.EmbeddingBag(rows, size, mode="sum") if bags else Summed(rows, size) for _ in range(tables))
        self.tables = nn.ModuleList(made)
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, size), nn.ReLU()
        )
        pairs = (tables + 1) ** 2
        self.top = nn.Sequential(nn.Linear(size + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense, sparse, clicks):
        x = self.bottom(dense)
        found = [table(sparse[:, index]) for index, table in enumerate(self.tables)]
        stacked = torch.cat([x, *found], dim=1).view(x.shape[0], len(found) + 1, -1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        return F.binary_cross_entropy_with_logits(self.top(torch.cat((x, pairs), dim=1)).squeeze(1), clicks)


class TwoTower(nn.Module):
    """Two towers over ids and their mean, scored against all items of the batch."""

    def __init__(self, users=50_000, items=200_000, size=128, width=512, layers=4):
        super().__init__()
        self.user, self.item = nn.Embedding(users, size), nn.Embedding(items, size)
        self.user_tower, self.item_tower = (self._tower(size, width, layers) for _ in range(2))

    @staticmethod
    def _tower(size, width, layers):
        inner = [m for _ in range(layers) for m in (nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())]
        return nn.Sequential(nn.Linear(size, width), nn.ReLU(), *inner, nn.Linear(width, size))

    def forward(self, users, history, items):
        x = self.user_tower(self.user(users) + self.item(history).mean(dim=1))
        y = self.item_tower(self.item(items))
        scores = F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t()
        return F.cross_entropy(scores, torch.arange(scores.shape[0], device=scores.device))


def ids(*shape):
    """Whole numbers to look up."""
    return torch.zeros(shape, dtype=torch.long)


MODELS = {
    "gpt": (Gpt, lambda: (ids(2, 1024), ids(2, 1024))),
    "llama": (Llama, lambda: (ids(2, 512),)),
    "wide_resnet": (WideResNet, lambda: (torch.zeros(4, 3, 224, 224), ids(4))),
    "unet": (UNet, lambda: (torch.zeros(2, 3, 128, 128), torch.zeros(2, 2, 128, 128))),
    "dlrm": (Dlrm, lambda: (torch.zeros(64, 13), ids(64, 8, 2), torch.zeros(64))),
    "two_tower": (TwoTower, lambda: (ids(32), ids(32, 20), ids(32))),
}
"""Module and example inputs by name."""
FOR_ONNX = {"dlrm": lambda: Dlrm(bags=False)}
"""Modules that are written otherwise for ONNX."""
