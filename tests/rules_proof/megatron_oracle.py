"""megatron-core's own verdict on a configuration, without a device and in one process.

The chain a run would take, each link the framework's own code:

    config         TransformerConfig (MLATransformerConfig)
    groups         initialize_model_parallel over a fake process group of all ranks
    micro-batches  ConstantNumMicroBatchesCalculator
    layers         get_num_layers_to_build of every stage; they must sum up to the model's layers
    layer          attention, feed-forward block, experts and embedding of a rank, built on the CPU
    forward        what the first step runs into: sequence split over cp and tp, experts under tp
    schedule       the interleaved schedule, up to its own check of micro-batches and groups

Nothing is computed: modules are built without initial values, and the schedule stops when its checks are done.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from cases import Case
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator
from megatron.core.pipeline_parallel.schedules import forward_backward_pipelining_with_interleaving
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import layers
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.moe import token_dispatcher
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from verdicts import ACCEPTED, Verdict, refused

FAULTS = (ValueError, RuntimeError, AssertionError, NotImplementedError, ZeroDivisionError)

CONFIG_NAMES = {
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
}
"""Options whose name on the command line is not that of the config's field."""

GROUP_SETTINGS = ("num_distributed_optimizer_instances", "hierarchical_context_parallel_sizes")
"""Options that shape process groups, not the config."""

ELSEWHERE = (*GROUP_SETTINGS, "position_embedding_type", "use_distributed_optimizer", "env.CUDA_DEVICE_MAX_CONNECTIONS")
"""Options that are no fields of the config."""


EXCHANGES = ("fused_dispatch", "set_deepep_num_sms", "hybrid_ep_dispatch")
"""Functions of libraries that exchange tokens between devices, which the dispatchers look for when built."""


class AbsentLinear:
    """Stands for Transformer Engine's linear layer where it is not installed: nothing is one."""


class ReachedError(Exception):
    """The schedule got past its checks."""


class Chunk(torch.nn.Module):
    """A model chunk that the schedule cannot look at without having passed its checks."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def model_type(self) -> None:
        raise ReachedError


def verdict(case: Case) -> Verdict:
    """What megatron-core says of a configuration."""
    with warnings.catch_warnings(), on_cpu():
        warnings.simplefilter("ignore")
        try:
            case = settled(case)
            config = config_of(case)
        except FAULTS as fault:
            return refused("config", fault)
        return _with_groups(case, config)


def settled(case: Case) -> Case:
    """A configuration with the virtual stages of its layout, as Megatron-LM counts them before anything else."""
    layout = dict(case.settings).get("pipeline_model_parallel_layout")
    if layout is None:
        return case
    stages = PipelineParallelLayerLayout.get_num_stages_from_str(layout)
    return replace(case, vpp=stages // case.pp) if stages % case.pp == 0 else case


def _with_groups(case: Case, config: TransformerConfig) -> Verdict:
    for link, test in LINKS:
        try:
            test(case, config)
        except FAULTS as fault:
            return refused(link, fault)
    return ACCEPTED


def config_of(case: Case) -> TransformerConfig:
    """The framework's config of a case."""
    spec = case.graph.spec
    options = dict(case.settings)
    fields: dict[str, Any] = {
        "num_layers": spec.layers,
        "hidden_size": spec.hidden,
        "num_attention_heads": spec.heads,
        "ffn_hidden_size": spec.ffn or 4 * spec.hidden,
        "gated_linear_unit": spec.gated,
        "activation_func": torch.nn.functional.silu if spec.gated else torch.nn.functional.gelu,
        "add_bias_linear": spec.mlp_bias,
        "mtp_num_layers": spec.mtp_layers or None,
        "tensor_model_parallel_size": case.tp,
        "context_parallel_size": case.cp,
        "pipeline_model_parallel_size": case.pp,
        "virtual_pipeline_model_parallel_size": case.vpp if case.vpp > 1 else None,
        "expert_model_parallel_size": case.ep,
        "expert_tensor_parallel_size": case.etp,
        "sequence_parallel": bool(case.sp) and case.tp > 1,  # Megatron-LM switches it off before a config sees it
        "pipeline_dtype": torch.bfloat16,
        "params_dtype": torch.bfloat16,
        **NOTHING_COMPUTED,
    }
    if spec.moe is not None:
        fields |= {
            "num_moe_experts": spec.moe.experts,
            "moe_router_topk": spec.moe.topk,
            "moe_ffn_hidden_size": spec.moe.expert_ffn,
            "moe_shared_expert_intermediate_size": spec.moe.shared_ffn or None,
            "moe_layer_freq": [int(spec.is_moe(layer)) for layer in range(spec.layers)],
        }
    if spec.mla is not None:
        fields |= {
            "multi_latent_attention": True,
            "q_lora_rank": spec.mla.q_rank,
            "kv_lora_rank": spec.mla.kv_rank,
            "qk_head_dim": spec.mla.nope_dim,
            "qk_pos_emb_head_dim": spec.mla.rope_dim,
            "v_head_dim": spec.mla.v_dim,
            "rope_type": "rope",
        }
    else:
        fields |= {"num_query_groups": spec.kv_heads, "kv_channels": spec.head_dim}
    fields |= {CONFIG_NAMES.get(key, key): value for key, value in options.items() if key not in ELSEWHERE}
    fields["cpu_offloading"] = fields.get("cpu_offloading_num_layers", 0) > 0
    fields |= {key: list(value) for key, value in fields.items() if isinstance(value, tuple)}
    return (MLATransformerConfig if spec.mla is not None else TransformerConfig)(**fields)


NOTHING_COMPUTED = {
    "use_cpu_initialization": True,
    "perform_initialization": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "persist_layer_norm": False,
    "apply_rope_fusion": False,
}
"""Options that only say how kernels run, as a build without a device needs them."""


def groups_key(case: Case) -> tuple[object, ...]:
    """What process groups follow from; cases with equal keys, one after the other, share them."""
    options = tuple((key, value) for key, value in case.settings if key in GROUP_SETTINGS)
    return case.gpus, case.tp, case.cp, case.pp, case.vpp, case.ep, case.etp, options


class Groups:
    """Megatron's process groups over a fake group of all ranks; this process is rank 0."""

    def __init__(self) -> None:
        self.key: tuple[object, ...] | None = None

    def start(self, case: Case) -> None:
        """Groups for a case, anew where the last one's were others."""
        key = groups_key(case)
        if key == self.key:
            return
        self.stop()
        dist.init_process_group("fake", rank=0, world_size=case.gpus, store=FakeStore())
        options = {name: value for name, value in case.settings if name in GROUP_SETTINGS}
        sizes = options.pop("hierarchical_context_parallel_sizes", None)
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=case.tp,
            pipeline_model_parallel_size=case.pp,
            virtual_pipeline_model_parallel_size=case.vpp if case.vpp > 1 else None,
            context_parallel_size=case.cp,
            expert_model_parallel_size=case.ep,
            expert_tensor_parallel_size=case.etp,
            hierarchical_context_parallel_sizes=None if sizes is None else list(sizes),
            create_gloo_process_groups=False,
            **options,
        )
        self.key = key

    def stop(self) -> None:
        """No groups any more."""
        self.key = None
        parallel_state.destroy_model_parallel()
        if dist.is_initialized():
            dist.destroy_process_group()


GROUPS = Groups()


def micro_batches_of(case: Case) -> int:
    """Micro-batches a step, as the framework counts them."""
    dp = parallel_state.get_data_parallel_world_size()
    made = ConstantNumMicroBatchesCalculator(case.global_batch, case.micro_batch, dp, False, 0)
    return int(made.get())


def _count(case: Case, config: TransformerConfig) -> None:
    micro_batches_of(case)


def _layers(case: Case, config: TransformerConfig) -> None:
    layout = config.pipeline_model_parallel_layout
    vpp = config.virtual_pipeline_model_parallel_size
    stages = [(rank, chunk) for rank in range(case.pp) for chunk in (range(vpp) if vpp else (None,))]
    if layout is not None:
        built = [layout.get_num_layers_to_build(vp_stage=chunk or 0, pp_rank=rank) for rank, chunk in stages]
    else:
        built = [get_num_layers_to_build(config, chunk, rank) for rank, chunk in stages]
    if sum(built) != config.num_layers or min(built) < 0:
        raise ValueError(f"layers built {sum(built)} of {config.num_layers}")


def _layer(case: Case, config: TransformerConfig) -> None:
    spec = case.graph.spec
    groups = ProcessGroupCollection.use_mpu_process_groups()
    for experts in {spec.moe.experts if spec.is_moe(layer) else None for layer in range(spec.layers)}:
        made = get_gpt_layer_local_spec(experts, multi_latent_attention=spec.mla is not None, normalization="RMSNorm")
        parts = made.submodules
        parts.self_attention.submodules.core_attention = IdentityOp
        build_module(parts.self_attention, config=config, layer_number=1, pg_collection=groups)
        extra = {"pg_collection": groups} if experts else {"tp_group": groups.tp}
        block = build_module(parts.mlp, config=config, **extra)
        if experts:
            _routed(config, block)
    padded = -(-spec.vocab // (128 * case.tp)) * 128 * case.tp
    tensor_parallel.VocabParallelEmbedding(
        padded, config.hidden_size, init_method=config.init_method, config=config, tp_group=groups.tp
    )


def _routed(config: TransformerConfig, block: torch.nn.Module) -> None:
    """The expert layer's own check before it routes anything."""

    def stop(*_: object, **__: object) -> None:
        raise ReachedError

    block.train()
    block.moe_layer_recompute = False  # recomputing saves the state of a device's random numbers
    block.route = block.shared_experts_compute = stop
    with contextlib.suppress(ReachedError):
        block(torch.empty(1, 1, config.hidden_size, device="meta"))


def _forward(case: Case, config: TransformerConfig) -> None:
    tokens = torch.empty(1, case.seq_len, dtype=torch.int8)
    own = get_batch_on_this_cp_rank({"tokens": tokens})["tokens"]
    if config.sequence_parallel:
        embedded = torch.empty(own.shape[1], 1, 1)
        tensor_parallel.reduce_scatter_to_sequence_parallel_region(embedded)


def _schedule(case: Case, config: TransformerConfig) -> None:
    chunks = config.virtual_pipeline_model_parallel_size
    if case.pp == 1 or chunks is None:
        return
    with contextlib.suppress(ReachedError), OnCpu():
        forward_backward_pipelining_with_interleaving(
            forward_step_func=lambda *_: None,
            data_iterator=[iter(()) for _ in range(chunks)],
            model=[Chunk(config) for _ in range(chunks)],
            num_microbatches=micro_batches_of(case),
            seq_length=case.seq_len,
            micro_batch_size=case.micro_batch,
        )


LINKS: tuple[tuple[str, Callable[[Case, TransformerConfig], None]], ...] = (
    ("groups", lambda case, _: GROUPS.start(case)),
    ("micro-batches", _count),
    ("layers", _layers),
    ("layer", _layer),
    ("forward", _forward),
    ("schedule", _schedule),
)


class OnCpu(TorchFunctionMode):
    """Makes on the CPU what is asked for on a CUDA device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if named.get("device") == "cuda":
            named["device"] = "cpu"
        return func(*args, **named)


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Where modules ask for the current device they get the CPU, streams that do nothing, no Transformer Engine."""
    libraries = {name: getattr(token_dispatcher, name) for name in EXCHANGES}
    kept = torch.cuda.current_device, torch.cuda.Stream, multi_latent_attention.TELinear, layers._grad_accum_fusion_available
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    torch.cuda.Stream = SimpleNamespace  # type: ignore[assignment, misc]
    multi_latent_attention.TELinear = AbsentLinear
    for name in EXCHANGES:
        setattr(token_dispatcher, name, lambda *_: None)
    layers._grad_accum_fusion_available = True  # a kernel, which nothing runs
    try:
        yield
    finally:
        torch.cuda.current_device, torch.cuda.Stream, multi_latent_attention.TELinear = kept[:3]  # type: ignore[misc]
        layers._grad_accum_fusion_available = kept[3]
        for name, kept_one in libraries.items():
            setattr(token_dispatcher, name, kept_one)
