"""Names of tensor dims and the axis that may divide each.

A tensor says ``("batch", "seq", "heads", "head_dim")``, never a number. The role of a dim says which
parallel axis divides it:

    tensor          heads, kv_heads, ffn, shared_ffn, vocab,
                    scan_heads, scan_groups                                 / tp
    expert-tensor   expert_ffn                                              / etp
    expert          experts                                                 / ep
    sequence        seq                                                     / cp (and / tp under sequence parallelism)
    data            batch                                                   (micro-batch, already local)
    none            everything else

``routed`` is the number of rows the experts of a rank work on; not divided it is batch * seq * topk. `MADE_OF` says by which
dims such a dim is divided: rows of tokens by batch or seq, or rows of experts.
`role` answers for one dim, `has_role` for a tuple of dims.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BATCH = "batch"
SEQ = "seq"
ROUTED = "routed"
TOKENS = (BATCH, SEQ)

ROLE_TENSOR = "tensor"
ROLE_EXPERT_TENSOR = "expert-tensor"
ROLE_EXPERT = "expert"
ROLE_SEQUENCE = "sequence"
ROLE_DATA = "data"
ROLE_NONE = "none"

ROLES: Mapping[str, str] = MappingProxyType(
    {
        "heads": ROLE_TENSOR,
        "kv_heads": ROLE_TENSOR,
        "ffn": ROLE_TENSOR,
        "shared_ffn": ROLE_TENSOR,
        "vocab": ROLE_TENSOR,
        "scan_heads": ROLE_TENSOR,
        "scan_groups": ROLE_TENSOR,
        "expert_ffn": ROLE_EXPERT_TENSOR,
        "experts": ROLE_EXPERT,
        SEQ: ROLE_SEQUENCE,
        BATCH: ROLE_DATA,
    }
)

MADE_OF: Mapping[str, tuple[str, ...]] = MappingProxyType({ROUTED: (BATCH, SEQ, "experts")})
"""Dims that are divided by others: the rows of the experts lie token by token, or expert by expert."""


def role(dim: str) -> str:
    """The role of a dim; ``"none"`` for a dim that no axis divides."""
    return ROLES.get(dim, ROLE_NONE)


def has_role(dims: tuple[str, ...], wanted: str) -> bool:
    """Whether any of the dims has the role."""
    return any(ROLES.get(dim, ROLE_NONE) == wanted for dim in dims)
