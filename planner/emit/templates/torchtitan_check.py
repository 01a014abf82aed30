"""Asks torchtitan whether it takes the configuration; needs no GPU and starts no process.

Its own configuration manager reads the file, its ParallelDims checks the degrees for the planned world, and the two batch
identities are reckoned from what it read.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
PLAN = json.loads((HERE / "plan.json").read_text(encoding="utf-8"))
PLANNED = PLAN["parallel"]
TRAINING = PLAN["inputs"]["training"]


def configuration():
    """What torchtitan's own reader makes of the file."""
    sys.path.insert(0, str(HERE))
    toml = HERE / "config.toml"
    from torchtitan.config import ConfigManager

    words = ["--job.config_file", str(toml)] if toml.exists() else ["--module", "shardwright_plan", "--config", "planned"]
    return ConfigManager().parse_args(words)


def check_degrees(parallelism):
    """Torchtitan's own arithmetic on the degrees."""
    import inspect

    from torchtitan.distributed import ParallelDims

    degrees = {
        "dp_replicate": parallelism.data_parallel_replicate_degree,
        "dp_shard": parallelism.data_parallel_shard_degree,
        "cp": parallelism.context_parallel_degree,
        "tp": parallelism.tensor_parallel_degree,
        "pp": parallelism.pipeline_parallel_degree,
        "ep": parallelism.expert_parallel_degree,
        "world_size": PLANNED["world_size"],
    }
    accepted = inspect.signature(ParallelDims).parameters
    if "etp" in accepted:
        degrees["etp"] = getattr(parallelism, "expert_tensor_parallel_degree", 1)
    ParallelDims(**{name: value for name, value in degrees.items() if name in accepted})
    return degrees


def batch_of(config, degrees):
    """Sequences a step and micro-batches, as torchtitan will count them."""
    training, parallelism = config.training, config.parallelism
    dp = degrees["dp_replicate"] * degrees["dp_shard"]
    if hasattr(training, "num_tokens_per_train_step"):
        sequences = training.num_tokens_per_train_step // training.max_context_length
        per_forward = training.num_tokens_per_microbatch_per_dp_rank // training.max_context_length
        return sequences, sequences // (dp * per_forward)
    size = parallelism.pipeline_parallel_microbatch_size if degrees["pp"] > 1 else training.local_batch_size
    return training.global_batch_size, training.global_batch_size // (dp * size)


def main():
    config = configuration()
    degrees = check_degrees(config.parallelism)
    sequences, micro_batches = batch_of(config, degrees)
    found = {**degrees, "micro_batches": micro_batches}
    planned = {**PLANNED, "dp_shard": PLANNED["dp_shard"]}
    wrong = [f"{name}: planned {planned[name]}, torchtitan has {has}" for name, has in found.items() if planned[name] != has]
    if sequences != TRAINING["global_batch"]:
        wrong.append(f"global batch: planned {TRAINING['global_batch']}, torchtitan has {sequences}")
    if wrong:
        sys.exit("torchtitan understands something else:\n  " + "\n  ".join(wrong))
    print("torchtitan accepts the configuration: " + ", ".join(f"{name} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
