"""The families of ``config.json`` that are understood: which reader answers to which names.

One function a family turns `Fields` into the keyword arguments of a `ModelSpec`; `FAMILIES` lists them with
the values of ``model_type`` and ``architectures`` that they answer to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwright.models import hf_classic, hf_hybrid, hf_latent, hf_llama
from shardwright.models.hf_common import Arguments
from shardwright.models.hf_fields import Fields

Reader = Callable[[Fields], Arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of configurations.

    Attributes:
        types: values of ``model_type``.
        architectures: values of ``architectures`` (causal language models only).
        read: from the fields to the arguments of a spec, name and notes apart.
    """

    types: tuple[str, ...]
    architectures: tuple[str, ...]
    read: Reader


def _family(read: Reader, types: str, architectures: str) -> Family:
    return Family(types=tuple(types.split()), architectures=tuple(architectures.split()), read=read)


FAMILIES: tuple[Family, ...] = (
    _family(hf_llama.llama, "llama", "LlamaForCausalLM LLaMAForCausalLM"),
    _family(hf_llama.llama4, "llama4_text", "Llama4ForCausalLM"),
    _family(hf_llama.mistral, "mistral", "MistralForCausalLM"),
    _family(hf_llama.mixtral, "mixtral", "MixtralForCausalLM"),
    _family(hf_llama.qwen2, "qwen2 qwen2_vl_text qwen2_5_vl_text", "Qwen2ForCausalLM"),
    _family(hf_llama.mimo, "mimo", "MiMoForCausalLM"),
    _family(hf_llama.qwen3, "qwen3 qwen3_vl_text", "Qwen3ForCausalLM"),
    _family(hf_llama.qwen2_moe, "qwen2_moe", "Qwen2MoeForCausalLM"),
    _family(hf_llama.qwen3_moe, "qwen3_moe qwen3_vl_moe_text", "Qwen3MoeForCausalLM"),
    _family(hf_hybrid.qwen3_next, "qwen3_next", "Qwen3NextForCausalLM"),
    _family(hf_latent.deepseek_v2, "deepseek_v2", "DeepseekV2ForCausalLM"),
    _family(hf_latent.deepseek_v3, "deepseek_v3 kimi_k2", "DeepseekV3ForCausalLM"),
    _family(hf_latent.deepseek_v32, "deepseek_v32", "DeepseekV32ForCausalLM"),
    _family(hf_llama.gpt_oss, "gpt_oss", "GptOssForCausalLM"),
    _family(hf_llama.glm, "glm", "GlmForCausalLM"),
    _family(hf_llama.glm4, "glm4", "Glm4ForCausalLM"),
    _family(hf_llama.glm4_moe, "glm4_moe", "Glm4MoeForCausalLM"),
    _family(hf_llama.gemma, "gemma", "GemmaForCausalLM"),
    _family(hf_llama.gemma2, "gemma2", "Gemma2ForCausalLM"),
    _family(hf_llama.gemma3, "gemma3_text", "Gemma3ForCausalLM"),
    _family(hf_classic.phi, "phi", "PhiForCausalLM"),
    _family(hf_llama.phi3, "phi3", "Phi3ForCausalLM"),
    _family(hf_llama.phimoe, "phimoe", "PhimoeForCausalLM PhiMoEForCausalLM"),
    _family(hf_llama.olmo, "olmo", "OlmoForCausalLM"),
    _family(hf_llama.olmo2, "olmo2", "Olmo2ForCausalLM"),
    _family(hf_llama.olmo3, "olmo3", "Olmo3ForCausalLM"),
    _family(hf_llama.olmoe, "olmoe", "OlmoeForCausalLM"),
    _family(hf_llama.nemotron, "nemotron", "NemotronForCausalLM"),
    _family(hf_hybrid.nemotron_h, "nemotron_h", "NemotronHForCausalLM"),
    _family(hf_hybrid.searched, "nemotron-nas deci", "DeciLMForCausalLM"),
    _family(hf_llama.cohere, "cohere", "CohereForCausalLM"),
    _family(hf_llama.granite, "granite", "GraniteForCausalLM"),
    _family(hf_llama.smollm3, "smollm3", "SmolLM3ForCausalLM"),
    _family(hf_llama.seed_oss, "seed_oss", "SeedOssForCausalLM"),
    _family(
        hf_hybrid.minimax,
        "minimax minimax_text_01 minimax_m1",
        "MiniMaxForCausalLM MiniMaxText01ForCausalLM MiniMaxM1ForCausalLM",
    ),
    _family(hf_llama.minimax_m2, "minimax_m2", "MiniMaxM2ForCausalLM"),
    _family(hf_hybrid.jamba, "jamba", "JambaForCausalLM"),
    _family(hf_hybrid.mamba, "mamba falcon_mamba", "MambaForCausalLM FalconMambaForCausalLM"),
    _family(hf_hybrid.mamba2, "mamba2", "Mamba2ForCausalLM"),
    _family(hf_classic.gpt2, "gpt2", "GPT2LMHeadModel"),
    _family(hf_classic.gpt_neox, "gpt_neox", "GPTNeoXForCausalLM"),
    _family(hf_classic.bloom, "bloom", "BloomForCausalLM"),
    _family(hf_classic.opt, "opt", "OPTForCausalLM"),
    _family(hf_classic.mpt, "mpt", "MPTForCausalLM MptForCausalLM"),
    _family(hf_classic.falcon, "falcon RefinedWeb RefinedWebModel", "FalconForCausalLM RWForCausalLM"),
    _family(hf_classic.starcoder2, "starcoder2", "Starcoder2ForCausalLM"),
)
BY_TYPE: Mapping[str, Family] = {name: family for family in FAMILIES for name in family.types}
BY_ARCHITECTURE: Mapping[str, Family] = {name: family for family in FAMILIES for name in family.architectures}
