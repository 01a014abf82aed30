"""What differs between releases of Megatron-LM (core 0.12 to 0.19, and its main branch on the way to 0.20).

Read from `megatron/training/arguments.py` and `megatron/core` of each release branch of
https://github.com/NVIDIA/Megatron-LM (`core_r0.12.0` … `core_r0.19.0`, main of 2026-08-22).
"""

from __future__ import annotations

from shardwright.planner.rules.versions import VERSIONS as KNOWN

VERSIONS = KNOWN["megatron"]

#: What an argument list may use -> the first release that has it.
SINCE = {
    "many-connections": "0.13",  # CUDA_DEVICE_MAX_CONNECTIONS other than 1 on Blackwell
    "layout": "0.13",  # --pipeline-model-parallel-layout
    "fp8-blockwise": "0.13",
    "qk-l2-norm": "0.13",
    "no-rope-freq": "0.13",
    "use-megatron-fsdp": "0.14",  # before: --use-custom-fsdp
    "nvfp4": "0.15",  # --fp4-format, --fp4-recipe
    "adam-bf16": "0.14",  # --exp-avg-dtype bf16
    "window-size": "0.15",  # and --window-attn-skip-freq
    "softmax-type": "0.15",
    "router-bias": "0.15",
    "experts-in-fp16": "0.16",  # with expert parallelism
    "grouped-gemm-in-fp16": "0.16",  # before: bf16 alone
    "moe-flex-dispatcher-backend": "0.16",  # before: --moe-enable-deepep
    "muon": "0.16",
    "moe-shared-expert-gate": "0.16",
    "attention-output-gate": "0.16",
}


def has(version: str, feature: str) -> bool:
    """Whether a release has a feature of `SINCE`."""
    return VERSIONS.index(version) >= VERSIONS.index(SINCE[feature])


def null_tokenizer_adds_one(version: str) -> bool:
    """Whether NullTokenizer counts one token more than --vocab-size (until 0.16)."""
    return VERSIONS.index(version) < VERSIONS.index("0.17")
