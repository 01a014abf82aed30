"""Our verdict on the degrees of a torchtitan configuration is that of its `ParallelDims`, one degree changed by one step."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from dataclasses import replace

import comparing
import pytest
from agreements import TITAN_CHECKED, TITAN_LAX
from cases import Case
from megatron_lm_worker import StubFinder
from ours import refusing
from verdicts import ACCEPTED, refused

pytestmark = [pytest.mark.frameworks, pytest.mark.torchtitan, pytest.mark.filterwarnings("ignore")]

MODEL = {
    "name": "moe", "layers": 16, "hidden": 192, "heads": 48, "kv_heads": 48, "ffn": 768, "vocab": 1152,
    "moe.experts": 48, "moe.topk": 2, "moe.expert_ffn": 96,
}  # fmt: skip
SHARD, REPLICATE = "parallelism.data_parallel_shard_degree", "parallelism.data_parallel_replicate_degree"
STARTS = [
    {"gpus": 8},
    {"gpus": 16, "tp": 2, "pp": 2},
    {"gpus": 32, "tp": 4, "cp": 2, "pp": 2},
    {"gpus": 24, "tp": 3, "pp": 4},
    {"gpus": 64, "tp": 2, "pp": 4, "ep": 4, SHARD: 4, REPLICATE: 2},
    {"gpus": 64, "tp": 2, "cp": 2, "ep": 8, SHARD: 8, REPLICATE: 2},
    {"gpus": 128, "tp": 8, "ep": 16, SHARD: 16},
    {"gpus": 48, "tp": 2, "ep": 3, SHARD: -1, REPLICATE: 2},
    {"gpus": 36, "cp": 3, "pp": 2, SHARD: 3, REPLICATE: 2},
]
LEAST_HITS = 20


@pytest.fixture(scope="module")
def version():
    if importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    return ".".join(importlib.metadata.version("torchtitan").split(".")[:2])


@pytest.fixture(scope="module")
def dims(version):
    finder = StubFinder()  # 0.2 imports triton, of which nothing is used here
    sys.meta_path.append(finder)
    try:
        return importlib.import_module("torchtitan.distributed.parallel_dims").ParallelDims
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
            del sys.modules[name]


def theirs(dims, case):
    options = dict(case.settings)
    given = {"dp_replicate": options.get(REPLICATE, 1), "dp_shard": options.get(SHARD, -1), "world_size": case.gpus}
    given |= {name: getattr(case, name) for name in ("cp", "tp", "pp", "ep")}
    if "etp" in inspect.signature(dims).parameters:
        given["etp"] = case.etp
    try:
        dims(**given)
    except (AssertionError, ValueError, ZeroDivisionError) as fault:
        return refused("degrees", fault)
    return ACCEPTED


def near(value):
    return sorted({value * 2, value // 2, value + 1, value - 1} - {value, 0})


def cases(version):
    for start in STARTS:
        degrees = {key: value for key, value in start.items() if "." not in key}
        base = Case(model=tuple(sorted(MODEL.items())), seq_len=1152, global_batch=1152, **degrees)
        base = base.with_settings(**{key: value for key, value in start.items() if "." in key})
        yield "", base
        for name in ("gpus", "tp", "cp", "pp", "ep") + ("etp",) * (version == "0.2"):
            for value in near(getattr(base, name)):
                yield name, replace(base, **{name: value})
        for name in (SHARD, REPLICATE):
            for value in near(start.get(name, 1)):
                yield name, base.with_settings(**{name: value})


def test_verdicts_are_torchtitans(version, dims):
    trials = comparing.judged(cases(version), lambda c: theirs(dims, c), lambda c: checked(c, version))
    found = comparing.disagreements(trials, TITAN_LAX, ())
    assert not found, comparing.shown(found)
    for rule in {rule for trial in trials for rule in trial.rules} - {"torchtitan-etp"}:
        hit = comparing.hits(trials)[rule]
        assert min(hit.accepted, hit.refused) >= LEAST_HITS, rule


def checked(case, version):
    return tuple(rule for rule in refusing(case, "torchtitan", version) if rule in TITAN_CHECKED)
