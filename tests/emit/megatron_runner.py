"""Trains Megatron's GPTModel on gloo from emitted argument lists, each rank a fork.

    python megatron_runner.py JOBS.json

The file holds [[folder of a bundle, ranks], ...]; one line of JSON is printed, as `fork_runner` prints it.

Everything is taken from `launch.sh`: it is read by the reader of users' files, what that finds becomes Megatron's own
configuration, process groups, stages and schedule. Weights are drawn by the name of their place in the whole model, so that
they are the same however it is divided; each rank keeps its share. Megatron runs without a device once the few calls that want
one lead to the CPU, and its own layers take the place of Transformer Engine's.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fork_runner
import torch
import torch.distributed as dist
from core_configurations import case_of
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron_oracle import OnCpu, config_of, micro_batches_of, on_cpu, settled

from shardwright.planner.readers.configuration import Beside
from shardwright.planner.readers.megatron import megatron_configuration

VERSION = "0.16"
STEPS, RATE, SEED = 3, 0.5, 11
WITHOUT_A_DEVICE = {
    "params_dtype": torch.float32,
    "pipeline_dtype": torch.float32,
    "transformer_impl": "local",
    "perform_initialization": True,
    "deallocate_pipeline_outputs": False,
    "batch_p2p_comm": False,
    "overlap_p2p_comm": False,
}
"""How it is computed where there is no device; none of it says how the model is divided."""


@dataclass(frozen=True)
class Run:
    """What a bundle says, as Megatron takes it."""

    case: Any
    config: TransformerConfig
    positions: str
    norm: str
    tied: bool

    @property
    def vocab(self) -> int:
        """Rows of the embedding, as they are padded."""
        unit = 128 * self.case.tp
        return -(-self.case.graph.spec.vocab // unit) * unit


def read(folder: str) -> Run:
    """The bundle, by its launch script alone."""
    gpus = int(os.environ["WORLD_SIZE"])
    found = megatron_configuration(Path(folder) / "launch.sh", Beside(gpus=gpus, version=VERSION))
    case = settled(case_of(found, gpus).with_settings(**WITHOUT_A_DEVICE))
    return Run(
        case=case,
        config=config_of(case),
        positions=str(found.settings["position_embedding_type"]),
        norm=str(found.settings["normalization"]),
        tied=found.graph.spec.tied_embeddings,
    )


def chunks_of(run: Run) -> list[GPTModel]:
    """The parts of the model on this rank."""
    made = []
    for chunk in range(run.case.vpp):
        number = chunk if run.case.vpp > 1 else None
        place = {"ignore_virtual": False, "vp_stage": number}
        model = GPTModel(
            run.config,
            get_gpt_layer_local_spec(qk_layernorm=run.config.qk_layernorm, normalization=run.norm),
            run.vocab,
            run.case.seq_len,
            pre_process=parallel_state.is_pipeline_first_stage(**place),
            post_process=parallel_state.is_pipeline_last_stage(**place),
            share_embeddings_and_output_weights=run.tied,
            position_embedding_type=run.positions,
            vp_stage=number,
        )
        fill(model)
        made.append(model)
    return made


def fill(model: GPTModel) -> None:
    """Weights drawn by their place in the whole model."""
    numbers = {f"decoder.layers.{at}": layer.layer_number for at, layer in enumerate(model.decoder.layers)}
    for name, weight in model.named_parameters():
        own = next((one for one in numbers if name.startswith(one + ".")), None)
        place = name if own is None else name.replace(own, f"layer {numbers[own]}", 1)
        whole = drawn(place, weight)
        weight.data.copy_(share_of(whole, weight, gated=model.config.gated_linear_unit and "linear_fc1" in name))


def drawn(place: str, weight: torch.nn.Parameter) -> torch.Tensor:
    """The whole weight of which a rank has a share."""
    shape = list(weight.shape)
    if getattr(weight, "tensor_model_parallel", False):
        shape[weight.partition_dim] *= parallel_state.get_tensor_model_parallel_world_size()
    chance = torch.Generator().manual_seed(SEED + zlib.crc32(place.encode()))
    values = torch.randn(shape, generator=chance)
    return 1 + 0.1 * values if "norm" in place and place.endswith("weight") else 0.2 * values


def share_of(whole: torch.Tensor, weight: torch.nn.Parameter, *, gated: bool) -> torch.Tensor:
    """The share of this rank; a gated block has a share of both of its halves."""
    if not getattr(weight, "tensor_model_parallel", False):
        return whole
    rank, size = (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )
    halves = whole.chunk(2) if gated else (whole,)
    return torch.cat([half.chunk(size, weight.partition_dim)[rank] for half in halves], weight.partition_dim)


def batches(run: Run) -> Iterator[dict[str, torch.Tensor]]:
    """Micro-batches of a step, the same on every rank and in every step, so that learning shows."""
    spec, length = run.case.graph.spec, run.case.seq_len
    chance = torch.Generator().manual_seed(SEED)
    text = torch.randint(spec.vocab, (run.case.global_batch, length + 1), generator=chance)
    for part in text.split(run.case.micro_batch):
        yield {"tokens": part[:, :-1], "labels": part[:, 1:]}


def forward(losses: list[float], data: Iterator[dict[str, torch.Tensor]], model: GPTModel) -> tuple[torch.Tensor, Any]:
    """One micro-batch, as Megatron's schedules call for it."""
    batch = next(data)
    length = batch["tokens"].shape[1]
    mask = torch.triu(torch.ones(1, 1, length, length), diagonal=1).bool()
    out = model(batch["tokens"], torch.arange(length)[None, :], mask, labels=batch["labels"])

    def loss_of(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        loss = output.float().mean()
        losses.append(float(loss.detach()))
        return loss, {}

    return out, loss_of


def step(run: Run, chunks: list[GPTModel]) -> float:
    """A whole step, and its mean loss as the last stage has it; 0 elsewhere."""
    losses: list[float] = []
    count = micro_batches_of(run.case)
    for chunk in chunks:
        chunk.zero_grad()
    get_forward_backward_func()(
        forward_step_func=partial(forward, losses),
        data_iterator=[batches(run) for _ in chunks] if len(chunks) > 1 else batches(run),
        model=chunks if len(chunks) > 1 else chunks[0],
        num_microbatches=count,
        seq_length=run.case.seq_len,
        micro_batch_size=run.case.micro_batch,
        forward_only=False,
    )
    with torch.no_grad():
        for weight in (weight for chunk in chunks for weight in chunk.parameters()):
            weight.sub_(RATE * weight.grad)
    return sum(losses) / count


@contextlib.contextmanager
def without_a_device() -> Iterator[None]:
    """Megatron's calls for a device lead to the CPU."""
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]
    CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()  # nothing is drawn: there is no dropout
    with on_cpu(), OnCpu():
        yield


def train(folder: str) -> None:
    """The life of a rank."""
    dist.init_process_group("gloo")
    with without_a_device():
        run = read(folder)
        start_groups(run)
        chunks = chunks_of(run)
        losses = [step(run, chunks) for _ in range(STEPS)]
    mean = torch.tensor(losses)
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        layers = [[layer.layer_number for layer in chunk.decoder.layers] for chunk in chunks]
        sys.stdout.write(json.dumps({"losses": (mean / run.case.tp).tolist(), "layers": layers}) + "\n")
    dist.barrier()


def start_groups(run: Run) -> None:
    """Megatron's process groups."""
    case = run.case
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp,
        virtual_pipeline_model_parallel_size=case.vpp if case.vpp > 1 else None,
        create_gloo_process_groups=False,
    )
    if case.vpp > 1:
        parallel_state.set_virtual_pipeline_model_parallel_rank(0)


def main() -> None:
    """Runs every job."""
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    done = [fork_runner.run(folder, ranks, train) for folder, ranks in jobs]
    sys.stdout.write(json.dumps(done) + "\n")


if __name__ == "__main__":
    main()
