"""Names of pipeline schedules in torch.distributed.pipelining, and which of them torchtitan takes as well.

ZB-H1 is torch's interleaved zero bubble with one stage a rank: torch takes that, torchtitan wants two or more.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEDULES: Mapping[str, str] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "zb-h1": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
TITAN_SCHEDULES: Mapping[str, str] = {name: said for name, said in SCHEDULES.items() if name != "zb-h1"}
