"""torchtitan's TOML, read back into a plan, and priced."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright
from shardwright.errors import DamagedFileError, ShardwrightError, UnknownNameError, UnsupportedError
from shardwright.planner.emit.emission import emit
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.readers.estimating import estimate_file
from shardwright.planner.readers.stated import Stated, StatedSettings
from shardwright.planner.readers.torchtitan import stage_layers

LLAMA = """# Llama 3 8B on one node
[job]
dump_folder = "./outputs"
description = "Llama 3 8B"

[metrics]
log_freq = 10
enable_tensorboard = true

[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets/hf/Llama-3.1-8B"

[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8

[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1000

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
pipeline_parallel_degree = 1
context_parallel_degree = 1

[checkpoint]
enable = false

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[compile]
enable = true
"""


@pytest.fixture
def priced(tmp_path: Path):
    """The estimate of a text."""

    def estimated(text: str, cluster: str = "dgx-h100:1", **more: object) -> dict:
        path = tmp_path / "config.toml"
        path.write_text(text, encoding="utf-8")
        return estimate_file("torchtitan", path, cluster, **more).to_dict()

    return estimated


def set_in(text: str, section: str, line: str) -> str:
    """A text with a line in place of the section's line for the same key, or added."""
    key = line.partition("=")[0].strip()
    out, now, done = [], "", False
    for one in text.splitlines():
        if one.startswith("["):
            if now == section and not done:
                out.append(line)
                done = True
            now = one.strip("[]")
        same = now == section and one.partition("=")[0].strip() == key
        done |= same
        out.append(line if same else one)
    return "\n".join(out if done else [*out, f"[{section}]", line])


def test_a_usual_file_is_priced(priced) -> None:
    record = priced(LLAMA)
    assert record["feasible"], record["violations"]
    assert record["warnings"] == []
    assert record["inputs"]["stack"] == "torchtitan"
    assert record["model"]["parameters"] == 8_030_261_248
    assert record["training"]["global_batch"] == 8
    same = {"dp_shard": 8, "dp_replicate": 1, "zero_stage": 3, "tp": 1, "micro_batch": 1, "micro_batches": 1}
    assert {name: record["parallel"][name] for name in same} == same
    named = shardwright.estimate(
        "llama3.1-8b",
        "dgx-h100:1",
        seq_len=8192,
        global_batch=8,
        degrees=Degrees(recompute="selective"),
        options=PricingOptions(framework="torchtitan"),
    ).to_dict()
    assert record["predicted"] == named["predicted"]


@pytest.mark.parametrize(
    ("section", "line", "same"),
    [
        ("parallelism", "data_parallel_replicate_degree = 2", {"dp_replicate": 2, "dp_shard": 4, "zero_stage": 3}),
        ("parallelism", "data_parallel_shard_degree = 8", {"dp_shard": 8}),
        ("parallelism", "tensor_parallel_degree = 4", {"tp": 4, "dp_shard": 2, "sequence_parallel": True}),
        ("parallelism", "context_parallel_degree = 2", {"cp": 2, "dp": 4}),
        ("parallelism", 'fsdp_reshard_after_forward = "never"', {"zero_stage": 2}),
        ("parallelism", "pipeline_parallel_degree = 2", {"zero_stage": 2, "reshard_after_forward": False}),
        ("training", "local_batch_size = 2", {"micro_batch": 2, "micro_batches": 1}),
        ("training", "global_batch_size = 64", {"micro_batch": 1, "micro_batches": 8}),
    ],
)
def test_degrees(priced, section: str, line: str, same: dict[str, object]) -> None:
    parallel = priced(set_in(LLAMA, section, line))["parallel"]
    assert {name: parallel[name] for name in same} == same


@pytest.mark.parametrize(
    ("lines", "mode", "layers"),
    [
        (('mode = "none"',), "none", 0),
        (('mode = "full"',), "full", 32),
        (('selective_ac_option = "op"',), "selective", 32),
        (('selective_ac_option = "2"',), "full", 16),
        (("selective_ac_option = 4",), "full", 8),
    ],
)
def test_recompute(priced, lines: tuple[str, ...], mode: str, layers: int) -> None:
    text = LLAMA
    for line in lines:
        text = set_in(text, "activation_checkpoint", line)
    record = priced(text, "dgx-h200:1")
    assert (record["parallel"]["recompute"]["mode"], record["parallel"]["recompute"]["layers"]) == (mode, layers)
    assert "torch-recompute" not in {one["rule"] for one in record["violations"]}


def test_shards_that_stay_gathered_after_forward_are_legal(priced) -> None:
    record = priced(set_in(LLAMA, "parallelism", 'fsdp_reshard_after_forward = "never"'))
    assert not [one for one in record["violations"] if one["rule"] != "memory"]


@pytest.mark.parametrize("schedule", ["ZBVZeroBubble", "DualPipeV", "InterleavedZeroBubble"])
@pytest.mark.parametrize(("policy", "lost"), [("always", True), ("default", False), ("never", False)])
def test_gradients_apart_are_lost_where_shards_are_made_again(priced, schedule: str, policy: str, lost: bool) -> None:
    lines = ("pipeline_parallel_degree = 2", f'pipeline_parallel_schedule = "{schedule}"')
    text = LLAMA
    for line in (*lines, f'fsdp_reshard_after_forward = "{policy}"'):
        text = set_in(text, "parallelism", line)
    record = priced(set_in(text, "training", "local_batch_size = 8"))
    assert ("torch-split-backward" in {one["rule"] for one in record["violations"]}) is lost


FLOAT8 = {"tensorwise": "fp8-tensorwise", "rowwise": "fp8-rowwise", "rowwise_with_gw_hp": "fp8-rowwise-gw-hp"}


def test_precision_and_stack(priced) -> None:
    text = set_in(LLAMA, "model", 'converters = ["quantize.linear.float8"]')
    assert priced(text)["inputs"]["training"]["precision"] == "fp8-tensorwise"
    for name, precision in FLOAT8.items():
        recipe = f'\n[quantize.linear.float8]\nrecipe_name = "{name}"\n'
        assert priced(text + recipe)["inputs"]["training"]["precision"] == precision
    assert priced(set_in(LLAMA, "compile", "enable = false"))["inputs"]["stack"] == "torchtitan-eager"
    chosen = priced(LLAMA, options=PricingOptions(stack="torchtitan-eager"))
    assert chosen["inputs"]["stack"] == "torchtitan-eager"


def settings(**values: int) -> StatedSettings:
    stated = {f"parallelism.pipeline_parallel_{key}": Stated(value=value, where=key) for key, value in values.items()}
    return StatedSettings(source="x", stated=stated)


@pytest.mark.parametrize(
    ("layers", "pp", "single", "given", "stages"),
    [
        (32, 4, True, {}, (8, 9, 8, 7)),
        (32, 2, False, {}, (8, 9, 8, 7)),
        (6, 4, True, {}, (1, 2, 2, 1)),
        (32, 4, True, {"first_stage_less_layers": 0, "last_stage_less_layers": 0}, (8, 8, 8, 8)),
        (32, 2, False, {"layers_per_stage": 9}, (8, 9, 8, 7)),
    ],
)
def test_layers_of_stages(layers: int, pp: int, single: bool, given: dict[str, int], stages: tuple[int, ...]) -> None:
    """What `generate_llm_fqn_per_model_part` of torchtitan 0.2.2 returns."""
    assert stage_layers(settings(**given), pp=pp, layers=layers, single=single) == stages


def test_layers_of_stages_are_those_of_torchtitan() -> None:
    module = pytest.importorskip("torchtitan.distributed.pipeline_parallel")
    for layers in range(2, 40, 3):
        for stages in range(2, 9):
            for first in range(3):
                for last in range(3):
                    try:
                        named = module.generate_llm_fqn_per_model_part(stages, layers, first, last)
                    except ValueError:
                        expected = None
                    else:
                        expected = tuple(sum(name.startswith("layers.") for name in part) for part in named)
                    given = settings(first_stage_less_layers=first, last_stage_less_layers=last)
                    try:
                        made = stage_layers(given, pp=stages, layers=layers, single=True)
                    except ShardwrightError:
                        made = None
                    assert made == expected


def test_a_pipeline(priced) -> None:
    text = set_in(set_in(LLAMA, "parallelism", "pipeline_parallel_degree = 4"), "training", "local_batch_size = 8")
    record = priced(text)
    assert [s["layers"] for s in record["stages"]] == [[[0, 7]], [[8, 16]], [[17, 24]], [[25, 31]]]
    same = {"pp": 4, "vpp": 1, "micro_batch": 1, "micro_batches": 8, "schedule": "1f1b"}
    assert {name: record["parallel"][name] for name in same} == same
    looped = priced(set_in(text, "parallelism", 'pipeline_parallel_schedule = "Interleaved1F1B"'))
    assert (looped["parallel"]["vpp"], looped["parallel"]["schedule"]) == (2, "interleaved-1f1b")
    other = priced(set_in(text, "parallelism", 'pipeline_parallel_schedule = "InterleavedZeroBubble"'))
    assert any("priced as Interleaved1F1B" in one for one in other["warnings"])


@pytest.mark.parametrize(
    ("changes", "rule", "says", "remedy"),
    [
        ([("parallelism", "data_parallel_shard_degree = 4")], "world", "4", "= -1"),
        ([("parallelism", "data_parallel_replicate_degree = 3")], "world", "3", "= -1"),
        ([("parallelism", "tensor_parallel_degree = 3")], "world", "3", "2 or 4"),
        ([("training", "batch_size = 1")], "torchtitan-key", "training.batch_size", "training.local_batch_size"),
        ([("parallelism", "tensor_paralel_degree = 2")], "torchtitan-key", ":", "parallelism.tensor_parallel_degree"),
        ([("experimental", "pipeline_parallel_degree = 2")], "torchtitan-key", "experimental", "parallelism.pipeline"),
        ([("training", "global_batch_size = 12")], "batch", "12", "8 or 16"),
        (
            [("parallelism", "pipeline_parallel_degree = 4"), ("parallelism", "pipeline_parallel_layers_per_stage = 5")],
            "torchtitan-stages",
            "7 stages over pp 4",
            "layers_per_stage",
        ),
        (
            [
                ("parallelism", "pipeline_parallel_degree = 2"),
                ("parallelism", "pipeline_parallel_first_stage_less_layers = 40"),
            ],
            "torchtitan",
            "40",
            "first_stage_less_layers = 0",
        ),
        (
            [("parallelism", "pipeline_parallel_degree = 2"), ("parallelism", "pipeline_parallel_microbatch_size = 2")],
            "torchtitan",
            "local batch of 1",
            "= 1",
        ),
        (
            [
                ("parallelism", "pipeline_parallel_degree = 2"),
                ("parallelism", 'module_fqns_per_model_part = [["tok_embeddings", "layers.0"], ["norm", "output"]]'),
            ],
            "torchtitan-split",
            "name 1 layers of 32",
            "every layer once",
        ),
    ],
)
def test_violations_name_a_remedy(priced, changes: list[tuple[str, str]], rule: str, says: str, remedy: str) -> None:
    text = LLAMA
    for section, line in changes:
        text = set_in(text, section, line)
    record = priced(text)
    assert not record["feasible"]
    found = [one for one in record["violations"] if rule in one["rule"] and says in one["message"]]
    assert any(remedy in one["remedy"] for one in found), record["violations"]


def test_what_the_bundle_of_a_plan_sets_reads_back_as_the_plan(tmp_path: Path) -> None:
    options = PricingOptions(framework="torchtitan", target_version="0.2")
    for degrees in (
        Degrees(tp=2, recompute="selective", dp_replicate=2),
        Degrees(tp=2, pp=2, recompute="full", layers_per_stage=(15, 17)),
        Degrees(tp=4, pp=2, vpp=2, recompute="selective", layers_per_stage=(7, 9, 9, 7)),
        Degrees(cp=2, recompute="full"),
    ):
        planned = shardwright.estimate(
            "llama3.1-8b", "dgx-h100:2", seq_len=8192, global_batch=64, degrees=degrees, options=options
        ).to_dict()
        folder = tmp_path / f"bundle-{degrees.tp}-{degrees.pp}-{degrees.cp}"
        emit(planned, target="torchtitan", folder=folder, version="0.2")
        read = estimate_file("torchtitan", folder / "config.toml", "dgx-h100:2", options=PricingOptions(target_version="0.2"))
        record = read.to_dict()
        assert record["feasible"], record["violations"]
        for key in ("parallel", "stages", "predicted", "memory"):
            assert record[key] == planned[key], key


@pytest.mark.parametrize(
    ("text", "error", "where"),
    [
        ("[model\n", DamagedFileError, "config.toml:1"),
        ("a = 1\na = 2\n", DamagedFileError, "config.toml:2"),
        (LLAMA.replace('"8B"', '"8b"'), UnknownNameError, "config.toml:12: model.flavor"),
        (LLAMA.replace('"llama3"', '"lama3"'), UnknownNameError, "model.flavor"),
        (LLAMA.replace('"8B"', '"debugmodel"'), UnsupportedError, "model.flavor"),
        (LLAMA.replace("= 8192", '= "8192"'), ShardwrightError, "training.seq_len"),
        (LLAMA.replace("tensor_parallel_degree = 1", "tensor_parallel_degree = -3"), ShardwrightError, "tensor_parallel"),
        (LLAMA.replace('mode = "selective"', 'mode = "some"'), UnknownNameError, "activation_checkpoint.mode"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(priced, text: str, error: type, where: str) -> None:
    with pytest.raises(error) as caught:
        priced(text)
    assert where in caught.value.where


def test_a_key_under_its_older_name_is_told_once(priced) -> None:
    text = LLAMA.replace("local_batch_size = 1", "batch_size = 2").replace("tensor_parallel_degree = 1\n", "")
    record = priced(set_in(text, "training", "tensor_parallel_degree = 2"))
    assert [one["rule"] for one in record["violations"]] == ["torchtitan-key"] * 2
    assert (record["parallel"]["micro_batch"], record["parallel"]["tp"]) == (2, 2)


def test_another_model_and_launch(priced) -> None:
    record = priced(LLAMA, model="llama3-8b")
    assert record["model"]["name"] == "llama3-8b"
    record = priced(LLAMA, world_size=1)
    assert any("1 ranks are launched" in one["message"] for one in record["violations"])


@given(st.text('[]ab="\n.= 01{},#', max_size=80))
def test_any_text_is_read_or_refused(tmp_path_factory, text: str) -> None:
    path = tmp_path_factory.mktemp("toml") / "config.toml"
    path.write_text(LLAMA + text, encoding="utf-8")
    try:
        record = estimate_file("torchtitan", path, "dgx-h100:1").to_dict()
    except ShardwrightError as error:
        fault = error
    else:
        assert record["feasible"] is not None
        return
    assert fault.where


@pytest.mark.parametrize(("said", "kind"), [(None, "allgather"), ("allgather", "allgather"), ("alltoall", "p2p")])
def test_the_exchange_of_context_parallelism_is_read(priced, said, kind) -> None:
    text = set_in(LLAMA, "parallelism", "context_parallel_degree = 2")
    if said is not None:
        text = set_in(text, "parallelism", f'context_parallel_rotate_method = "{said}"')
    record = priced(text)
    assert record["parallel"]["cp"] == 2
    assert record["parallel"]["cp_comm"] == kind


@pytest.mark.parametrize(("said", "kind"), [(None, "alltoall"), ("standard", "alltoall"), ("deepep", "deepep")])
def test_the_dispatcher_of_tokens_is_read(priced, said, kind) -> None:
    text = set_in(
        LLAMA.replace('name = "llama3"', 'name = "deepseek_v3"').replace('flavor = "8B"', 'flavor = "16B"'),
        "parallelism",
        "expert_parallel_degree = 4",
    )
    if said is not None:
        text = set_in(text, "parallelism", f'expert_parallel_comm_backend = "{said}"')
    assert priced(text)["parallel"]["moe_dispatcher"] == kind
