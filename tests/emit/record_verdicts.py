"""Writes the corpus of verdicts: emits bundles, changes them, and asks the frameworks that are installed.

    python record_verdicts.py megatron CHECKOUT...      sources of Megatron-LM releases
    python record_verdicts.py deepspeed                 DeepSpeed, installed
    python record_verdicts.py torchtitan                torchtitan 0.2, installed
    python record_verdicts.py again FRAMEWORK           only prints the letters of what is recorded, as they are now

Which changes are tried of which bundle is drawn from a fixed seed.
"""

from __future__ import annotations

import importlib.metadata
import json
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from emit_corpus import AMPLE, megatron_plans, torchtitan_plans
from verdict_corpus import FOLDER, GONE, Bundle, Case, case_of, load

from shardwright.errors import ShardwrightError
from shardwright.planner.emit.emission import bundle_files
from shardwright.planner.emit.expressing import for_version
from shardwright.planner.emit.options import LaunchOptions
from shardwright.planner.emit.registry import LAUNCHERS, TARGETS
from shardwright.planner.emit.request import read_request
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

SEED, EACH = 5, 5
MODELS = (
    *("llama3.1-8b", "qwen2.5-32b", "gpt3-175b", "megatron-22b"),
    *("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "glm-4.5-air"),
)
WORKER = Path(__file__).parents[1] / "rules_proof" / "megatron_lm_worker.py"
_NO_VERDICT = (
    *("Only transformer-engine>=", "No module named 'transformer_engine'", "'NoneType' and 'Version'", "FusedAdam"),
    *("process group has not been initialized", "transformer-engine>="),
)

Values = dict[str, Any]
_A = "arguments.--"

MEGATRON: Mapping[str, Values] = {
    "tp 3": {_A + "tensor-model-parallel-size": ["3"]},
    "pp 5": {_A + "pipeline-model-parallel-size": ["5"]},
    "cp 3": {_A + "context-parallel-size": ["3"]},
    "seven heads": {_A + "num-attention-heads": ["7"]},
    "no sequence parallelism": {_A + "sequence-parallel": GONE},
    "full without a method": {_A + "recompute-granularity": ["full"], _A + "recompute-method": GONE},
    "selective with a method": {_A + "recompute-granularity": ["selective"], _A + "recompute-method": ["uniform"]},
    "selective": {
        _A + "recompute-granularity": ["selective"],
        _A + "recompute-method": GONE,
        _A + "recompute-num-layers": GONE,
    },
    "no distributed optimizer": {_A + "use-distributed-optimizer": GONE},
    "gather alone": {_A + "overlap-param-gather": [], _A + "overlap-grad-reduce": GONE},
    "eight connections": {"environment.CUDA_DEVICE_MAX_CONNECTIONS": "8"},
    "one connection": {"environment.CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    "a layer less": {_A + "num-layers": ["23"]},
    "two virtual stages": {_A + "num-virtual-stages-per-pipeline-rank": ["2"]},
    "few positions": {_A + "max-position-embeddings": ["128"]},
    "both halves": {_A + "bf16": [], _A + "fp16": []},
    "no half": {_A + "bf16": GONE, _A + "fp16": GONE},
    "ep 3": {_A + "expert-model-parallel-size": ["3"]},
    "unknown dispatcher": {_A + "moe-token-dispatcher-type": ["pigeon"]},
    "another checkpoint": {_A + "ckpt-format": ["torch_dcp"]},
    "torch's fsdp": {_A + "use-torch-fsdp2": []},
    "odd sequence": {_A + "seq-length": ["1023"], _A + "max-position-embeddings": ["200000"]},
    "three groups": {_A + "num-query-groups": ["3"], _A + "group-query-attention": []},
    "unknown option": {_A + "brand-new-option": []},
    "no experts": {_A + "num-experts": GONE},
    "tp overlap": {_A + "tp-comm-overlap": []},
    "sgd": {_A + "optimizer": ["sgd"]},
    "experts overlapped": {_A + "overlap-moe-expert-parallel-comm": []},
    "saved activations": {_A + "distribute-saved-activations": []},
    "three instances": {_A + "num-distributed-optimizer-instances": ["3"]},
}

DEEPSPEED: Mapping[str, Values] = {
    "another batch": {"train_batch_size": 72},
    "another micro-batch": {"train_micro_batch_size_per_gpu": 3},
    "no accumulation": {"gradient_accumulation_steps": GONE},
    "only a batch": {"gradient_accumulation_steps": GONE, "train_micro_batch_size_per_gpu": GONE},
    "no batch at all": {
        **dict.fromkeys(("gradient_accumulation_steps", "train_micro_batch_size_per_gpu", "train_batch_size"), GONE)
    },
    "stage 4": {"zero_optimization.stage": 4},
    "stage 2": {"zero_optimization.stage": 2},
    "stage none": {"zero_optimization": GONE},
    "unknown key of zero": {"zero_optimization.overlap_communication": True},
    "both halves": {"bf16.enabled": True, "fp16.enabled": True},
    "offload": {"zero_optimization.offload_optimizer.device": "cpu"},
    "offload nowhere": {"zero_optimization.offload_optimizer.device": "disk"},
    "summed": {"gradient_allreduce_op": "sum"},
    "auto": {"train_batch_size": "auto"},
    "twice the world": {},
}
_P = "parallelism."
TORCHTITAN: Mapping[str, Values] = {
    "tp 3": {_P + "tensor_parallel_degree": 3},
    "pp 3": {_P + "pipeline_parallel_degree": 3},
    "cp 5": {_P + "context_parallel_degree": 5},
    "shard 0": {_P + "data_parallel_shard_degree": 0},
    "the rest": {_P + "data_parallel_shard_degree": -1},
    "replicas": {_P + "data_parallel_replicate_degree": 3},
    "etp 3": {_P + "expert_tensor_parallel_degree": 3, _P + "expert_parallel_degree": 2},
    "unknown key": {_P + "tensor_parallel": 2},
    "unknown section": {"parallel": {"tp": 2}},
    "async tp": {_P + "enable_async_tensor_parallel": True},
    "twice the world": {},
}


def main() -> None:
    """Records the framework named first, or asks it again."""
    framework = sys.argv[1]
    if framework == "again":
        judge = {"deepspeed": by_deepspeed, "torchtitan": by_torchtitan}[sys.argv[2]]
        sys.stdout.write("\n" + json.dumps(judge(load(sys.argv[2]))) + "\n")
        return
    bundles, changes, judges = RECORDED[framework](sys.argv[2:])
    cases = list(changed(framework, bundles, changes))
    letters = {release: judge(cases) for release, judge in judges.items()}
    rows = [
        {
            "bundle": case.bundle.name,
            "change": case.change,
            "set": changes.get(case.change, {}),
            **({"gpus": case.gpus} if case.gpus != case.bundle.gpus else {}),
            "verdicts": {release: found[at] for release, found in letters.items()},
        }
        for at, case in enumerate(cases)
    ]
    made = [{name: getattr(one, name) for name in ("name", "model", "gpus", "seq_len", "content")} for one in bundles]
    text = ",\n".join(json.dumps(one, separators=(",", ":")) for one in made)
    tried = ",\n".join(json.dumps(one, separators=(",", ":")) for one in rows)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{framework}.json").write_text(f'{{"bundles": [\n{text}\n],\n"cases": [\n{tried}\n]}}\n', encoding="utf-8")


def changed(framework: str, bundles: Sequence[Bundle], changes: Mapping[str, Values]) -> Iterator[Case]:
    """Each bundle as it is, and with some of the changes that change something."""
    for bundle in bundles:
        plain = case_of(bundle, "", {}, None)
        yield plain
        chance = random.Random(f"{SEED} {framework} {bundle.name}")
        names = [n for n in changes if not changes[n] or case_of(bundle, n, changes[n], None).content != plain.content]
        for name in chance.sample(names, min(EACH, len(names))):
            yield case_of(bundle, name, changes[name], None if changes[name] else 2 * bundle.gpus)


Judge = Callable[[Sequence[Case]], list[str]]
Recording = tuple[list[Bundle], Mapping[str, Values], dict[str, Judge]]


def megatron(checkouts: Sequence[str]) -> Recording:
    """Argument lists for release 0.16, judged by every checkout."""
    made = []
    for drawn in megatron_plans(MODELS, a_model=9, seed=SEED):
        training = drawn.plan["inputs"]["training"]
        if training["precision"].startswith("fp8") or training["optimizer"] == "adam-bf16" or "b200" in drawn.cluster:
            continue  # their verdict depends on libraries and devices that are not here
        files = emitted_files(drawn.plan, "megatron", "0.16")
        if files is None:
            continue
        content = {
            "arguments": options_of(json.loads(files["arguments.json"])),
            "environment": json.loads(files["environment.json"]),
        }
        made.append(bundle_of(drawn.name, drawn.plan, content))
    return made, MEGATRON, {release_of(path): lambda cases, at=path: by_checkout(at, cases) for path in checkouts}


def options_of(words: Sequence[str]) -> dict[str, list[str]]:
    """Options and their words."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word
            found[name] = []
        else:
            found[name].append(word)
    return found


def emitted_files(plan: dict[str, Any], target: str, version: str) -> dict[str, str] | None:
    """Files of a bundle; None where the target refuses the plan."""
    chosen = TARGETS[target]
    try:
        request = for_version(read_request(plan, LaunchOptions()), chosen, version)
        return {name: file.text for name, file in bundle_files(request, chosen, LAUNCHERS["torchrun"]).items()}
    except ShardwrightError:
        return None


def bundle_of(name: str, plan: dict[str, Any], content: dict[str, Any]) -> Bundle:
    """A bundle of the corpus."""
    return Bundle(
        name=name,
        model=plan["inputs"]["model"]["name"],
        gpus=plan["parallel"]["world_size"],
        seq_len=plan["inputs"]["training"]["seq_len"],
        content=content,
    )


def release_of(checkout: str) -> str:
    """Release of a checkout."""
    text = (Path(checkout) / "megatron/core/package_info.py").read_text(encoding="utf-8")
    numbers = dict(line.split(" = ") for line in text.splitlines() if line.startswith(("MAJOR", "MINOR")))
    return f"{numbers['MAJOR']}.{numbers['MINOR']}"


def by_checkout(checkout: str, cases: Sequence[Case]) -> list[str]:
    """Letters of Megatron-LM's own argument checks."""
    lines = [
        json.dumps({"arguments": case.words, "environment": {**case.content["environment"], "WORLD_SIZE": str(case.gpus)}})
        for case in cases
    ]
    command = [sys.executable, "-W", "ignore", str(WORKER), checkout]
    ran = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    return [letter_of(json.loads(line)) for line in ran.stdout.splitlines()]


def letter_of(verdict: Mapping[str, Any]) -> str:
    """A verdict in one letter."""
    if verdict["accepted"]:
        return "a"
    if any(words in str(verdict["message"]) for words in _NO_VERDICT):
        return "n"
    return "u" if verdict["link"] == "parse" else "r"


def deepspeed(_: Sequence[str]) -> Recording:
    """JSON documents, judged by DeepSpeedConfig."""
    made = []
    for zero in range(4):
        for precision in ("bf16", "fp16", "fp32"):
            options = PricingOptions(framework="deepspeed", precision=precision, overrides=(AMPLE,))
            degrees = Degrees(zero=zero, micro_batch=1 + zero % 2)
            for nodes in (1, 4):
                plan = estimate(
                    "llama3.2-3b", f"dgx-h100:{nodes}", seq_len=2048, global_batch=64, degrees=degrees, options=options
                ).to_dict()
                files = emitted_files(plan, "deepspeed", "0.19")
                if files is not None:
                    made.append(bundle_of(f"{precision}-{zero}-{nodes}", plan, json.loads(files["ds_config.json"])))
    return made, DEEPSPEED, {"0.19": by_deepspeed}


def by_deepspeed(cases: Sequence[Case]) -> list[str]:
    """Letters of DeepSpeedConfig, on a fake group of each case's size."""
    import importlib

    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    backend = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None  # type: ignore[attr-defined]
    import deepspeed
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    letters = []
    for case in cases:
        dist.init_process_group("fake", rank=0, world_size=case.gpus, store=FakeStore())
        comm.comm.cdb = None
        deepspeed.comm.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
        try:
            config = DeepSpeedConfig(json.loads(json.dumps(case.content)))
            letters.append("a" if config.world_size == case.gpus else "r")
        except (AssertionError, ValueError, TypeError):
            letters.append("r")
        finally:
            dist.destroy_process_group()
    return letters


def torchtitan(_: Sequence[str]) -> Recording:
    """TOML files of 0.2, judged by torchtitan's ConfigManager and ParallelDims."""
    made = []
    for drawn in torchtitan_plans(("llama3.1-8b", "llama3.1-70b", "qwen3-8b", "deepseek-v2-lite"), a_model=6, seed=SEED):
        files = emitted_files(drawn.plan, "torchtitan", "0.2")
        if files is not None and "config.toml" in files:
            made.append(bundle_of(drawn.name, drawn.plan, tomllib.loads(files["config.toml"])))
    return made, TORCHTITAN, {".".join(importlib.metadata.version("torchtitan").split(".")[:2]): by_torchtitan}


def by_torchtitan(cases: Sequence[Case]) -> list[str]:
    """Letters of torchtitan 0.2."""
    import tempfile

    import tomli_w
    from check_runner import prepare

    prepare(("triton",), (), device=False)
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims

    letters = []
    for case in cases:
        with tempfile.TemporaryDirectory() as home:
            path = Path(home) / "config.toml"
            path.write_text(tomli_w.dumps(case.content), encoding="utf-8")
            try:
                p = ConfigManager().parse_args(["--job.config_file", str(path)]).parallelism
                ParallelDims(
                    dp_replicate=p.data_parallel_replicate_degree,
                    dp_shard=p.data_parallel_shard_degree,
                    cp=p.context_parallel_degree,
                    tp=p.tensor_parallel_degree,
                    pp=p.pipeline_parallel_degree,
                    ep=p.expert_parallel_degree,
                    etp=p.expert_tensor_parallel_degree,
                    world_size=case.gpus,
                )
                letters.append("a")
            except (AssertionError, ValueError, TypeError, ZeroDivisionError, SystemExit):
                letters.append("r")
    return letters


RECORDED: Mapping[str, Callable[[Sequence[str]], Recording]] = {
    "megatron": megatron,
    "deepspeed": deepspeed,
    "torchtitan": torchtitan,
}

if __name__ == "__main__":
    main()
