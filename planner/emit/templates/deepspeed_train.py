"""Trains the planned model with DeepSpeed on synthetic data, on GPUs or on CPUs with gloo, and prints a report as JSON.

    torchrun --nproc-per-node 8 train.py

ds_config.json is DeepSpeed's configuration, config.yaml (JSON, which is YAML) the model and the job. Sample i of step s and
the weights at the start are the same whatever the ZeRO stage and the number of ranks.
"""

import importlib
import json
import os
import pathlib

import deepspeed
import torch
import torch.distributed as dist
from context import ExpertExchange
from data import largest_peak, loss_of, now, report, share
from model import Model, fill, whole_sequence
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper

HERE = pathlib.Path(__file__).resolve().parent


class Whole:
    """Parameters one after the other, each whole while it is looked at, also where ZeRO 3 has sharded it."""

    def __init__(self, model):
        self.model = model

    def named_parameters(self):
        for name, weight in self.model.named_parameters():
            with deepspeed.zero.GatheredParameters(weight, modifier_rank=0, enabled=hasattr(weight, "ds_id")):
                yield name, weight


def build(config, plan, settings, device):
    """The model; under ZeRO 3 it is made in shards, since it need not fit on one device."""
    chunk = {"layers": [i for part in config["chunks"] for i in part], "first": True, "last": True}
    stage = settings["zero_optimization"]["stage"]
    with deepspeed.zero.Init(config_dict_or_path=settings, enabled=stage == 3):
        model = Model(config, chunk, whole_sequence, ExpertExchange(None), torch.arange(config["seq_len"], device="cpu"))
    fill(Whole(model), config["seed"], 0)
    for name in list(model.layers)[: plan["recompute_layers"]]:
        # reentrant: the other form compares the shapes of weights, which ZeRO 3 has taken away by then
        model.layers[name] = checkpoint_wrapper(model.layers[name], CheckpointImpl.REENTRANT)
    return model if stage == 3 else model.to(device)


def started():
    """The device of this process, with the group of all."""
    accelerated = torch.cuda.is_available()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if accelerated else "cpu"
    if accelerated:
        torch.cuda.set_device(device)
    else:
        with_gloo_alone()
    deepspeed.init_distributed(dist_backend="nccl" if accelerated else "gloo", auto_mpi_discovery=False)
    return device


def with_gloo_alone():
    """Leaves all exchanges between CPUs to gloo: DeepSpeed would compile one of its own first, for minutes."""
    backend = importlib.import_module("deepspeed.comm.torch")  # as an attribute it is torch itself
    if hasattr(backend, "build_shm_op"):
        backend.build_shm_op = lambda: None


def step(engine, tokens, labels, count):
    """Forward and backward of all micro-batches and the update; the mean loss of this rank."""
    total = 0.0
    for x, y in zip(tokens.chunk(count), labels.chunk(count), strict=True):
        loss = loss_of(engine(x), y)
        engine.backward(loss)  # divides by the micro-batches
        engine.step()  # updates with the last of them
        total += float(loss.detach()) / count
    return total


def train(config, plan, settings):
    """All steps; the report on rank 0."""
    device = started()
    world, rank = dist.get_world_size(), dist.get_rank()
    if world != plan["world_size"]:
        raise SystemExit(f"planned for {plan['world_size']} processes, started with {world}")
    if device == "cpu" and settings["optimizer"]["type"] == "AdamW":
        settings["optimizer"]["params"]["torch_adam"] = True  # the fused one is a CUDA kernel
    model = build(config, plan, settings, device)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    losses, times = [], []
    for number in range(config["steps"]):
        tokens, labels = (part.to(device) for part in share(config, world, rank, number))
        start = now(device)
        loss = step(engine, tokens, labels, settings["gradient_accumulation_steps"])
        times.append(now(device) - start)
        mean = torch.tensor([loss], device=device)
        dist.all_reduce(mean)
        losses.append(float(mean) / world)
    peak = largest_peak(device)
    if rank == 0:
        print(json.dumps(report(losses, times, peak, world)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    config = json.loads((HERE / "config.yaml").read_text(encoding="utf-8"))
    settings = json.loads((HERE / "ds_config.json").read_text(encoding="utf-8"))
    train(config["model"] | config["job"], config["plan"], settings)


if __name__ == "__main__":
    main()
