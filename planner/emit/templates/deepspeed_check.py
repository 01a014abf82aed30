"""Asks DeepSpeed whether it takes ds_config.json for the planned world; needs no GPU and starts no further process.

Without a group of processes DeepSpeed takes the world for one rank, so a fake group of the planned size is made first.
"""

import importlib
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "ds_config.json"
PLAN = json.loads((HERE / "plan.json").read_text(encoding="utf-8"))
PLANNED, TRAINING = PLAN["parallel"], PLAN["inputs"]["training"]


def understood():
    """What DeepSpeed makes of the file in a world of the planned size."""
    import deepspeed.comm
    import torch.distributed as dist
    from deepspeed.runtime.config import DeepSpeedConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    backend = importlib.import_module("deepspeed.comm.torch")  # as an attribute it is torch itself
    if hasattr(backend, "build_shm_op"):
        backend.build_shm_op = lambda: None  # compiles an exchange for CPUs; nothing is exchanged here
    dist.init_process_group("fake", rank=0, world_size=PLANNED["world_size"], store=FakeStore())
    deepspeed.comm.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    config = DeepSpeedConfig(str(FILE))  # from the file: only then are keys stated twice refused
    return {
        "dp": config.world_size,
        "global_batch": config.train_batch_size,
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "micro_batches": config.gradient_accumulation_steps,
        "zero_stage": int(config.zero_optimization_stage),
        "precision": precision_of(config),
    }


def precision_of(config):
    """The precision DeepSpeed will train in."""
    import torch

    def on(name, old):
        section = getattr(config, f"{name}_config", None)  # before 0.18 a plain attribute
        return section.enabled if section is not None else getattr(config, old)

    kinds = [
        kind
        for kind, name, old in (("bf16", "bfloat16", "bfloat16_enabled"), ("fp16", "float16", "fp16_enabled"))
        if on(name, old)
    ]
    sent = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    asked = json.loads(FILE.read_text(encoding="utf-8")).get("communication_data_type")
    if asked is not None and config.communication_data_type != sent[asked]:
        sys.exit(f"gradients are sent in {config.communication_data_type}, not in {asked}")
    return kinds[0] if kinds else "fp32"


def main():
    found = understood()
    planned = {**PLANNED, "global_batch": TRAINING["global_batch"], "precision": TRAINING["precision"]}
    wrong = [f"{name}: planned {planned[name]}, DeepSpeed has {has}" for name, has in found.items() if has != planned[name]]
    if wrong:
        sys.exit("DeepSpeed understands something else:\n  " + "\n  ".join(wrong))
    print("DeepSpeed accepts the configuration: " + ", ".join(f"{name} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
