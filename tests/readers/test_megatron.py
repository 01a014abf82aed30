"""Arguments of Megatron-LM, read back into a model, a job and a plan, and priced."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reader_scripts import DEEPSEEK, LLAMA, MINIMAL, MIXTRAL

import shardwright
from shardwright.errors import (
    ConflictError,
    DamagedFileError,
    InvalidValueError,
    ShardwrightError,
    UnknownNameError,
    UnsupportedError,
)
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.readers.estimating import estimate_file
from shardwright.planner.readers.megatron_arguments import setting_of
from shardwright.planner.readers.megatron_files import read_megatron_file
from shardwright.planner.readers.megatron_names import BOTH, LISTS, OFF, SWITCHES, VALUES
from shardwright.planner.rules.registry import RULES


def estimate_megatron(path: Path, cluster: str, **more: object):
    return estimate_file("megatron", path, cluster, **more)


@pytest.fixture
def saved(tmp_path: Path):
    """Writes a file and gives its path."""

    def write(text: str, name: str = "run.sh") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def rules(record: dict) -> set[str]:
    return {broken["rule"] for broken in record["violations"]}


def test_a_dense_model_on_one_node(saved) -> None:
    record = estimate_megatron(saved(LLAMA), "dgx-h100:1").to_dict()
    assert record["feasible"]
    assert record["model"]["parameters"] == 8_030_261_248
    assert record["training"]["seq_len"] == 8192
    assert record["training"]["global_batch"] == 128
    same = {"tp": 2, "pp": 1, "dp": 4, "zero_stage": 1, "sequence_parallel": True, "micro_batch": 1}
    assert {name: record["parallel"][name] for name in same} == same
    named = shardwright.estimate(
        "llama3-8b",
        "dgx-h100:1",
        seq_len=8192,
        global_batch=128,
        degrees=Degrees(tp=2),
        options=PricingOptions(framework="megatron", grad_dtype="fp32"),
    ).to_dict()
    assert record["predicted"] == named["predicted"]
    assert record["stages"] == named["stages"]


def test_experts_over_a_pipeline(saved) -> None:
    record = estimate_megatron(saved(MIXTRAL), "dgx-h100:4").to_dict()
    assert record["feasible"], record["violations"]
    assert record["model"]["parameters"] == 46_702_792_704
    same = {"tp": 1, "pp": 4, "ep": 8, "etp": 1, "dp": 8, "zero_stage": 1}
    assert {name: record["parallel"][name] for name in same} == same


def test_latent_attention_with_a_layout(saved) -> None:
    record = estimate_megatron(saved(DEEPSEEK), "dgx-h100:128", options=PricingOptions(target_version="0.16")).to_dict()
    assert record["model"]["parameters"] == 671_026_404_352
    assert record["model"]["mtp_parameters"] > 0
    assert record["parallel"]["vpp"] == 2
    assert record["stages"][0]["layers"] == [[0, 2], [33, 34]]
    assert record["stages"][15]["layers"] == [[31, 32], None]
    assert "launch-world-size" not in rules(record)
    sharded = estimate_megatron(
        saved(DEEPSEEK), "dgx-h100:128", defined={"USE_FSDP": "1", "PP": "1"}, options=PricingOptions(target_version="0.16")
    ).to_dict()
    assert sharded["parallel"]["zero_stage"] == 3


def _flat(text: str) -> dict[str, object]:
    """Options and values of a line of arguments."""
    made: dict[str, object] = {}
    words = text.split()
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            made[word[2:]] = True if following.startswith("--") else int(following)
    return made


def test_all_forms_of_a_file_say_the_same(saved) -> None:
    flat = _flat(MINIMAL)
    under = {name.replace("-", "_"): value for name, value in flat.items()}
    yaml = "".join(f"{name}: {json.dumps(value)}\n" for name, value in under.items())
    nested = "model:\n" + "".join(f"  {line}\n" for line in yaml.splitlines()) + "trainer:\n  devices: 8\n  num_nodes: 1\n"
    dotted = "".join(f"model.config.{name}: {json.dumps(value)}\n" for name, value in under.items())
    written = "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nMODEL_ARGS:\n"
    written += "".join(f"  --{name}: {json.dumps(value)}\n" for name, value in flat.items())
    forms = {
        "args.txt": MINIMAL,
        "lines.txt": MINIMAL.replace(" --", "\n--").replace("\n", " \\\n"),
        "run.sh": f"export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun --nproc-per-node=8 pretrain_gpt.py {MINIMAL}",
        "equals.txt": MINIMAL.replace("-layers 8", "-layers=8"),
        "list.json": json.dumps(MINIMAL.split()),
        "object.json": json.dumps(under),
        "flat.yaml": yaml,
        "nested.yml": nested,
        "dotted.yaml": dotted,
        "written.yaml": written,
    }
    records = {}
    for name, text in forms.items():
        record = estimate_megatron(saved(text, name), "dgx-a100-80g:1").to_dict()
        records[name] = {key: record[key] for key in ("parallel", "predicted", "stages", "violations")}
        assert record["feasible"]
    assert all(record == records["args.txt"] for record in records.values())


def test_what_the_bundle_of_a_plan_launches_reads_back_as_the_plan(tmp_path: Path) -> None:
    from shardwright.planner.emit.emission import emit

    degrees = Degrees(tp=2, pp=8, vpp=4, ep=16, etp=1, recompute="full", layers_per_stage=(2, *[3] * 30, 2))
    planned = shardwright.estimate(
        "qwen3-235b-a22b",
        "dgx-h100:32",
        seq_len=4096,
        global_batch=1024,
        degrees=degrees,
        options=PricingOptions(framework="megatron"),
    ).to_dict()
    emit(planned, target="megatron", folder=tmp_path / "bundle")
    for name in ("launch.sh", "arguments.json"):
        read = estimate_megatron(tmp_path / "bundle" / name, "dgx-h100:32").to_dict()
        assert read["feasible"], read["violations"]
        for key in ("parallel", "stages", "predicted", "memory", "communication"):
            assert read[key] == planned[key], (name, key)


@pytest.mark.parametrize(
    ("extra", "degrees"),
    [
        ("", {"zero_stage": 0, "tp": 1, "sequence_parallel": False}),
        ("--use-distributed-optimizer", {"zero_stage": 1}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", {"zero_stage": 3}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", {"zero_stage": 1}),
        ("--use-torch-fsdp2", {"zero_stage": 3}),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", {"zero_stage": 2}),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 2", {"dp_replicate": 2, "dp_shard": 4}),
        ("--tensor-model-parallel-size 2", {"tp": 2, "sequence_parallel": False}),
        ("--tensor-model-parallel-size 2 --sequence-parallel", {"sequence_parallel": True}),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2", {"pp": 2, "vpp": 2}),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4", {"vpp": 4}),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 1", {"vpp": 1}),
        ("--context-parallel-size 4", {"cp": 4}),
        ("--num-experts 8 --expert-model-parallel-size 4 --disable-bias-linear", {"ep": 4, "etp": 1}),
        ("--micro-batch-size 2", {"micro_batch": 2}),
        ("--expert-tensor-parallel-size 2", {"etp": 1}),
    ],
)
def test_degrees(saved, extra: str, degrees: dict[str, object]) -> None:
    parallel = estimate_megatron(saved(f"{MINIMAL} {extra}"), "dgx-h100:1").to_dict()["parallel"]
    assert {name: parallel[name] for name in degrees} == degrees


@pytest.mark.parametrize(
    ("extra", "mode", "layers"),
    [
        ("--recompute-activations", "selective", 4),
        ("--recompute-granularity selective", "selective", 4),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full", 4),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3", "full", 3),
        ("", "none", 0),
    ],
)
def test_recompute(saved, extra: str, mode: str, layers: int) -> None:
    text = f"{MINIMAL} --pipeline-model-parallel-size 2 {extra}"
    recompute = estimate_megatron(saved(text), "dgx-h100:1").to_dict()["parallel"]["recompute"]
    assert (recompute["mode"], recompute["layers"]) == (mode, layers)


@pytest.mark.parametrize(
    ("extra", "precision", "optimizer", "grad_bytes"),
    [
        ("--bf16", "bf16", "adam", 4),
        ("--bf16 --grad-reduce-in-bf16", "bf16", "adam", 2),
        ("--fp16", "fp16", "adam", 2),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", "fp16", "adam", 4),
        ("", "fp32", "adam", 4),
        ("--bf16 --fp8-format hybrid", "fp8-delayed", "adam", 4),
        ("--bf16 --fp8-format hybrid --fp8-recipe tensorwise", "fp8-tensorwise", "adam", 4),
        ("--bf16 --fp8-format e4m3 --fp8-recipe blockwise", "fp8-blockwise", "adam", 4),
        ("--bf16 --optimizer sgd", "bf16", "sgd", 4),
        ("--bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16 --main-grads-dtype bf16", "bf16", "adam-bf16", 2),
    ],
)
def test_precision(saved, extra: str, precision: str, optimizer: str, grad_bytes: int) -> None:
    text = MINIMAL.replace("--bf16", extra)
    training = estimate_megatron(saved(text), "dgx-h100:1").to_dict()["inputs"]["training"]
    assert (training["precision"], training["optimizer"], training["grad_bytes"]) == (precision, optimizer, grad_bytes)


@pytest.mark.parametrize(
    ("extra", "fields"),
    [
        ("", {"activation": "gelu", "ffn": 2048, "norm": "layernorm", "positions": "learned", "mlp_bias": True}),
        ("--swiglu", {"activation": "swiglu", "ffn": 1344}),
        ("--squared-relu --ffn-hidden-size 1024", {"activation": "relu2", "ffn": 1024}),
        ("--group-query-attention --num-query-groups 2", {"kv_heads": 2}),
        ("--kv-channels 128", {"head_dim": 128}),
        ("--qk-layernorm", {"qk_norm": "head"}),
        ("--disable-bias-linear --add-qkv-bias", {"qkv_bias": True, "out_bias": False, "mlp_bias": False}),
        ("--untie-embeddings-and-output-weights", {"tied_embeddings": False}),
        ("--use-rotary-position-embeddings", {"positions": "rope"}),
        ("--hidden-dropout 0", {"dropout": False}),
        ("--window-size 127,0 --window-attn-skip-freq 2", {"windows": [128, None]}),
        ("--window-size (127,0) --window-attn-skip-freq ([1]*3+[0]*5)", {"windows": [128] * 3 + [None] * 5}),
        ("--mtp-num-layers 1", {"mtp_layers": 1}),
    ],
)
def test_the_model(saved, extra: str, fields: dict[str, object]) -> None:
    text = json.dumps(f"{MINIMAL} {extra}".split())
    model = estimate_megatron(saved(text, "a.json"), "dgx-h100:1").to_dict()["inputs"]["model"]
    assert {name: model[name] for name in fields} == fields


def test_layers_without_experts(saved) -> None:
    moe = "--num-experts 8 --moe-ffn-hidden-size 256 --moe-router-topk 4 --disable-bias-linear"
    for frequency, dense in (("2", [1, 3, 5, 7]), ("[0]*3+[1]*5", [0, 1, 2])):
        text = json.dumps(f"{MINIMAL} {moe} --moe-layer-freq {frequency}".split())
        model = estimate_megatron(saved(text, "a.json"), "dgx-h100:1").to_dict()["inputs"]["model"]
        assert model["moe"]["dense_layers"] == dense
        assert (model["moe"]["experts"], model["moe"]["topk"], model["moe"]["expert_ffn"]) == (8, 4, 256)


def test_the_vocabulary_of_a_known_tokenizer(saved) -> None:
    bare = MINIMAL.replace("--vocab-size 50304", "")
    for words, vocab in (
        ("--tokenizer-type GPT2BPETokenizer", 50257),
        ("--vocab-file v.json --merge-file m.txt", 50257),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B", 128256),
    ):
        record = estimate_megatron(saved(f"{bare} {words}"), "dgx-h100:1").to_dict()
        assert record["inputs"]["model"]["vocab"] == vocab
    with pytest.raises(InvalidValueError, match="how many words"):
        estimate_megatron(saved(f"{bare} --tokenizer-model $1"), "dgx-h100:1")


@pytest.mark.parametrize(
    ("extra", "cluster", "rule", "remedy"),
    [
        ("--pipeline-model-parallel-size 3", "dgx-h100:3", "layers-even", "Et*3|t*3|ttL"),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 3", "dgx-h100:1", "ends", "num-layers 2"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*8L", "dgx-h100:1", "layout", "pp 1"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*4|t*3L", "dgx-h100:1", "layout", "8 times"),
        ("--tensor-model-parallel-size 16", "dgx-h100:1", "world-size", "8"),
        ("--tensor-model-parallel-size 3", "dgx-h100:3", "attention-heads", "tp"),
        ("--global-batch-size 12", "dgx-h100:1", "batch", "8 or 16"),
    ],
)
def test_violations_name_a_remedy(saved, extra: str, cluster: str, rule: str, remedy: str) -> None:
    text = json.dumps(f"{MINIMAL} {extra}".split())
    found = estimate_megatron(saved(text, "a.json"), cluster)
    broken = [one for one in found.to_dict()["violations"] if rule in one["rule"] or rule in one["message"]]
    assert found.exit_code == 1
    assert any(remedy in one["remedy"] for one in broken), found.to_dict()["violations"]


def test_dropped_layers_are_refused(saved) -> None:
    """30 layers over 4 stages: old versions built 28 of them."""
    text = MINIMAL.replace("--num-layers 8", "--num-layers 30") + " --pipeline-model-parallel-size 4"
    record = estimate_megatron(saved(text), "dgx-h100:1").to_dict()
    assert not record["feasible"]
    assert any("30 layers" in one["message"] for one in record["violations"])


def test_embedding_and_loss_counted_as_layers_are_legal(saved) -> None:
    text = MINIMAL.replace("--num-layers 8", "--num-layers 94") + (
        " --pipeline-model-parallel-size 32 --num-virtual-stages-per-pipeline-rank 3"
        " --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    )
    record = estimate_megatron(saved(text), "dgx-h100:4").to_dict()
    assert record["feasible"], record["violations"]
    assert sum(b - a + 1 for s in record["stages"] for a, b in filter(None, s["layers"])) == 94


def test_the_launch_must_start_the_ranks_of_the_cluster(saved) -> None:
    path = saved(LLAMA)
    record = estimate_megatron(path, "dgx-h100:2").to_dict()
    assert any("8" in one["message"] and "16" in one["message"] for one in record["violations"])
    assert not record["feasible"]
    assert estimate_megatron(path, "dgx-h100:2", defined={"NUM_NODES": "2"}).feasible
    assert not estimate_megatron(path, "dgx-h100:1", world_size=1).feasible


def test_the_default_batch_is_one_micro_batch_a_replica(saved) -> None:
    record = estimate_megatron(saved(MINIMAL.replace("--global-batch-size 64", "")), "dgx-h100:1").to_dict()
    assert record["training"]["global_batch"] == 8


def test_unknown_options_are_named_with_the_nearest(saved) -> None:
    text = f"python pretrain_gpt.py {MINIMAL} \\\n  --tensor-model-paralel-size 2 --my-own-flag 3\n"
    warnings = estimate_megatron(saved(text), "dgx-h100:1").to_dict()["warnings"]
    assert any(":2:" in one and "did you mean --tensor-model-parallel-size?" in one for one in warnings)
    assert any("--my-own-flag" in one and "did you mean" not in one for one in warnings)


def test_what_a_reader_should_know_is_said(saved) -> None:
    text = f"python pretrain_gpt.py {MINIMAL} --num-layers 4 --moe-extended-tp --rampup-batch-size 8 8 100 $MORE stray\n"
    warnings = " ".join(estimate_megatron(saved(text), "dgx-h100:1").to_dict()["warnings"])
    for said in ("given twice (8 and 4)", "gone in newer versions", "after the ramp", "$MORE is not known"):
        assert said in warnings
    bare = " ".join(estimate_megatron(saved(MINIMAL), "dgx-h100:1").to_dict()["warnings"])
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1 is taken for granted" in bare


@pytest.mark.parametrize(
    ("text", "error", "says", "where"),
    [
        (MINIMAL.replace("--num-layers 8", "--num-layers eight"), InvalidValueError, "eight", "run.sh:1: --num-layers"),
        (MINIMAL.replace("--num-layers 8", "--num-layers 0"), InvalidValueError, "0 is no such", "--num-layers"),
        (MINIMAL.replace("--num-layers 8", "--num-layers -3"), InvalidValueError, "-3", "--num-layers"),
        (MINIMAL.replace("--num-layers 8", "--num-layers"), InvalidValueError, "no value", "--num-layers"),
        (MINIMAL.replace("--seq-length 1024", ""), InvalidValueError, "seq_length", "run.sh"),
        (MINIMAL.replace("--hidden-size 512", ""), InvalidValueError, "hidden_size", "run.sh"),
        (MINIMAL.replace("--num-layers 8", "--num-layers $L"), InvalidValueError, "$L on line 1", "--num-layers"),
        (MINIMAL.replace("--num-layers 8", "--num-layers $(rm -rf /)"), InvalidValueError, "$(rm -rf /)", "--num-layers"),
        (MINIMAL.replace("--hidden-size 512", "--hidden-size 500"), InvalidValueError, "do not divide", "--hidden-size"),
        (MINIMAL + " --hierarchical-context-parallel-sizes 2 x", InvalidValueError, "x is no", "--hierarchical"),
        (MINIMAL + " --normalization RMSnorm", UnknownNameError, "RMSnorm", "--normalization"),
        (MINIMAL + " --hybrid-override-pattern M-M*-", UnsupportedError, "hybrid_override_pattern", "--hybrid"),
        (MINIMAL + " --num-experts 4 --moe-layer-freq [0]*3", InvalidValueError, "3 entries for 8", "--moe-layer-freq"),
        ("python train.py --lr 3", InvalidValueError, "describes no model", "run.sh"),
        ("echo hello", DamagedFileError, "holds no Megatron-LM arguments", "run.sh"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(saved, text: str, error: type, says: str, where: str) -> None:
    with pytest.raises(error) as caught:
        estimate_megatron(saved(text), "dgx-h100:1")
    assert says in caught.value.message
    assert where in caught.value.where
    assert caught.value.hint


def test_a_variable_that_nothing_sets_can_be_defined(saved) -> None:
    path = saved(MINIMAL.replace("--num-layers 8", "--num-layers $LAYERS"))
    with pytest.raises(InvalidValueError, match="LAYERS") as caught:
        estimate_megatron(path, "dgx-h100:1")
    assert "--define LAYERS=VALUE" in caught.value.hint
    assert estimate_megatron(path, "dgx-h100:1", defined={"LAYERS": "8"}).feasible


def test_a_named_model_must_be_the_one_of_the_file(saved) -> None:
    path = saved(LLAMA)
    assert estimate_megatron(path, "dgx-h100:1", model="llama3-8b").feasible
    with pytest.raises(ConflictError, match="num_layers 32; llama3-70b has 80"):
        estimate_megatron(path, "dgx-h100:1", model="llama3-70b")
    bare = saved("--micro-batch-size 1 --seq-length 4096 --bf16 --tensor-model-parallel-size 8 --sequence-parallel", "b.txt")
    record = estimate_megatron(bare, "dgx-h100:8", model="deepseek-v3").to_dict()
    assert record["inputs"]["model"]["mtp_layers"] == 0
    assert any("multi-token-prediction" in one for one in record["warnings"])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{", "a.json"),
        ("[1, 2", "a.json"),
        ("[[1]]", "a.json"),
        ("[true]", "a.json"),
        ("a: [1\n", "a.yaml"),
        ("- --num-layers\n- 8\n", "a.yaml"),
        ("!!python/object/apply:os.system ['true']\n", "a.yaml"),
        ("num_layers: 8\nnum_layers: 9\n", "a.yaml"),
        ("num_layers: {a: 1}\n", "a.yaml"),
        ("", "a.sh"),
    ],
)
def test_damaged_documents_are_refused(saved, text: str, name: str) -> None:
    with pytest.raises(ShardwrightError) as caught:
        estimate_megatron(saved(text, name), "dgx-h100:1")
    assert caught.value.exit_code == 2


ALL = sorted(SWITCHES | OFF | BOTH | VALUES | LISTS)
words = st.sampled_from(ALL).map("--{}".format) | st.sampled_from(["1", "8", "-1", "x", "1e99", "[0]*3", "true", "$A", "`b`"])


@given(words=st.lists(words, max_size=12))
def test_any_arguments_are_read_or_refused(tmp_path_factory, words: list[str]) -> None:
    path = tmp_path_factory.mktemp("arguments") / "run.sh"
    path.write_text(f"{MINIMAL} {' '.join(words)}", encoding="utf-8")
    try:
        record = estimate_megatron(path, "dgx-h100:1").to_dict()
    except ShardwrightError as error:
        assert error.message  # noqa: PT017 - both ends are fine
        return
    assert record["feasible"] is not None


def test_any_value_of_what_rules_read_is_read_or_refused(tmp_path: Path) -> None:
    read = {setting for rule in RULES if "megatron" in rule.targets for setting in rule.settings}
    degrees = "--pipeline-model-parallel-size 2 --context-parallel-size 2 --num-experts 8 --disable-bias-linear"
    for name in ALL:
        if setting_of(name) in read and name in VALUES | LISTS:
            for value in ("x", "-1"):
                path = tmp_path / "a.json"
                path.write_text(json.dumps([*MINIMAL.split(), *degrees.split(), f"--{name}", value]), encoding="utf-8")
                try:
                    record = estimate_megatron(path, "dgx-h100:1").to_dict()
                except ShardwrightError as error:
                    assert error.message  # noqa: PT017 - both ends are fine
                else:
                    assert record["feasible"] is not None


def test_the_rank_order_of_a_dense_model(saved) -> None:
    """The experts' mesh of a dense model has etp = tp unless told otherwise."""
    text = f"{MINIMAL} --pipeline-model-parallel-size 2 --tensor-model-parallel-size 2 --use-tp-pp-dp-mapping"
    assert "megatron-rank-order" not in rules(estimate_megatron(saved(text), "dgx-h100:1").to_dict())
    wider = f"{text} --context-parallel-size 2"
    assert "megatron-rank-order" in rules(estimate_megatron(saved(wider), "dgx-h100:1").to_dict())
    told = f"{wider} --expert-tensor-parallel-size 4"
    assert "megatron-rank-order" not in rules(estimate_megatron(saved(told), "dgx-h100:1").to_dict())


def test_every_option_takes_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(" ".join(f"--{name}" + ("" if name in SWITCHES | OFF | BOTH else " 1") for name in ALL), encoding="utf-8")
    found = read_megatron_file(path)
    assert not [one for one in found.warnings if "knows no" in one or "belongs to no" in one]


def test_rules_and_options_call_settings_by_one_name() -> None:
    options = set(map(setting_of, ALL))
    set_elsewhere = {"variable_seq_lengths"}
    read = {setting for rule in RULES if "megatron" in rule.targets for setting in rule.settings}
    assert {name for name in read - options if "." not in name} <= set_elsewhere


@pytest.mark.parametrize(("version", "form", "broken"), [
    ("0.12", "torch", True), ("0.20", "torch", True), ("0.20", "torch_dist", False),
])  # fmt: skip
def test_without_gloo_groups_the_optimizer_saves_in_a_distributed_format(saved, version, form, broken) -> None:
    words = "--disable-gloo-process-groups --use-distributed-optimizer --ckpt-format " + form
    path = saved(json.dumps([*MINIMAL.split(), *words.split()]), "a.json")
    record = estimate_megatron(
        path, "dgx-h100:1", options=PricingOptions(framework="megatron", target_version=version)
    ).to_dict()
    assert ("megatron-gloo" in rules(record)) is broken


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("--expert-model-parallel-size 8", "allgather"),
        ("--moe-token-dispatcher-type alltoall --expert-model-parallel-size 8", "alltoall"),
        ("--moe-token-dispatcher-type flex --expert-model-parallel-size 8", "deepep"),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep --expert-model-parallel-size 8", "deepep"),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --expert-model-parallel-size 8", "hybridep"),
        ("--moe-token-dispatcher-type allgather", "alltoall"),
    ],
)
def test_the_dispatcher_of_tokens_is_read(saved, words, kind) -> None:
    experts = "--num-experts 8 --moe-router-topk 2 --disable-bias-linear"
    path = saved(json.dumps([*MINIMAL.split(), *experts.split(), *words.split()]), "a.json")
    assert estimate_megatron(path, "dgx-h100:1").to_dict()["parallel"]["moe_dispatcher"] == kind


@pytest.mark.parametrize(
    ("words", "kind", "warned"),
    [
        ("", "p2p", False),
        ("--cp-comm-type p2p", "p2p", False),
        ("--cp-comm-type a2a", "a2a", False),
        ("--cp-comm-type allgather", "allgather", False),
        ("--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2", "p2p", True),
    ],
)
def test_the_exchange_of_context_parallelism_is_read(saved, words, kind, warned) -> None:
    path = saved(json.dumps([*MINIMAL.split(), "--context-parallel-size", "4", *words.split()]), "a.json")
    record = estimate_megatron(path, "dgx-h100:1").to_dict()
    assert record["parallel"]["cp_comm"] == kind
    assert any("priced as a ring (p2p)" in text for text in record["warnings"]) is warned
