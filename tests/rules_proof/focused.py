"""Legal configurations around single rules: one set of options under many meshes, and the fields that can break the rule.

What `bases` has once or twice, so that a rule would be hit but a few times, stands here under a dozen meshes and more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bases import COMMON, GQA, ROUTED
from cases import Case
from steps import steps

UNSHARED = {**ROUTED, "moe.shared_ffn": 0}
SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ("mlp",)}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
OVERLAP = {"overlap_moe_expert_parallel_comm": True}


@dataclass(frozen=True, kw_only=True)
class Focus:
    """Options of a model whose named fields are changed, under meshes with the given degrees.

    `interleaved` gives pipelines two chunks a rank; `replicas` are data-parallel degrees, each with twelve sequences.
    """

    model: dict[str, object]
    settings: dict[str, object]
    fields: tuple[str, ...]
    tp: tuple[int, ...] = (1, 2)
    pp: tuple[int, ...] = (1, 2)
    ep: tuple[int, ...] = (1, 2, 4)
    replicas: tuple[int, ...] = (4, 8)
    interleaved: bool = False
    etp: int = 1
    sp: bool = True
    micro_batch: int = 1


FOCI = (
    Focus(
        model=UNSHARED,
        settings=OVERLAP,
        fields=("moe_token_dispatcher_type", "recompute_method", "recompute_num_layers", "recompute_granularity"),
        ep=(2, 4),
        interleaved=True,
    ),
    Focus(
        model={**UNSHARED, "mtp_layers": 1}, settings=OVERLAP, fields=("mtp_layers", "pp"), pp=(2,), ep=(2, 4),
        replicas=(2, 4, 6, 8, 10, 12, 14, 16), interleaved=True
    ),
    Focus(model=UNSHARED, settings={**OVERLAP, "delay_wgrad_compute": True}, fields=("overlap_moe_expert_parallel_comm",
          "delay_wgrad_compute"), ep=(2, 4), interleaved=True),
    Focus(model={**UNSHARED, "mtp_layers": 1}, settings={}, fields=("mtp_layers",)),
    Focus(
        model=ROUTED,
        settings={**SELECTIVE, "moe_shared_expert_overlap": True},
        fields=("recompute_modules", "recompute_num_layers", "moe_token_dispatcher_type"),
    ),
    Focus(
        model=ROUTED,
        settings={"moe_expert_capacity_factor": 1.0},
        fields=("moe_router_load_balancing_type", "moe_pad_expert_input_to_capacity"),
    ),
    Focus(model=GQA, settings={**FULL, "distribute_saved_activations": True}, fields=("sp", "tp"), tp=(2, 4), ep=(1,), sp=False,
          replicas=(2, 4, 8, 12, 16)),
    Focus(model=ROUTED, settings={}, fields=("sp", "moe.topk"), tp=(2,)),
    Focus(model=UNSHARED, settings={"add_bias_linear": True}, fields=("etp", "moe.shared_ffn")),
    Focus(model=GQA, settings={}, fields=("micro_batch",), ep=(1,), replicas=(1, 2, 3, 4, 6), micro_batch=4),
    Focus(model={**GQA, "layers": 4}, settings={}, fields=("pp", "layers"), pp=(4,), ep=(1,), replicas=(1, 2, 3, 4, 5, 6)),
    Focus(model=GQA, settings={"fp16": True, "bf16": None}, fields=("fp16", "bf16"), ep=(1,), replicas=(1, 2, 3, 4, 6, 8)),
    Focus(
        model=UNSHARED,
        settings={"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True},
        fields=("moe_token_dispatcher_type", "moe_enable_deepep", "moe_flex_dispatcher_backend", "ep"),
        ep=(2, 4),
        replicas=(4, 8, 12),
    ),
    Focus(
        model=UNSHARED,
        settings={"moe_token_dispatcher_type": "flex", "moe_expert_capacity_factor": 1.0},
        fields=("moe_pad_expert_input_to_capacity", "ep"),
        ep=(2, 4),
        replicas=(4, 8, 12),
    ),
    Focus(model=ROUTED, settings={"moe_token_dispatcher_type": "allgather"}, fields=("variable_seq_lengths",)),
    Focus(
        model=ROUTED,
        settings={"moe_router_load_balancing_type": ("aux_loss", "seq_aux_loss"), "moe_aux_loss_coeff": (0.01, 0.01)},
        fields=("moe_aux_loss_coeff", "moe_router_load_balancing_type"),
    ),
    Focus(
        model=GQA,
        settings={"defer_embedding_wgrad_compute": True, "gradient_accumulation_fusion": True},
        fields=("gradient_accumulation_fusion", "wgrad_deferral_limit", "pp"),
        pp=(2, 3),
        ep=(1,),
        replicas=(1, 2, 3, 4, 6, 8),
    ),
    Focus(
        model={**GQA, "head_dim": 24}, settings={}, fields=("head_dim", "tp"), tp=(12,), ep=(1,), replicas=(1, 2, 3, 4, 6)
    ),
)  # fmt: skip


def focused_steps() -> Iterator[tuple[str, Case]]:
    """Every focused configuration, as it stands and with one field changed: (field, configuration)."""
    for focus in FOCI:
        for case in _meshes(focus):
            yield "", case
            yield from (one for one in steps(case) if one[0] in focus.fields)


def _meshes(focus: Focus) -> Iterator[Case]:
    options = {**COMMON, **focus.settings}
    settings = tuple(sorted((key, value) for key, value in options.items() if value is not None))
    model = tuple(sorted(focus.model.items()))
    for tp in focus.tp:
        for pp in focus.pp:
            for ep in focus.ep:
                for dp in focus.replicas:
                    if tp * dp % ep == 0:
                        made = Case(model=model, settings=settings, gpus=tp * pp * dp, seq_len=96, global_batch=12 * dp)
                        made = replace(made, tp=tp, pp=pp, ep=ep, etp=focus.etp, micro_batch=focus.micro_batch)
                        yield replace(made, sp=int(focus.sp and tp > 1), vpp=2 if focus.interleaved and pp > 1 else 1)
