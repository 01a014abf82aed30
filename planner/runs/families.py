"""What a model's name says of its architecture, where a row of measurements leaves cells blank.

`family_of(name)` finds the family by the start of the name. A family fixes what columns do not carry (gate,
norm, positions, biases, tying) and the values for blank cells:

    vocabulary   `Family.vocab`, else `VOCABULARY`            hidden size   nearest rung of `Family.ladder` by parameters
    heads        hidden / `Family.head_sizes`, else / 128, else by the first divisor of `HEAD_SIZES`
    layers       from the parameters

Sources: the ladders are table 2.1 of arXiv 2005.14165 and table 1 of arXiv 2104.04473 (GPT), and the public
configurations of Llama 2, Code Llama and Llama 3; vocabularies are those of the public tokenizers, padded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

VOCABULARY = 51_200
"""GPT-2's vocabulary padded to a multiple of 128 x 8, the default of Megatron-LM's published runs."""

HEAD_SIZES = (128, 150, 64, 96, 80, 112, 160, 72, 256)
"""Head sizes tried in this order where a row states no head count."""

LORA = re.compile(r"\[(q?lora|peft)\]|\blora\b", re.IGNORECASE)
LORA_RANK = re.compile(r"\blora\b[^;.]{0,20}?\b(?:rank|r)[ =-]{1,3}(\d{1,4})\b", re.IGNORECASE)
HYBRID = re.compile(
    r"nemotron-3(\.\d+)?-(nano|super|ultra|lightning)|nemotron-h|mamba|jamba|zamba|bamba|rwkv|hyena", re.IGNORECASE
)
"""Names of models that mix attention with state-space or other recurrent layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One published size of a family."""

    hidden: int
    layers: int
    ffn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a family of models has in common.

    Attributes:
        starts: beginnings of names, lower case.
        activation, norm, positions: as in `ModelSpec`.
        biases: whether all linear layers have biases.
        tied: whether the head uses the word embedding.
        dropout: whether it is trained with dropout.
        embedding_norm: whether the embedding is normalised.
        vocab: vocabulary where a row states none.
        head_sizes: sizes of heads by hidden size, where published ones are not the first that fits.
        ladder: published sizes; empty where a blank shape cannot be filled in.
    """

    starts: tuple[str, ...]
    activation: str
    norm: str
    positions: str
    biases: bool = False
    tied: bool = False
    dropout: bool = False
    embedding_norm: bool = False
    vocab: int = VOCABULARY
    head_sizes: Mapping[int, int] = field(default_factory=dict)
    ladder: tuple[Rung, ...] = ()

    @property
    def gated(self) -> bool:
        """Whether the feed-forward block has a gate."""
        return self.activation == "swiglu"


def _gpt(*rungs: tuple[int, int]) -> tuple[Rung, ...]:
    return tuple(Rung(hidden=hidden, layers=layers, ffn=4 * hidden) for hidden, layers in rungs)


def _llama(*rungs: tuple[int, int, int]) -> tuple[Rung, ...]:
    return tuple(Rung(hidden=hidden, layers=layers, ffn=ffn) for hidden, layers, ffn in rungs)


GPT_LADDER = _gpt(
    (768, 12), (1024, 24), (1536, 24), (2048, 24), (2304, 24), (3072, 30), (4096, 36), (5120, 40), (6144, 40), (8192, 48),
    (10240, 60), (12288, 80), (12288, 96), (16384, 96), (20480, 105), (25600, 128),
)  # fmt: skip
LLAMA_LADDER = _llama(
    (2048, 16, 8192), (2048, 22, 5632), (3072, 28, 8192), (4096, 32, 11008), (4096, 32, 14336), (5120, 40, 13824),
    (8192, 48, 22016), (8192, 80, 28672), (16384, 126, 53248),
)  # fmt: skip

LLAMA = Family(
    starts=("llama", "codellama", "mistral", "mixtral", "qwen", "deepseek", "yi-", "glm", "gpt-oss", "olmo", "gemma", "smollm"),
    activation="swiglu",
    norm="rmsnorm",
    positions="rope",
    ladder=LLAMA_LADDER,
)
GPT = Family(
    starts=("gpt", "megatron", "mt-nlg", "turing", "tr1-", "tr8-", "tr11-", "cerebras-gpt"),
    activation="gelu",
    norm="layernorm",
    positions="learned",
    biases=True,
    tied=True,
    dropout=True,
    head_sizes={2304: 96, 3072: 96, 20480: 160, 25600: 160},
    ladder=GPT_LADDER,
)
FAMILIES = (
    LLAMA,
    GPT,
    Family(starts=("internlm",), activation="swiglu", norm="rmsnorm", positions="rope", vocab=103_168, ladder=LLAMA_LADDER),
    Family(starts=("kimi",), activation="swiglu", norm="rmsnorm", positions="rope", vocab=163_840),
    Family(starts=("gpt-neox", "pythia"), activation="gelu", norm="layernorm", positions="rope", biases=True, vocab=50_432),
    Family(starts=("gpt-j",), activation="gelu", norm="layernorm", positions="rope", vocab=50_400),
    Family(starts=("nemotron", "minitron"), activation="relu2", norm="layernorm", positions="rope", vocab=256_000),
    Family(starts=("mpt",), activation="gelu", norm="layernorm", positions="learned", tied=True, vocab=50_368),
    Family(
        starts=("bloom",), activation="gelu", norm="layernorm", positions="none", biases=True, tied=True, vocab=250_880,
        embedding_norm=True, ladder=GPT_LADDER,
    ),
    Family(starts=("opt",), activation="relu", norm="layernorm", positions="learned", biases=True, tied=True, vocab=50_272),
    Family(starts=("bert",), activation="gelu", norm="layernorm", positions="learned", biases=True, tied=True, vocab=30_592),
    Family(starts=("falcon",), activation="gelu", norm="layernorm", positions="rope", tied=True, vocab=65_024),
)  # fmt: skip


def family_of(name: str) -> Family | None:
    """The family whose listed beginning of `name` is the longest, or None."""
    lower = name.lower().strip()
    matches = [
        (len(start), index) for index, family in enumerate(FAMILIES) for start in family.starts if lower.startswith(start)
    ]
    return FAMILIES[max(matches)[1]] if matches else None


def is_lora(name: str) -> bool:
    """Whether only adapters are trained."""
    return bool(LORA.search(name))


def lora_rank(notes: str) -> int | None:
    """The rank of adapters that a note states, as in "LoRA rank-16"; None if it states none."""
    found = LORA_RANK.search(notes)
    return int(found[1]) if found else None


def is_hybrid(name: str) -> bool:
    """Whether the model mixes attention with recurrent layers."""
    return bool(HYBRID.search(name))
