"""Memory that users measured or worked out in public: what each part takes, what fits, what cutting sequence or loss saves.

Each test names where it comes from; GB are 1e9 bytes, GiB and MiB powers of two.
"""

import functools

import pytest

from shardwright.models.catalog import load_model
from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

GB, GIB, MIB = 1e9, 2**30, 2**20
STATES = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")


def priced(model, cluster, *, seq_len, batch, degrees, framework="megatron", **options):
    chosen = PricingOptions(framework=framework, **options)
    return estimate(model, cluster, seq_len=seq_len, global_batch=batch, degrees=Degrees(**degrees), options=chosen).to_dict()


def memory(record, stage=0):
    return record["stages"][stage]["memory"]


def states(record):
    return sum(memory(record)[part] for part in STATES)


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_bytes_a_parameter_of_megatron(tp, cp):
    """NVIDIA/Megatron-LM#654: 18 without the distributed optimizer, 6 + 12 / (DP x CP) with it."""
    job = {"seq_len": 4096, "batch": 64}
    plain, shared = (priced("llama3-8b", "dgx-h100:8", **job, degrees={"tp": tp, "cp": cp, "zero": zero}) for zero in (0, 1))
    held = memory(plain)["parameters_bytes"] / 2
    assert states(plain) == 18 * held
    assert states(shared) == pytest.approx((6 + 12 / (64 // tp)) * held, rel=1e-9)


@pytest.mark.parametrize(("ep", "etp"), [(2, 1), (8, 1), (4, 2)])
def test_bytes_a_parameter_of_experts(ep, etp):
    """The same: experts are divided by EP x ETP, their optimizer over the data-parallel group of experts, CP included."""
    model = load_model("mixtral-8x7b")
    degrees = {"tp": 2, "cp": 2, "ep": ep, "etp": etp, "zero": 1}
    record = priced("mixtral-8x7b", "dgx-h100:8", seq_len=4096, batch=64, degrees=degrees)
    experts = 32 * 8 * 3 * 4096 * 14_336 / (ep * etp)
    dense = memory(record)["parameters_bytes"] / 2 - experts
    assert dense == pytest.approx((model.parameters - 32 * 8 * 3 * 4096 * 14_336) / 2, rel=0.01)
    said = (6 + 12 / (64 // (ep * etp))) * experts + (6 + 12 / 32) * dense
    assert states(record) == pytest.approx(said, rel=1e-9)


def test_thirty_billion_parameters_of_experts_fit():
    """QwenLM/Qwen3#1278: Qwen3-30B-A3B on 16 A800, TP 2, EP 8: experts 43.5 GB, the rest 5.8 GB; it fits."""
    degrees = {"tp": 2, "ep": 8, "etp": 1, "recompute": "full"}
    record = priced("qwen3-30b-a3b", "hgx-a800-80g:2", seq_len=4096, batch=32, degrees=degrees)
    assert states(record) == pytest.approx(49.3 * GB, rel=0.01)
    assert record["violations"] == []


@functools.cache
def frozen_backbone(zero, micro_batch=1):
    """A frozen backbone of 32.8 B with 0.91 B trained beside its layers, and no loss over a vocabulary."""
    degrees = {"zero": zero, "recompute": "full", "micro_batch": micro_batch}
    job = {"seq_len": 208, "batch": 8 * micro_batch, "framework": "deepspeed", "lora": "rank=108,targets=attention+mlp"}
    return priced("qwen3-32b", "dgx-a100-80g:1", **job, degrees=degrees, overrides=("stack.logit_saved_bytes=0",))


def test_zero_2_replicates_what_is_frozen():
    """TensorAuto/OpenTau#429 and #446: 33.4 B frozen beside 0.91 B trained on 8 A100-80, 151 + 50 tokens.

    ZeRO 2 peaks at 72.2 GB with the backbone on every GPU (64 to 67 GB), ZeRO 3 at 12.5 GB.
    """
    two, three = frozen_backbone(2), frozen_backbone(3)
    assert 64 * GB < memory(two)["parameters_bytes"] - 2 * two["model"]["trainable_parameters"] < 67 * GB
    assert memory(three)["parameters_bytes"] == pytest.approx(memory(two)["parameters_bytes"] / 8, rel=1e-6)
    assert two["memory"]["meters"]["reserved_bytes"] == pytest.approx(72.2 * GB, rel=0.05)
    saved = two["memory"]["meters"]["reserved_bytes"] - three["memory"]["meters"]["reserved_bytes"]
    assert saved == pytest.approx((72.2 - 12.5) * GB, rel=0.02)


@pytest.mark.parametrize(("zero", "most", "measured"), [(2, 27, None), (3, 128, 70.9)])
def test_the_largest_micro_batches_beside_a_frozen_backbone_fit(zero, most, measured):
    """TensorAuto/OpenTau#446: 27 sequences under ZeRO 2, 128 under ZeRO 3 (70.9 GB: images, which are not counted here)."""
    found = frozen_backbone(zero, most)
    assert found["feasible"]
    assert measured is None or found["memory"]["meters"]["reserved_bytes"] < measured * GB
    assert not frozen_backbone(2, 2 * 27)["feasible"]


SMALL = {"layers": 12, "hidden": 512, "heads": 8, "kv_heads": 8, "ffn": 2048, "vocab": 50_257, "norm": "layernorm",
         "activation": "gelu", "positions": "learned", "max_positions": 1024, "tied_embeddings": True, "dropout": True,
         "qkv_bias": True, "out_bias": True, "mlp_bias": True}  # fmt: skip
"""GPT of Megatron-LM's functional tests."""


def sharded_peak(cp, micro_batch):
    graph = build_graph(ModelSpec.from_dict({"name": "small", **SMALL}))
    degrees = {"cp": cp, "micro_batch": micro_batch, "zero": 3}
    record = priced(graph, "dgx-h100:1", seq_len=1024, batch=32, degrees=degrees)
    return record["memory"]["meters"]["allocated_bytes"] / MIB, states(record)


def test_the_peak_follows_the_tokens_of_a_rank():
    """NVIDIA/Megatron-LM#7220: 2,279.1 MiB with CP 1 and 4 sequences, 1,276.5 with CP 2 or with 2 sequences; states alike."""
    (whole, all_of), (half, shared), (fewer, same) = (sharded_peak(*how) for how in ((1, 4), (2, 4), (1, 2)))
    assert half == fewer
    assert all_of == shared == same
    assert whole == pytest.approx(2279.1, rel=0.03)
    assert half == pytest.approx(1276.5, rel=0.05)  # three workspaces of 32 MiB
    assert whole - half == pytest.approx(2279.1 - 1276.5, rel=0.01)


def test_logits_in_fp32_whole_and_in_pieces_of_1024_tokens():
    """NVIDIA-NeMo/Automodel#3907: 8,192 x 151,936 in fp32 are 4.64 GiB, 0.58 GiB in pieces of 1,024 tokens."""
    job = {"seq_len": 8192, "batch": 8, "framework": "torchtitan"}
    whole, cut = (priced("qwen3-4b", "dgx-h100:1", **job, degrees={"recompute": "full", "loss_chunks": n}) for n in (1, 8))
    in_fp32 = 4 / 14
    assert memory(whole)["logits_bytes"] * in_fp32 / GIB == pytest.approx(4.64, abs=0.005)
    assert memory(cut)["logits_bytes"] * in_fp32 / GIB == pytest.approx(0.58, abs=0.005)
    assert cut["predicted"]["step_time_s"] < 1.05 * whole["predicted"]["step_time_s"]


@pytest.mark.parametrize(("seq_len", "measured"), [(32_768, 11.7), (65_536, 23.2), (131_072, 46.2), (262_144, 92.2)])
def test_logits_of_a_loss_over_a_divided_vocabulary(seq_len, measured):
    """NovaSky-AI/SkyRL#1841: head and eager cross entropy of 62,080 of 248,320 words, GiB at 8,192 tokens 3.1, and so on."""
    spec = {"layers": 1, "hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 512, "vocab": 248_320}
    graph = build_graph(ModelSpec.from_dict({"name": "m", **spec}))
    found = [
        memory(priced(graph, "dgx-h100:1", seq_len=tokens, batch=2, degrees={"tp": 4, "recompute": "full"}))["logits_bytes"]
        for tokens in (8192, seq_len)
    ]
    assert (found[1] - found[0]) / GIB == pytest.approx(measured - 3.1, rel=0.03)


def test_fp32_gradients_without_sharding_do_not_fit():
    """huggingface/nanotron#161: Llama-3-8B on 8 GPUs fails with 135 GiB of states unsharded, works under ZeRO 1 with 56 GiB."""
    job = {"seq_len": 2048, "batch": 8, "grad_dtype": "fp32"}
    plain, shared = (priced("llama3-8b", "dgx-h100:1", **job, degrees={"zero": zero}) for zero in (0, 1))
    assert states(plain) / GIB == pytest.approx(135, abs=0.5)
    assert states(shared) / GIB == pytest.approx(56, abs=0.5)
    assert [v["rule"] for v in plain["violations"]] == ["memory"]
    assert shared["feasible"]


@pytest.mark.parametrize("meter", ["allocated", "reserved", "device"])
def test_a_meter_chooses_the_headline_and_nothing_else(meter):
    asked = {"seq_len": 4096, "batch": 64, "degrees": {"tp": 2, "zero": 1}}
    found, plain = (priced("llama3-8b", "dgx-h100:1", **asked, memory_meter=name) for name in (meter, "device"))
    headline = found["memory"].pop("headline")
    assert headline == {"meter": meter, "bytes": found["memory"]["meters"][f"{meter}_bytes"]}
    plain["memory"].pop("headline")
    assert found["memory"] == plain["memory"]
    assert (found["stages"], found["feasible"]) == (plain["stages"], plain["feasible"])


WORKSPACES = ("blas_workspaces", "engine_workspaces")


def buffers(**degrees):
    spec = {"layers": 2, "hidden": 2048, "heads": 16, "kv_heads": 16, "ffn": 64, "vocab": 65_536}
    graph = build_graph(ModelSpec.from_dict({"name": "wide", **spec}))
    nothing = ("stack.stand_in_gradients=false", *(f"stack.{name}=0" for name in ("bucket_bytes", *WORKSPACES)))
    overrides = ("stack.logit_saved_bytes=2", *nothing)
    return memory(priced(graph, "dgx-h100:1", seq_len=8192, batch=8, degrees=degrees, overrides=overrides))


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_the_head_gathers_what_it_reads_in_its_backward_pass(tp):
    """NVIDIA/Megatron-LM, tensor_parallel/layers.py: the input gathered, its gradient whole and scattered."""
    found, stream = buffers(tp=tp), 8192 * 2048 * 2
    assert found["logits_bytes"] == 8192 * 65_536 * 2 / tp
    assert found["buffers_bytes"] == (stream if tp == 1 else 2 * stream + stream / tp)


def test_weights_that_are_added_to_main_gradients_have_stand_ins():
    """NVIDIA/TransformerEngine, get_dummy_wgrad: one a shape of weight, and one for all experts."""
    job = {"seq_len": 4096, "batch": 64}
    for model, layer in (
        ("llama3-8b", 4096 * (6144 + 4096 + 3 * 14_336)),
        ("mixtral-8x7b", 4096 * (6144 + 4096 + 3 * 14_336 + 8)),
    ):
        held = [
            memory(
                priced(
                    model,
                    "dgx-h100:8",
                    **job,
                    degrees={"tp": 1, "pp": 4, "ep": 1, "zero": 1},
                    overrides=(f"stack.stand_in_gradients={given}",),
                ),
                1,
            )
            for given in ("true", "false")
        ]
        assert held[0]["buffers_bytes"] - held[1]["buffers_bytes"] == pytest.approx(2 * layer, rel=1e-3)
        assert {k: v for k, v in held[0].items() if k in STATES} == {k: v for k, v in held[1].items() if k in STATES}
