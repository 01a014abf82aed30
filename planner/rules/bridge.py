"""Rules Megatron-Bridge adds to Megatron's: sections of its `ConfigContainer` that must agree.

`ConfigContainer.validate` is laxer than Megatron-LM (it takes batches that dp does not divide, and layers that pp does not), so
a configuration is held to the rules of `rules.megatron` as well. Keys are dotted: `train.train_iters`, `ddp.use_megatron_fsdp`.
"""

from __future__ import annotations

from functools import partial

from shardwright.planner.rules.base import Rule
from shardwright.planner.rules.declaring import setting_rule
from shardwright.planner.rules.settings import Settings

_setting = partial(setting_rule, targets=("megatron-bridge",), source="Megatron-Bridge ConfigContainer.validate")

_LENGTHS = ("model.seq_length", "dataset.sequence_length")
_MODES = ("train.train_iters", "train.train_samples", "train.num_epochs")
_ITERATIONS = ("scheduler.lr_decay_iters", "scheduler.lr_warmup_iters")
_SAMPLES = ("scheduler.lr_decay_samples", "scheduler.lr_warmup_samples")


def _modes(s: Settings) -> list[str]:
    return [name for name in _MODES if s[name] is not None]


def _set(s: Settings, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if s.number(name) > 0]


BRIDGE_RULES: tuple[Rule, ...] = (
    _setting(
        "bridge-lengths",
        "model and data have one sequence length",
        settings=_LENGTHS,
        breaks=lambda s, c, f: all(s[name] is not None for name in _LENGTHS) and s[_LENGTHS[0]] != s[_LENGTHS[1]],
        message=lambda s, c, f: f"model.seq_length {s[_LENGTHS[0]]}, dataset.sequence_length {s[_LENGTHS[1]]}",
        mend=lambda s, c, f: dict.fromkeys(_LENGTHS, f.seq_len),
    ),
    _setting(
        "bridge-fsdp-kinds",
        "torch FSDP2 or Megatron-FSDP, not both",
        settings=("dist.use_torch_fsdp2", "ddp.use_megatron_fsdp"),
        breaks=lambda s, c, f: s.on("dist.use_torch_fsdp2") & s.on("ddp.use_megatron_fsdp"),
        message="dist.use_torch_fsdp2 and ddp.use_megatron_fsdp are both set",
        mend={"dist.use_torch_fsdp2": None},
    ),
    _setting(
        "bridge-fsdp-format",
        "Megatron-FSDP saves as fsdp_dtensor",
        settings=("ddp.use_megatron_fsdp", "checkpoint.save", "checkpoint.ckpt_format"),
        breaks=lambda s, c, f: (
            s.on("ddp.use_megatron_fsdp")
            & (s["checkpoint.save"] is not None)
            & (s.text("checkpoint.ckpt_format") != "fsdp_dtensor")
        ),
        message=lambda s, c, f: f"ddp.use_megatron_fsdp with checkpoint.ckpt_format {s.said('checkpoint.ckpt_format')}",
        mend={"checkpoint.ckpt_format": "fsdp_dtensor"},
    ),
    _setting(
        "bridge-fsdp-order",
        "Megatron-FSDP keeps the usual rank order",
        settings=("ddp.use_megatron_fsdp", "dist.use_tp_pp_dp_mapping"),
        breaks=lambda s, c, f: s.on("ddp.use_megatron_fsdp") & s.on("dist.use_tp_pp_dp_mapping"),
        message="dist.use_tp_pp_dp_mapping with ddp.use_megatron_fsdp",
        mend={"dist.use_tp_pp_dp_mapping": None},
        since="0.16",
    ),
    _setting(
        "bridge-async-save",
        "asynchronous saving needs a place, torch_dist, and the persistent worker",
        settings=(
            "checkpoint.async_save",
            "checkpoint.save",
            "checkpoint.ckpt_format",
            "checkpoint.use_persistent_ckpt_worker",
        ),
        breaks=lambda s, c, f: (
            s.on("checkpoint.async_save")
            & (
                (s["checkpoint.save"] is None)
                | (s["checkpoint.use_persistent_ckpt_worker"] is False)
                | (s.text("checkpoint.ckpt_format") not in {"", "torch_dist"})
            )
        ),
        message=lambda s, c, f: (
            f"checkpoint.async_save with save {s.said('checkpoint.save')}, format {s.said('checkpoint.ckpt_format')}"
        ),
        mend={"checkpoint.async_save": None},
    ),
    _setting(
        "bridge-training",
        "training is counted one way: iterations, samples or epochs",
        settings=_MODES,
        breaks=lambda s, c, f: len(_modes(s)) > 1,
        message=lambda s, c, f: f"{len(_modes(s))} lengths of training: {', '.join(_modes(s))}",
        mend=lambda s, c, f: dict.fromkeys(_modes(s)[1:]),
    ),
    _setting(
        "bridge-scheduler",
        "decay and warm-up are both counted in iterations, or both in samples",
        settings=(*_ITERATIONS, *_SAMPLES),
        breaks=lambda s, c, f: bool(_set(s, _ITERATIONS)) & bool(_set(s, _SAMPLES)),
        message=lambda s, c, f: ", ".join(f"{n} {s[n]}" for n in _set(s, _ITERATIONS) + _set(s, _SAMPLES)) + " are mixed",
        mend=lambda s, c, f: dict.fromkeys(_set(s, _SAMPLES)),
    ),
    _setting(
        "bridge-vocabulary",
        "a vocabulary that is not padded must be divided by tp",
        settings=("model.should_pad_vocab", "model.vocab_size"),
        reads=("tp",),
        breaks=lambda s, c, f: (s["model.should_pad_vocab"] is False) & (s.number("model.vocab_size") % c["tp"] != 0),
        message=lambda s, c, f: f"model.vocab_size {s['model.vocab_size']} is not padded for tp {c['tp']}",
        mend={"model.should_pad_vocab": True},
    ),
)
