"""Our verdict on a DeepSpeed JSON is that of DeepSpeedConfig over a fake process group, one key changed by one step."""

import importlib

import comparing
import pytest
from agreements import DEEPSPEED_LAX
from cases import Case
from ours import refusing
from verdicts import ACCEPTED, refused

pytestmark = [pytest.mark.frameworks, pytest.mark.deepspeed, pytest.mark.filterwarnings("ignore")]

VERSION = "0.19"
RANKS = 8
MODEL = {"name": "gqa", "layers": 12, "hidden": 192, "heads": 16, "kv_heads": 4, "ffn": 768, "vocab": 1024}
BATCH, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
ZERO = "zero_optimization"

STARTS = (
    {BATCH: 64, MICRO: 2, STEPS: 4},
    {BATCH: 64, MICRO: 4},
    {BATCH: 96, STEPS: 3},
    {MICRO: 2, STEPS: 4},
    {BATCH: 64, f"{ZERO}.stage": 3, "bf16.enabled": True},
    {BATCH: 64, f"{ZERO}.stage": 2, f"{ZERO}.offload_optimizer.device": "cpu"},
    {BATCH: 64, f"{ZERO}.stage": 3, f"{ZERO}.offload_optimizer.device": "cpu", f"{ZERO}.offload_optimizer.ratio": 0.5},
    {BATCH: 64, f"{ZERO}.stage": 1, "bf16.enabled": True, "bf16.bf16_master_weights_and_grads": True},
    {BATCH: 64, f"{ZERO}.stage": 2, "gradient_allreduce_op": "sum"},
)

CHANGES = {
    BATCH: (None, 32, 48, 60, 63, 64, 72, 96, 128, "auto"),
    MICRO: (None, 1, 2, 3, 4, 5, 8, "auto"),
    STEPS: (None, 1, 2, 3, 4, 5, 8, "auto"),
    f"{ZERO}.stage": (None, 0, 1, 2, 3, 4, 5),
    f"{ZERO}.offload_optimizer.device": (None, "none", "cpu", "nvme", "gpu", "disk"),
    f"{ZERO}.offload_param.device": (None, "none", "cpu", "nvme", "gpu", "disk"),
    f"{ZERO}.offload_optimizer.ratio": (None, 0.25, 0.5, 1.0),
    "fp16.enabled": (None, True, False),
    "bf16.enabled": (None, True, False),
    "gradient_allreduce_op": (None, "sum", "mean"),
    "zero_optimisation.stage": (None, 2),
    "gradient_accumulation": (None, 2),
}


@pytest.fixture(scope="module")
def config():
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    backend = importlib.import_module("deepspeed.comm.torch")  # an attribute of that name is torch itself
    backend.build_shm_op = lambda: None  # a kernel that would be compiled, and that nothing here runs
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfig

    assert deepspeed.__version__.startswith(VERSION)
    deepspeed.comm.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    yield DeepSpeedConfig
    dist.destroy_process_group()


def nested(settings):
    document = {}
    for key, value in settings.items():
        at = document
        *outer, last = key.split(".")
        for name in outer:
            at = at.setdefault(name, {})
        at[last] = value
    return document


def theirs(config, case):
    try:
        config(nested(dict(case.settings)))
    except (AssertionError, ValueError, TypeError) as fault:  # pydantic's errors are ValueErrors
        return refused("config", fault)
    return ACCEPTED


def cases():
    for start in STARTS:
        base = Case(model=tuple(sorted(MODEL.items())), gpus=RANKS, seq_len=64, global_batch=64)
        yield "", base.with_settings(**start)
        for key, values in CHANGES.items():
            for value in values:
                if value != start.get(key):
                    yield key, base.with_settings(**{**start, key: value})


@pytest.fixture(scope="module")
def trials(config):
    return comparing.judged(cases(), lambda case: theirs(config, case), lambda case: refusing(case, "deepspeed", VERSION))


def test_verdicts_are_deepspeeds(trials):
    found = comparing.disagreements(trials, DEEPSPEED_LAX, ())
    assert not found, comparing.shown(found)


def test_both_sides_are_hit(trials):
    assert min(sum(t.theirs.accepted for t in trials), sum(not t.theirs.accepted for t in trials)) >= 100


def test_lax_rules_are_broken_by_what_deepspeed_accepts(trials):
    for rule, lax in DEEPSPEED_LAX.items():
        assert any(t.theirs.accepted and rule in t.rules and lax.where(t.case) for t in trials), rule
