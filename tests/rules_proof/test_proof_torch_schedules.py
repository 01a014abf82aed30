"""Our verdict on a schedule is that of torch's schedule class, for every small pipeline."""

from collections import Counter
from itertools import product

import pytest
from agreements import TORCH_STRICTER
from ours import schedule_rules

from shardwright.planner.schedules.registry import SCHEDULE_IDS

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

VERSION = "2.13"
PIPELINES = (2, 3, 4, 6)
CHUNKS = {
    "1f1b": (1, 2, 3),
    "gpipe": (1, 2, 3),
    "interleaved-1f1b": (2, 3),
    "zb-h1": (1,),
    "interleaved-zb": (2, 3),
    "zb-v": (1, 2, 3),
    "dualpipe-v": (1, 2, 3),
}
"""Chunks a rank; one class of torch's is zb-h1 with one and interleaved-zb with more, and 1f1b is interleaved-1f1b with one."""

MICRO_BATCHES = range(1, 19)
LEAST_HITS = 20


@pytest.fixture(scope="module")
def oracle():
    pytest.importorskip("torch.distributed.pipelining")
    import torch_oracle

    return torch_oracle


def verdicts(oracle, schedule):
    for pp, vpp, micro_batches in product(PIPELINES, CHUNKS[schedule], MICRO_BATCHES):
        theirs = oracle.verdict(schedule, pp, vpp, micro_batches)
        yield (pp, vpp, micro_batches), theirs, schedule_rules(schedule, pp, vpp, micro_batches, VERSION)


@pytest.mark.parametrize("schedule", [name for name in CHUNKS if name in SCHEDULE_IDS])
def test_verdicts_are_torchs(oracle, schedule):
    wrong, sides = [], Counter()
    for pipeline, theirs, rules in verdicts(oracle, schedule):
        sides[theirs.accepted] += 1
        checked = [rule for rule in rules if rule not in TORCH_STRICTER]
        if (theirs.accepted and checked) or (not theirs.accepted and not rules):
            wrong.append(f"{pipeline}: {'accepted' if theirs.accepted else theirs.message[:90]}; ours {rules}")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)
    assert min(sides[True], sides[False]) >= LEAST_HITS
