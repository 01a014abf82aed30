"""Pretrains the planned model with Megatron-Bridge on mock data; every number is in recipe.json beside it."""

import json
import pathlib

import torch
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    LoggerConfig,
    MockGPTDatasetConfig,
    OptimizerConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.core.activations import squared_relu

RECIPE = json.loads((pathlib.Path(__file__).resolve().parent / "recipe.json").read_text(encoding="utf-8"))
ACTIVATIONS = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "squared_relu": squared_relu}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def model():
    """The model, from numbers."""
    if RECIPE["provider"] == "mla":
        from megatron.bridge.models.mla_provider import MLAModelProvider as Provider
    else:
        from megatron.bridge.models.gpt_provider import GPTModelProvider as Provider
    numbers = dict(RECIPE["model"])
    if numbers["pipeline_model_parallel_size"] > 1:
        numbers["pipeline_dtype"] = torch.float32 if RECIPE["mixed_precision"] is None else torch.bfloat16
    if RECIPE["mixed_precision"] == "fp16_mixed":
        numbers["pipeline_dtype"] = torch.float16
    return Provider(activation_func=ACTIVATIONS[RECIPE["activation"]], **numbers)


def mixed_precision():
    """The precision recipe; None for fp32."""
    if RECIPE["mixed_precision"] is None:
        return None
    made = get_mixed_precision_config(RECIPE["mixed_precision"])
    for key, value in RECIPE["precision"].items():
        setattr(made, key, value)
    return made


def optimizer():
    """The optimizer; the distributed one where gradients are sharded."""
    dtypes = {key: DTYPES[value] for key, value in RECIPE["optimizer_dtypes"].items()}
    sharded = RECIPE["ddp"].get("use_distributed_optimizer", False)
    return OptimizerConfig(use_distributed_optimizer=sharded, **RECIPE["optimizer"], **dtypes)


def config():
    """The whole configuration."""
    steps, vocabulary = RECIPE["train"]["train_iters"], RECIPE["model"]["vocab_size"]
    made = ConfigContainer(
        model=model(),
        train=TrainingConfig(**RECIPE["train"]),
        optimizer=optimizer(),
        scheduler=SchedulerConfig(lr_warmup_iters=0, lr_decay_iters=steps),
        ddp=DistributedDataParallelConfig(**RECIPE["ddp"]),
        dataset=MockGPTDatasetConfig(
            random_seed=1234,
            seq_length=RECIPE["model"]["seq_length"],
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            dataloader_type="single",
            num_dataset_builder_threads=1,
        ),
        logger=LoggerConfig(**RECIPE["logger"]),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=vocabulary),
        checkpoint=CheckpointConfig(**RECIPE["checkpoint"]),
        dist=DistributedInitConfig(**RECIPE["dist"]),
        mixed_precision=mixed_precision(),
    )
    evaluation = made.validation if hasattr(made, "validation") else made.train
    evaluation.eval_iters = 0
    return made


if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(config(), forward_step)
