"""Training jobs, precisions and optimisers."""

import pytest

from shardwright.errors import InvalidValueError, UnknownNameError
from shardwright.models.catalog import load_model
from shardwright.models.dtypes import GRAD_DTYPES, OPTIMIZERS, PRECISIONS, grad_bytes_of, optimizer_of, precision_of
from shardwright.models.job import TrainingJob


def job(**changes):
    return TrainingJob(**{"graph": load_model("llama3.1-8b"), "seq_len": 4096, "global_batch": 8, **changes})


def test_tokens_and_flops_of_a_step():
    made = job()
    assert made.tokens_per_step == 32768
    assert made.flops_per_step() == 32768 * made.graph.flops_per_token(4096)
    assert made.flops_per_step("causal") < made.flops_per_step("full")
    assert made.to_dict() == {
        "seq_len": 4096,
        "global_batch": 8,
        "precision": "bf16",
        "optimizer": "adam",
        "grad_dtype": "fp32",
    }


@pytest.mark.parametrize(
    "change",
    [{"seq_len": 0}, {"seq_len": -1}, {"seq_len": 1.5}, {"global_batch": 0}, {"global_batch": True}, {"grad_bytes": 3}],
)
def test_refuses(change):
    with pytest.raises(InvalidValueError) as caught:
        job(**change)
    assert caught.value.where == next(iter(change))


def test_sequences_longer_than_published_are_noted():
    assert job().notes == ()
    assert "4096" not in "".join(job().notes)
    assert "published for 131072" in job(seq_len=262144).notes[-1]
    assert "larger table" in job(graph=load_model("gpt2"), seq_len=2048).notes[-1]


def test_precisions():
    low = {"fp8-delayed", "fp8-tensorwise", "fp8-rowwise", "fp8-rowwise-gw-hp", "fp8-blockwise", "mxfp8", "nvfp4"}
    assert set(PRECISIONS) == {"bf16", "fp16", "fp32", "tf32", *low}
    assert {p.compute for p in PRECISIONS.values()} == {"bf16", "fp16", "fp32", "tf32", "fp8", "fp4"}
    wide = {"fp32", "tf32"}  # tf32 rounds inside the product: every byte stays fp32's
    assert all(p.activation_bytes == p.parameter_bytes == (4 if p.id in wide else 2) for p in PRECISIONS.values())
    assert (PRECISIONS["tf32"].gemm_input_bytes, PRECISIONS["fp32"].gemm_input_bytes) == (4, 4)
    assert PRECISIONS["mxfp8"].gemm_input_bytes == 1.03125
    assert PRECISIONS["nvfp4"].gemm_input_bytes == 0.5625


def test_optimizer_state():
    assert {o.id: o.state_bytes_per_parameter for o in OPTIMIZERS.values()} == {
        "adam": 12,
        "adam-bf16": 8,
        "adam-8bit": 6,
        "sgd": 8,
        "muon": 8,
        "adafactor": 4,
    }
    assert job().state_bytes_per_parameter == 12
    for name in ("fp32", "tf32"):
        assert job(precision=PRECISIONS[name]).state_bytes_per_parameter == 8  # the parameter is its own master copy


def test_words_are_looked_up_with_the_nearest_right_one():
    assert (precision_of("mxfp8").id, optimizer_of("muon").id, grad_bytes_of("bf16")) == ("mxfp8", "muon", 2)
    assert dict(GRAD_DTYPES) == {"fp32": 4, "bf16": 2}
    for look_up, word, near in ((precision_of, "bf61", "bf16"), (optimizer_of, "adm", "adam"), (grad_bytes_of, "fp23", "fp32")):
        with pytest.raises(UnknownNameError) as caught:
            look_up(word)
        assert near in caught.value.hint
