"""Synthetic sequences, the loss, and the report: the same whatever divides the model."""

import resource
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional

WARM_UP = 2
RSS = 1 if sys.platform == "darwin" else 1024  # the unit of what a system tells of a process


def sample(config, step, index):
    """Tokens and labels of one sequence."""
    key = (config["seed"] * 1_000_003 + step) * 1_000_003 + index
    tokens = torch.randint(config["vocab"], (config["seq_len"] + 1,), generator=torch.Generator().manual_seed(key))
    return tokens[:-1], tokens[1:]


def share(config, ranks, rank, step):
    """The sequences of a step for one of the data-parallel ranks: (tokens, labels) of [sequences, tokens] each."""
    count = config["global_batch"] // ranks
    pairs = [sample(config, step, rank * count + i) for i in range(count)]
    return tuple(torch.stack(part) for part in zip(*pairs, strict=True))


def loss_of(logits, labels):
    """Mean cross entropy."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def now(device):
    """Seconds, after everything queued has run."""
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def largest_peak(device):
    """Peak memory of the fullest rank: allocated on its GPU, or the whole process on a CPU."""
    held = torch.cuda.max_memory_allocated() if device != "cpu" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS
    peak = torch.tensor([held], dtype=torch.float64, device=device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return int(peak)


def report(losses, times, peak, world_size):
    """Losses, the step times (all, and the median after warming up), and the peak memory."""
    settled = sorted(times[WARM_UP:] or times)
    return {
        "losses": losses,
        "step_time_s": settled[len(settled) // 2],
        "step_times_s": times,
        "peak_memory_bytes": peak,
        "world_size": world_size,
    }
