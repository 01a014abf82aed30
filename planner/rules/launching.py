"""What a launch line starts must be the world the plan is for: rules of every target.

A launcher that starts one rank is not refused by frameworks that read the world size from it: they train with another
data-parallel degree, and so with another batch.
"""

from __future__ import annotations

from shardwright.planner.rules.base import Columns, Facts, Rule
from shardwright.planner.rules.declaring import setting_rule
from shardwright.planner.rules.settings import Settings
from shardwright.planner.rules.versions import TARGETS

_LAUNCHED = ("launch.world_size", "env.WORLD_SIZE")


def launched(s: Settings) -> int:
    """Ranks the launch line starts; 0 where nothing says how many."""
    for name in _LAUNCHED:
        text = s.text(name)
        if text.isdecimal():
            return int(text)
    return 0


def _other_world(s: Settings, c: Columns, f: Facts) -> bool:
    return launched(s) not in {0, f.gpus}


LAUNCH_RULES: tuple[Rule, ...] = (
    setting_rule(
        "launched-world",
        "the launch line starts as many ranks as the plan has GPUs",
        settings=_LAUNCHED,
        breaks=_other_world,
        message=lambda s, c, f: f"{launched(s)} ranks are launched for a plan of {f.gpus} GPUs",
        mend=lambda s, c, f: {"launch.world_size": f.gpus} | ({"env.WORLD_SIZE": None} if "env.WORLD_SIZE" in s else {}),
        targets=TARGETS,
        source="torchrun; DeepSpeed assumes a world of 1 where none is initialised",
    ),
)
