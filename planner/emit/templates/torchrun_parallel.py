"""The mesh of the plan, and the model divided over it.

Ranks are numbered tp innermost, then cp, dp_shard, dp_replicate, pp. Experts live on the mesh ep innermost, then efsdp,
within each pipeline stage and replica.
"""

import functools

import torch
from context import CORES, ExpertExchange, held_positions
from model import MixtureOfExperts, Model, fill, whole_sequence
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
SAVED = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


class Mesh:
    """Groups of the plan, and this rank's place in them."""

    def __init__(self, plan, device):
        self.plan = plan
        shape = tuple(plan[axis] for axis in AXES)
        self.all = init_device_mesh(device, shape, mesh_dim_names=AXES)
        inner = plan["dp_shard"] * plan["cp"] * plan["tp"]
        expert_shape = (plan["pp"], plan["dp_replicate"], inner // plan["ep"], plan["ep"])
        names = ("pp", "dp_replicate", "efsdp", "ep")
        self.experts = init_device_mesh(device, expert_shape, mesh_dim_names=names) if plan["ep"] > 1 else None
        self.data = plan["dp_replicate"] * plan["dp_shard"]

    def rank(self, axis):
        """This rank's place on an axis."""
        return self.all.get_local_rank(axis)

    def group(self, axis):
        """The ranks of an axis."""
        return self.all[axis].get_group()

    def sharding(self):
        """The mesh that states are sharded over: replicas outside, where there are any."""
        plan = self.plan
        replicas, shards = plan["dp_replicate"], plan["dp_shard"] * plan["cp"]
        if plan["zero_stage"] == 0:  # whole on every rank: replicas only
            replicas, shards = replicas * shards, 1
        whole = init_device_mesh(
            self.all.device_type, (plan["pp"], replicas, shards, plan["tp"]), mesh_dim_names=("pp", "replicas", "shards", "tp")
        )
        return whole["shards"] if replicas == 1 else whole["replicas", "shards"]

    def expert_sharding(self):
        """The mesh that experts are sharded over."""
        if self.plan["dp_replicate"] == 1:
            return self.experts["efsdp"]
        return self.experts["dp_replicate", "efsdp"]

    def data_rank(self):
        """Which of the data-parallel ranks this is."""
        return self.rank("dp_replicate") * self.plan["dp_shard"] + self.rank("dp_shard")


def build(config, plan, mesh, device, chunk):
    """One pipeline chunk, divided over the mesh."""
    core, positions = whole_sequence, held_positions(config["seq_len"], mesh.rank("cp"), plan["cp"])
    if plan["cp"] > 1:
        core = CORES[plan["cp_comm"]](config["seq_len"], mesh.group("cp"))
    exchange = ExpertExchange(mesh.experts["ep"].get_group() if mesh.experts is not None else None)
    model = Model(config, chunk, core, exchange, positions)
    fill(model, config["seed"], exchange.rank)
    model.to(device)
    if plan["tp"] > 1:
        divide_tensors(model, mesh.all["tp"], plan["sequence_parallel"])
    recompute(model, plan)
    return share_states(model, plan, mesh)


def divide_tensors(model, mesh, sequence):
    """Tensor parallelism, with the norms and the residual stream sharded over the sequence where asked."""
    residual = Shard(1) if sequence else Replicate()
    rows = RowwiseParallel(input_layouts=Replicate(), output_layouts=residual)
    outer = {}
    if hasattr(model, "embedding"):
        outer["embedding"] = rows
    if hasattr(model, "position_embedding"):
        outer["position_embedding"] = rows
    if hasattr(model, "head"):
        outer["head"] = ColwiseParallel(input_layouts=residual, output_layouts=Shard(-1), use_local_output=False)
        if sequence:
            outer["norm"] = SequenceParallel()
    parallelize_module(model, mesh, outer)
    for block in model.layers.values():
        parallelize_module(block, mesh, block_plan(block, residual, sequence))


def block_plan(block, residual, sequence):
    """How the parts of one layer are divided."""
    made = {
        "attention": PrepareModuleInput(input_layouts=(residual, None), desired_input_layouts=(Replicate(), None)),
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        "attention.wo": RowwiseParallel(output_layouts=residual),
    }
    if hasattr(block.attention, "q_norm"):
        heads = {"sequence_dim": 2, "use_local_output": True}
        made |= {"attention.q_norm": SequenceParallel(**heads), "attention.k_norm": SequenceParallel(**heads)}
    if isinstance(block.mlp, MixtureOfExperts):
        made |= experts_plan(block.mlp, residual, sequence)
    else:
        made |= feed_forward_plan("mlp", residual)
    if sequence:
        routed = isinstance(block.mlp, MixtureOfExperts)
        made |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel(use_local_output=routed)}
    return made


def feed_forward_plan(name, residual):
    """Columns, then rows."""
    return {
        name: PrepareModuleInput(input_layouts=(residual,), desired_input_layouts=(Replicate(),)),
        f"{name}.w1": ColwiseParallel(),
        f"{name}.w3": ColwiseParallel(),
        f"{name}.w2": RowwiseParallel(output_layouts=residual),
    }


def experts_plan(moe, residual, sequence):
    """The router sees local tokens with whole weights; shared experts are divided as a dense block is."""
    made = {"mlp.router": SequenceParallel(use_local_output=True)} if sequence else {}
    if moe.shared is not None:
        made |= feed_forward_plan("mlp.shared", residual)
    return made


def recompute(model, plan):
    """Activation recomputation of the first layers of the chunk, or of everything but matrix products."""
    mode = plan["recompute"]["mode"]
    if mode == "none":
        return
    count = len(model.layers) if mode == "selective" else min(len(model.layers), plan["recompute"]["layers_per_chunk"])
    for name in list(model.layers)[:count]:
        options = (
            {"context_fn": functools.partial(create_selective_checkpoint_contexts, keep_products)}
            if mode == "selective"
            else {}
        )
        model.layers[name] = checkpoint_wrapper(model.layers[name], preserve_rng_state=False, **options)


def keep_products(context, operator, *args, **kwargs):
    """Saves matrix products and attention, recomputes the rest."""
    return CheckpointPolicy.MUST_SAVE if operator in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


def share_states(model, plan, mesh):
    """FSDP2 or DDP over the data-parallel ranks (context-parallel ranks hold replicas too)."""
    if mesh.data * plan["cp"] * plan["ep"] == 1:
        return model
    if plan["zero_stage"] == 0 and plan["tp"] * plan["pp"] * plan["ep"] == 1:
        return replicated(model, plan, mesh)
    return sharded(model, plan, mesh)


def replicated(model, plan, mesh):
    """DDP with buckets; gradients are compressed where the plan sends two bytes."""
    group = mesh.all["dp_replicate", "dp_shard", "cp"]._flatten("data").get_group()
    made = DistributedDataParallel(model, process_group=group, bucket_cap_mb=plan["bucket_mb"], gradient_as_bucket_view=True)
    if plan["grad_bytes"] == 2 and mesh.all.device_type != "cpu":  # the hooks want NCCL
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hook = default_hooks.fp16_compress_hook if plan["precision"] == "fp16" else default_hooks.bf16_compress_hook
        made.register_comm_hook(group, hook)
    return made


def sharded(model, plan, mesh):
    """FSDP2 by layer; experts over their own mesh, so that each rank keeps its share of them."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(plan["precision"])
    reduce = half if plan["grad_bytes"] == 2 else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=reduce) if half else MixedPrecisionPolicy()
    options = {"reshard_after_forward": plan["reshard_after_forward"], "mp_policy": policy}
    if plan["states_on_host"]:  # shards, their gradients and the optimizer; pinned where there is a device to copy to
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.all.device_type != "cpu")
    data = mesh.sharding()
    for layer in model.layers.values():
        block = getattr(layer, "_checkpoint_wrapped_module", layer)
        if isinstance(block.mlp, MixtureOfExperts) and plan["ep"] > 1:
            fully_shard(block.mlp.experts, mesh=mesh.expert_sharding(), **options)
            block.mlp.experts.gradient_scale = plan["tp"] / plan["ep"]
        fully_shard(layer, mesh=data, **options)
    fully_shard(model, mesh=data, **options)
    if mesh.all.device_type == "cpu":  # gloo has no scaled sums
        for module in model.modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                module.set_force_sum_reduction_for_comms(True)
    return model
