"""From shape columns to an architecture."""

from dataclasses import replace

import pytest
from rows import row

from shardwright.errors import ShardwrightError, UnsupportedError
from shardwright.planner.problem import PricingOptions
from shardwright.planner.runs.families import family_of, is_hybrid, is_lora, lora_rank
from shardwright.planner.runs.model import model_of, preset_name
from shardwright.planner.validation.rows import read_run

BLANK = {"layers": None, "hidden": None, "ffn": None, "heads": None, "kv_heads": None, "head_dim": None, "vocab": None}


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Llama-3.1-405B", "llama3.1-405b"), ("Llama-3-8B", "llama3-8b"), ("Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("DeepSeek-V3", "deepseek-v3"), ("GPT-OSS-120B", "gpt-oss-120b"), ("Kimi-K2", "kimi-k2"), ("GPT3-175B", "gpt3-175b"),
        ("Llama-2-70B [sft]", "llama2-70b"), ("A model of one's own", None),
    ],
)  # fmt: skip
def test_names_find_presets(name, preset):
    assert preset_name(name) == preset


def test_a_preset_fills_blanks_and_cells_lie_over_it():
    plain = model_of(row(model="Llama-3-70B", **BLANK)).graph.spec
    assert (plain.layers, plain.kv_heads, plain.vocab) == (80, 8, 128256)
    changed = model_of(row(model="Llama-3-70B", **(BLANK | {"vocab": 32000}))).graph.spec
    assert changed.vocab == 32000


def test_a_shape_that_contradicts_the_preset_wins():
    spec = model_of(row(model="GPT-175B", params_b=20.3, layers=44, hidden=6144, ffn=24576, heads=48, kv_heads=48)).graph.spec
    assert (spec.layers, spec.hidden) == (44, 6144)


@pytest.mark.parametrize(
    ("model", "params_b", "ffn", "gated"),
    [("Unheard-of-7B", 6.74, 11008, True), ("Unheard-of-7B", 5.3, 11008, False), ("Nemotron-like", 6.7, 16384, False)],
)
def test_parameters_decide_for_the_gate(model, params_b, ffn, gated):
    spec = model_of(row(model=model, params_b=params_b, ffn=ffn)).graph.spec
    assert spec.gated == gated


def test_learned_positions_count_as_parameters():
    cells = {"model": "MPT-350m", "params_b": 0.421, "layers": 24, "hidden": 1024, "ffn": 4096, "heads": 16, "kv_heads": 16}
    spec = model_of(row(**cells, head_dim=64, vocab=50368, seq_len=65536)).graph.spec
    assert not spec.gated
    assert spec.max_positions == 65536


@pytest.mark.parametrize(("pp", "layers"), [(1, 80), (11, 77), (7, 77)])
def test_blank_layers_come_from_parameters_and_divide_by_stages(pp, layers):
    stated = {1: 202.7, 11: 195.0, 7: 195.0}[pp]
    made = model_of(
        row(
            model="BLOOM-proto",
            params_b=stated,
            layers=None,
            hidden=14400,
            ffn=57600,
            heads=96,
            kv_heads=96,
            head_dim=150,
            vocab=None,
            pp=pp,
        )
    )
    assert made.graph.spec.layers == layers
    assert f"layers={layers}" in made.defaults
    assert "vocab=250880" in made.defaults


@pytest.mark.parametrize(("params_b", "shape"), [(1.34, (16, 2048)), (8.86, (32, 4096)), (80.0, (80, 8192))])
def test_a_blank_size_is_found_on_the_ladder(params_b, shape):
    made = model_of(row(model=f"Llama-like {params_b}B", params_b=params_b, **BLANK), vocab=131_072)
    assert (made.graph.spec.layers, made.graph.spec.hidden) == shape
    assert made.graph.parameters / 1e9 == pytest.approx(params_b, rel=0.01)
    assert "hidden=" in " ".join(made.defaults)


def test_experts_without_a_preset():
    cells = {
        "model": "Qwen-like-MoE",
        "params_b": 30.5,
        "layers": 48,
        "hidden": 2048,
        "ffn": 768,
        "kv_heads": 4,
        "vocab": 151936,
    }
    made = model_of(row(**cells, experts=128, topk=8)).graph
    assert made.spec.moe.expert_ffn == 768
    assert made.parameters / 1e9 == pytest.approx(30.5, rel=0.02)
    wide = model_of(row(**(cells | {"ffn": 12288}), experts=128, topk=8)).graph.spec
    assert wide.moe.expert_ffn == 768, "a dense layer's width is no expert's width where the parameters say so"


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"model": "Llama-2-70B [qlora]"}, "QLoRA"),
        ({"model": "Nemotron-3-Nano-30B-A3B", "layers": None}, "recurrent"),
        ({"model": "Unheard-of", "layers": None, "hidden": None}, "full shape"),
        ({"model": "Unheard-of", "experts": 8, "topk": None}, "top-k"),
    ],
)
def test_what_cannot_be_known_is_refused_with_a_reason(cells, reason):
    with pytest.raises(UnsupportedError, match=reason):
        model_of(row(**cells))


def test_impossible_cells_are_refused_by_us():
    with pytest.raises(ShardwrightError):
        model_of(row(model="Unheard-of", heads=32, kv_heads=5))


def test_names():
    assert family_of("GPT-OSS-20B").activation == "swiglu"
    assert family_of("GPT2-8B").activation == "gelu"
    assert family_of("something else") is None
    assert is_lora("X [lora]")
    assert not is_lora("Llorana-7B")
    assert lora_rank("fp8; LoRA rank-8 fine-tune") == 8
    assert lora_rank("lora, r=64") == 64
    assert lora_rank("LoRA fine-tune; rank 0 of 16 failed") is None
    assert is_hybrid("Nemotron-H-8B")
    assert not is_hybrid("Nemotron-4-340B")


def test_adapters_are_one_for_a_fused_projection():
    lora = row(model="Llama-2-7B [lora]")
    fused, apart = model_of(lora, fused_qkv=True), model_of(lora)
    assert "targets=qkv+out_proj" in fused.lora
    assert "targets=attention" in apart.lora
    for framework, targets in (("NeMo/Megatron-Core (NeMo 24.07)", "qkv+out_proj"), ("Paxml/JAX-Toolbox", "attention")):
        read = read_run(replace(lora, framework=framework), PricingOptions())
        assert f"lora.targets={targets}" in read.defaults


def test_published_sizes_have_their_heads():
    sizes = {1.7: (2304, 24, 24), 1000.0: (25600, 128, 160), 145.0: (12288, 80, 96)}
    for billions, (hidden, layers, heads) in sizes.items():
        cells = {"model": f"GPT-{billions:g}B", "params_b": billions, "hidden": hidden, "ffn": 4 * hidden, "layers": layers}
        assert model_of(row(**cells, heads=None, kv_heads=None, head_dim=None)).graph.spec.heads == heads
