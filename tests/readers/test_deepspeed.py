"""DeepSpeed's JSON, read back into a plan, and priced."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright
from shardwright.errors import InvalidValueError, ShardwrightError
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.readers.deepspeed import KEYS
from shardwright.planner.readers.estimating import estimate_file

ZERO3 = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
    "gradient_clipping": 1.0,
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "stage3_prefetch_bucket_size": 5e7,
        "offload_optimizer": {"device": "none"},
    },
}


@pytest.fixture
def priced(tmp_path: Path):
    """The estimate of a document."""

    def estimated(data: dict, cluster: str = "dgx-h100:1", **more: object) -> dict:
        path = tmp_path / "ds.json"
        path.write_text(json.dumps(data, indent=2), encoding="utf-8")
        named = {"model": "llama3.1-8b", "seq_len": 4096} | more
        return estimate_file("deepspeed", path, cluster, **named).to_dict()

    return estimated


def changed(**values: object) -> dict:
    return {key: value for key, value in (ZERO3 | values).items() if value is not None}


def test_a_usual_file_is_priced(priced) -> None:
    record = priced(ZERO3, degrees={"recompute": "full"})
    assert record["feasible"], record["violations"]
    assert record["warnings"] == []
    same = {"dp": 8, "zero_stage": 3, "micro_batch": 4, "micro_batches": 8}
    assert {name: record["parallel"][name] for name in same} == same
    named = shardwright.estimate(
        "llama3.1-8b",
        "dgx-h100:1",
        seq_len=4096,
        global_batch=256,
        degrees=Degrees(micro_batch=4, zero=3, recompute="full"),
        options=PricingOptions(framework="deepspeed"),
    ).to_dict()
    assert record["predicted"] == named["predicted"]


@pytest.mark.parametrize(
    ("batch", "micro", "steps", "expected"),
    [
        (256, None, 8, (256, 4, 8)),
        (256, 4, None, (256, 4, 8)),
        (None, 4, 8, (256, 4, 8)),
        (64, None, None, (64, 8, 1)),
        (None, 2, None, (16, 2, 1)),
    ],
)
def test_any_two_give_the_third(priced, batch, micro, steps, expected: tuple[int, int, int]) -> None:
    data = changed(train_batch_size=batch, train_micro_batch_size_per_gpu=micro, gradient_accumulation_steps=steps)
    record = priced(data)
    parallel = record["parallel"]
    assert (record["training"]["global_batch"], parallel["micro_batch"], parallel["micro_batches"]) == expected
    assert not any("batch" in one["rule"] for one in record["violations"])


def test_a_launch_of_one_rank_breaks_the_batch(priced) -> None:
    """The identity holds for the 8 GPUs, and the launcher starts one."""
    record = priced(ZERO3, world_size=1)
    messages = " ".join(one["message"] for one in record["violations"])
    assert "1 ranks are launched" in messages
    assert "dp 1 = 32" in messages
    assert not record["feasible"]


def test_seven_gpus_name_the_nearest_batch(priced) -> None:
    data = changed(train_batch_size=256, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=18)
    record = priced(data, "dgx-h100:1x7")
    remedies = " ".join(one["remedy"] for one in record["violations"])
    assert not record["feasible"]
    assert "252" in remedies


@pytest.mark.parametrize(
    ("data", "says", "remedy"),
    [
        (changed(zero_optimisation={"stage": 3}), "zero_optimisation in silence", "zero_optimization"),
        (changed(zero_optimization={"stage": 3, "overlap_com": True}), "no key overlap_com", "overlap_comm"),
        (changed(fp16={"enabled": True}), "both enabled", "one of them"),
        (changed(train_batch_size=250), "250 is not", "256"),
    ],
)
def test_violations_name_a_remedy(priced, data: dict, says: str, remedy: str) -> None:
    record = priced(data)
    found = [one for one in record["violations"] if says in one["message"]]
    assert found, record["violations"]
    assert remedy in found[0]["remedy"]
    assert not record["feasible"]


def test_ulysses_shares_out_heads(priced) -> None:
    record = priced(changed(train_batch_size=64, sequence_parallel_size=4), degrees={"recompute": "full"})
    assert record["feasible"], record["violations"]
    assert (record["parallel"]["cp"], record["parallel"]["dp"]) == (4, 2)
    record = priced(changed(train_batch_size=None, sequence_parallel_size=7), "dgx-h100:1x7")
    found = [one for one in record["violations"] if one["rule"] == "deepspeed-ulysses-heads"]
    assert "sequence_parallel_size 4" in found[0]["remedy"]


def test_zero_with_a_pipeline(priced) -> None:
    data = changed(train_batch_size=128, zero_optimization={"stage": 2})
    record = priced(data, degrees={"pp": 2})
    assert any("pipeline" in one["rule"] for one in record["violations"])
    data = changed(train_batch_size=128, zero_optimization={"stage": 1})
    record = priced(data, degrees={"pp": 2, "recompute": "full"})
    assert record["feasible"], record["violations"]
    assert record["parallel"]["pp"] == 2


@pytest.mark.parametrize(
    ("change", "precision", "optimizer", "grad_bytes"),
    [
        ({}, "bf16", "adam", None),
        ({"bf16": None, "fp16": {"enabled": True}}, "fp16", "adam", None),
        ({"bf16": None}, "fp32", "adam", None),
        ({"optimizer": {"type": "SGD"}}, "bf16", "sgd", None),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, "bf16", "adam", 2),
    ],
)
def test_precision(priced, change: dict, precision: str, optimizer: str, grad_bytes: int | None) -> None:
    training = priced(changed(**change))["inputs"]["training"]
    assert (training["precision"], training["optimizer"]) == (precision, optimizer)
    assert grad_bytes is None or training["grad_bytes"] == grad_bytes


def test_open_values(priced) -> None:
    data = changed(train_batch_size="auto", train_micro_batch_size_per_gpu="auto", gradient_accumulation_steps="auto")
    data["zero_optimization"]["reduce_bucket_size"] = "auto"
    with pytest.raises(InvalidValueError, match="is auto") as caught:
        priced(data)
    assert "--define train_batch_size=N" in caught.value.hint
    named = {"train_batch_size": "256", "train_micro_batch_size_per_gpu": "4", "gradient_accumulation_steps": "8"}
    record = priced(data, defined=named)
    assert record["parallel"]["micro_batches"] == 8


def test_what_is_not_priced_is_said(priced) -> None:
    data = changed(zero_optimization={"stage": 3, "offload_param": {"device": "cpu"}}, optimizer={"type": "OneBitAdam"})
    warnings = " ".join(priced(data)["warnings"])
    assert "offloaded" not in warnings
    assert "priced with the states of adam" in warnings


@pytest.mark.parametrize(
    ("data", "more", "says"),
    [
        (changed(train_batch_size=None, train_micro_batch_size_per_gpu=None), {}, "neither"),
        (changed(train_batch_size="many"), {}, "many"),
        (changed(train_batch_size=-1), {}, "-1"),
        (changed(zero_optimization={"stage": "three"}), {}, "three"),
        (ZERO3, {"model": None}, "MODEL"),
        (ZERO3, {"seq_len": None}, "--seq-len"),
        (ZERO3, {"model": "llama9"}, "llama9"),
    ],
)
def test_what_cannot_be_read_is_refused(priced, data: dict, more: dict, says: str) -> None:
    with pytest.raises(ShardwrightError) as caught:
        priced(data, **more)
    assert says in caught.value.message
    assert caught.value.where


def test_a_stage_that_is_none_is_refused(priced) -> None:
    with pytest.raises(InvalidValueError, match="zero 4"):
        priced(changed(zero_optimization={"stage": 4}))


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 10), st.just("auto"), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["stage", "enabled", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(data=st.dictionaries(st.sampled_from(sorted(KEYS)), values, max_size=5))
def test_any_document_is_read_or_refused(tmp_path_factory, data: dict) -> None:
    path = tmp_path_factory.mktemp("json") / "ds.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    try:
        record = estimate_file("deepspeed", path, "dgx-h100:1", model="gpt2", seq_len=1024).to_dict()
    except ShardwrightError as error:
        fault = error
    else:
        assert record["feasible"] is not None
        return
    assert fault.message


def test_sequence_parallelism_exchanges_heads(priced) -> None:
    record = priced(changed(train_batch_size=64, sequence_parallel_size=4))
    assert record["parallel"]["cp_comm"] == "a2a"
    assert {row["collective"] for row in record["communication"] if row["axis"] == "cp"} == {"all_to_all"}
    assert record["warnings"] == []


HOST = {"device": "cpu", "pin_memory": True}


@pytest.mark.parametrize(
    ("zero", "held"),
    [
        ({"stage": 2, "offload_optimizer": HOST}, {"optimizer": 1.0, "parameters": 0.0}),
        ({"stage": 3, "offload_optimizer": HOST, "offload_param": HOST}, {"optimizer": 1.0, "parameters": 1.0}),
        ({"stage": 3, "offload_optimizer": HOST | {"ratio": 0.4}}, {"optimizer": 0.4, "parameters": 0.0}),
        ({"stage": 3, "offload_param": {"device": "none"}}, {"optimizer": 0.0, "parameters": 0.0}),
        ({"stage": 2, "cpu_offload": True}, {"optimizer": 1.0, "parameters": 0.0}),
    ],
)
def test_what_is_offloaded_is_priced(priced, zero: dict, held: dict) -> None:
    record = priced(changed(zero_optimization=zero))
    assert record["parallel"]["offload"] == held | {"activations": 0.0}
    assert (record["memory"]["host_peak_bytes"] is not None) == any(held.values())


def test_what_goes_to_nvme_is_said(priced) -> None:
    data = changed(zero_optimization={"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/scratch"}})
    record = priced(data)
    assert "NVMe is priced in host memory" in " ".join(record["warnings"])
    assert record["parallel"]["offload"]["optimizer"] == 1.0


def test_a_ratio_that_is_none_is_named(priced) -> None:
    with pytest.raises(InvalidValueError, match="no fraction") as caught:
        priced(changed(zero_optimization={"stage": 3, "offload_optimizer": HOST | {"ratio": 1.5}}))
    assert "ratio" in caught.value.where


@pytest.mark.parametrize(
    "data",
    [
        changed(bf16=True),
        changed(zero_optimization=True),
        changed(zero_optimization=[]),
        changed(optimizer="AdamW"),
        changed(zero_optimization={"stage": 3, "offload_param": "cpu"}),
        changed(zero_optimization={"stage": 3, "offload_optimizer": True}),
        changed(zero_optimization={"stage": 3, "offload_optimizer": []}),
    ],
    ids=lambda data: "",
)
def test_one_value_is_no_mapping(priced, data: dict) -> None:
    with pytest.raises(InvalidValueError, match="is no mapping") as caught:
        priced(data)
    assert "ds.json:" in caught.value.where
    assert "give its keys" in caught.value.hint


def test_mappings_without_keys_and_nulls_say_nothing(priced) -> None:
    data = ZERO3 | {"fp16": {}, "zero_optimization": {"stage": 2, "offload_param": None, "offload_optimizer": {}}}
    assert not any(priced(data)["parallel"]["offload"].values())
