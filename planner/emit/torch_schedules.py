"""Names of pipeline schedules in torch.distributed.pipelining, which torchtitan takes as well."""

from __future__ import annotations

from collections.abc import Mapping

SCHEDULES: Mapping[str, str] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
