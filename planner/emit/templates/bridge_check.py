"""Asks Megatron-Bridge whether it takes the recipe; needs no GPU and starts no process."""

import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
PLANNED = json.loads((HERE / "plan.json").read_text(encoding="utf-8"))["parallel"]
ENVIRONMENT = json.loads((HERE / "environment.json").read_text(encoding="utf-8"))


def main():
    os.environ.update(ENVIRONMENT, WORLD_SIZE=str(PLANNED["world_size"]), RANK="0", LOCAL_RANK="0")
    sys.path.insert(0, str(HERE))
    import recipe

    config = recipe.config()
    config.validate()
    model, train = config.model, config.train
    dp = PLANNED["world_size"] // (
        model.tensor_model_parallel_size * model.pipeline_model_parallel_size * model.context_parallel_size
    )
    found = {
        "tp": model.tensor_model_parallel_size,
        "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size,
        "dp": dp,
        "micro_batches": train.global_batch_size // (train.micro_batch_size * dp),
        "sequence_parallel": model.sequence_parallel,
    }
    wrong = [f"{name}: planned {PLANNED[name]}, found {has}" for name, has in found.items() if PLANNED[name] != has]
    if wrong:
        sys.exit("Megatron-Bridge understands something else:\n  " + "\n  ".join(wrong))
    print("Megatron-Bridge accepts the recipe: " + ", ".join(f"{name} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
