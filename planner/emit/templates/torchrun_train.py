"""Trains the planned model on synthetic data, on GPUs or on CPUs with gloo, and prints times and memory as JSON.

    torchrun --nproc-per-node 8 train.py

Everything is in config.yaml (JSON, which is YAML): the model, the plan, the batch. Sample i of step s is the same
whatever the plan, and so are the weights at the start: losses agree with those of a single process.
"""

import contextlib
import functools
import json
import os
import pathlib

import torch
import torch.distributed as dist
from context import held_positions
from data import largest_peak, loss_of, now, report, share
from losses import loss_in_pieces
from parallel import Mesh, build
from scaling import LossScale
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

HERE = pathlib.Path(__file__).resolve().parent
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def batch(config, mesh, positions, step, device):
    """This rank's micro-batches of a step: (tokens, labels) of [sequences, local tokens] each."""
    return tuple(part[:, positions].to(device) for part in share(config, mesh.data, mesh.data_rank(), step))


def stage_indices(plan, rank):
    """The stages a pipeline rank holds, in order: loops, or a V."""
    if plan["schedule"] in V_SHAPED:
        return (rank, 2 * plan["pp"] - 1 - rank)
    return tuple(rank + plan["pp"] * v for v in range(plan["vpp"]))


def chunk_of(config, index):
    """What a stage holds."""
    return {"layers": config["chunks"][index], "first": index == 0, "last": index == len(config["chunks"]) - 1}


class Whole:
    """A model without a pipeline: micro-batches one after the other, gradients exchanged with the last."""

    def __init__(self, config, plan, mesh, device, scale):
        self.plan, self.scale = plan, scale
        chunk = {"layers": [i for part in config["chunks"] for i in part], "first": True, "last": True}
        self.parts = [build(config, plan, mesh, device, chunk)]

    def step(self, tokens, labels):
        """Forward and backward of all micro-batches; their mean loss."""
        model, count = self.parts[0], self.plan["micro_batches"]
        total = 0.0
        for i, (x, y) in enumerate(zip(tokens.chunk(count), labels.chunk(count), strict=True)):
            with self.exchanging(model, last=i + 1 == count), divided_loss(self.plan), precision(self.plan, x.device):
                loss = self.loss(model, x, y) / count
                self.scale(loss).backward()
            total += plain(loss)
        return total

    def loss(self, model, x, y):
        """Of one micro-batch, whole or in pieces."""
        pieces = self.plan["loss_chunks"]
        if pieces == 1:
            return loss_of(model(x), y)
        return model(x, functools.partial(loss_in_pieces, labels=y, pieces=pieces))

    @staticmethod
    def exchanging(model, *, last):
        """Gradients are exchanged once a step."""
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(last)
        elif hasattr(model, "no_sync") and not last:
            return model.no_sync()
        return contextlib.nullcontext()


class Piped:
    """A pipeline under one of torch's schedules."""

    def __init__(self, config, plan, mesh, device, scale):
        self.plan, self.scale = plan, scale
        group, rank = mesh.group("pp"), mesh.rank("pp")
        indices = stage_indices(plan, rank)
        self.parts = [build(config, plan, mesh, device, chunk_of(config, index)) for index in indices]
        stages = [
            PipelineStage(part, index, len(config["chunks"]), torch.device(device), group=group)
            for part, index in zip(self.parts, indices, strict=True)
        ]
        kind, self.stages = get_schedule_class(plan["schedule"]), stages
        held = stages if issubclass(kind, PipelineScheduleMulti) else stages[0]
        self.schedule = kind(held, n_microbatches=plan["micro_batches"], loss_fn=self.scaled_loss)
        self.first, self.last = 0 in indices, len(config["chunks"]) - 1 in indices

    def scaled_loss(self, logits, labels):
        """What a micro-batch goes back from; the logits of those before, which schedules keep to return them, are let go."""
        for stage in self.stages:
            del stage.output_chunks[:-1]
        return self.scale(loss_of(logits, labels))

    def step(self, tokens, labels):
        """One step; the mean loss on ranks that hold the head, else 0."""
        losses = []
        inputs = (tokens,) if self.first else ()
        targets = {"target": labels, "losses": losses} if self.last else {}
        with divided_loss(self.plan), precision(self.plan, tokens.device):
            self.schedule.step(*inputs, **targets)
        return sum(plain(loss) for loss in losses) / len(losses) / self.scale.value if losses else 0.0


def plain(loss):
    """The number, also of a loss that is the same on all tensor-parallel ranks."""
    loss = loss.detach()
    return float(loss.full_tensor() if isinstance(loss, DTensor) else loss)


def divided_loss(plan):
    """Cross entropy over logits that are divided over the vocabulary."""
    return loss_parallel() if plan["tp"] > 1 else contextlib.nullcontext()


def precision(plan, device):
    """Autocast where no sharding casts the weights."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(plan["precision"])
    casts = plan["zero_stage"] > 0 or plan["tp"] * plan["pp"] * plan["ep"] > 1
    alone = plan["dp_replicate"] * plan["dp_shard"] * plan["cp"] * plan["ep"] == 1
    if half is None or (casts and not alone):
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=half)


def optimizer_of(name, parameters, lr):
    """The optimizer of the plan."""
    kinds = {"adam": torch.optim.AdamW, "sgd": torch.optim.SGD, "adafactor": torch.optim.Adafactor}
    return kinds[name](parameters, lr=lr)


def mean_loss(value, plan, mesh, device):
    """The loss over all ranks: each data and context rank once."""
    total = torch.tensor([value], device=device)
    dist.all_reduce(total)
    return float(total) / (mesh.data * plan["cp"] * plan["tp"])


def train(config, plan):
    """All steps; the report on rank 0."""
    accelerated = torch.cuda.is_available()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if accelerated else "cpu"
    if accelerated:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if accelerated else "gloo")
    if dist.get_world_size() != plan["world_size"]:
        raise SystemExit(f"planned for {plan['world_size']} processes, started with {dist.get_world_size()}")
    mesh = Mesh(plan, "cuda" if accelerated else "cpu")
    scale = LossScale(plan["precision"])
    runner = (Piped if plan["pp"] > 1 else Whole)(config, plan, mesh, device, scale)
    parameters = [p for part in runner.parts for p in part.parameters() if p.requires_grad]
    optimizer = optimizer_of(plan["optimizer"], parameters, config["lr"])
    losses, times = steps(config, plan, mesh, runner, scale.guarding(optimizer, parameters), device)
    peak = largest_peak(device)
    if dist.get_rank() == 0:
        print(json.dumps(report(losses, times, peak, plan["world_size"])), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def steps(config, plan, mesh, runner, update, device):
    """Runs the steps: the loss and the seconds of each."""
    positions = held_positions(config["seq_len"], mesh.rank("cp"), plan["cp"])
    losses, times = [], []
    for step in range(config["steps"]):
        tokens, labels = batch(config, mesh, positions, step, device)
        start = now(device)
        loss = runner.step(tokens, labels)
        update()
        times.append(now(device) - start)
        losses.append(mean_loss(loss, plan, mesh, device))
    return losses, times


def main():
    config = json.loads((HERE / "config.yaml").read_text(encoding="utf-8"))
    train(config["model"] | config["job"], config["plan"])


if __name__ == "__main__":
    main()
