"""One field of a configuration changed by one step, and what a step is for each field."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cases import Case

DEGREES = ("tp", "cp", "pp", "vpp", "ep", "etp", "micro_batch")
MODEL_SIZES = (
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "moe.experts",
    "moe.expert_ffn",
    "moe.shared_ffn",
    "moe.topk",
    "mtp_layers",
)

LAYOUT = "pipeline_model_parallel_layout"

OPTIONS: Mapping[str, tuple[object, ...]] = {
    "decoder_first_pipeline_num_layers": (None, 0, 1, 2, 3, 4, 5, 6),
    "decoder_last_pipeline_num_layers": (None, 0, 1, 2, 3, 4, 5, 6),
    "account_for_embedding_in_pipeline_split": (None, True),
    "account_for_loss_in_pipeline_split": (None, True),
    "microbatch_group_size_per_vp_stage": (None, 1, 2, 3, 4, 5, 6, 8, 12, 16),
    "recompute_granularity": (None, "selective", "full", "some"),
    "recompute_method": (None, "uniform", "block"),
    "recompute_num_layers": (None, 1, 2),
    "recompute_modules": (
        None,
        ("core_attn",),
        ("mlp",),
        ("moe",),
        ("moe_act",),
        ("mla_up_proj",),
        ("shared_experts",),
        ("attention",),
    ),
    "distribute_saved_activations": (None, True),
    "moe_token_dispatcher_type": (None, "allgather", "alltoall", "flex", "ring"),
    "moe_enable_deepep": (None, True),
    "moe_flex_dispatcher_backend": (None, "deepep", "hybridep"),
    "variable_seq_lengths": (None, True),
    "moe_aux_loss_coeff": (None, 0.01, (0.01,), (0.01, 0.01)),
    "moe_shared_expert_overlap": (None, True),
    "overlap_moe_expert_parallel_comm": (None, True),
    "delay_wgrad_compute": (None, True),
    "moe_expert_capacity_factor": (None, 1.0),
    "moe_pad_expert_input_to_capacity": (None, True),
    "moe_router_load_balancing_type": (None, "aux_loss", "seq_aux_loss", "sinkhorn", "none", ("aux_loss", "seq_aux_loss")),
    "moe_router_score_function": (None, "softmax", "sigmoid"),
    "moe_router_pre_softmax": (None, True),
    "moe_router_enable_expert_bias": (None, True),
    "moe_router_num_groups": (None, 1, 2, 3, 4, 8),
    "moe_router_group_topk": (None, 1, 2, 3, 4, 8),
    "add_bias_linear": (False, True),
    "cpu_offloading_num_layers": (None, 1, 2),
    "num_distributed_optimizer_instances": (None, 2, 3, 4),
    "hierarchical_context_parallel_sizes": (None, (1, 2), (2, 2), (2, 4), (1, 4)),
    "fp16": (None, True),
    "bf16": (None, True),
    "gradient_accumulation_fusion": (False, True),
    "defer_embedding_wgrad_compute": (None, True),
    "wgrad_deferral_limit": (None, -1, 1),
}
"""Settings and the values a step goes to."""


def steps(case: Case) -> Iterator[tuple[str, Case]]:
    """Every configuration one step away: (field that changed, configuration)."""
    yield from _degree_steps(case)
    yield from _model_steps(case)
    for layout in _layouts(str(dict(case.settings).get(LAYOUT) or "")):
        yield LAYOUT, case.with_settings(**{LAYOUT: layout})
    for name, values in OPTIONS.items():
        given = dict(case.settings).get(name)
        for value in values:
            if value != given:
                yield name, case.with_settings(**{name: value})


def _degree_steps(case: Case) -> Iterator[tuple[str, Case]]:
    for name in DEGREES:
        if name == "vpp" and LAYOUT in dict(case.settings):
            continue  # it follows from the layout
        for value in _near(getattr(case, name)):
            yield name, replace(case, **{name: value})
    yield "sp", replace(case, sp=1 - case.sp)
    for name, near in (("gpus", (1, 8)), ("seq_len", (1, 2)), ("global_batch", (1, 4))):
        for value in _near(getattr(case, name), *near):
            yield name, replace(case, **{name: value})


def _model_steps(case: Case) -> Iterator[tuple[str, Case]]:
    model = dict(case.model)
    for name in (size for size in MODEL_SIZES if size in model):
        for value in _near(int(str(model[name])), 1, 4):
            changed = case.with_model(**{name: value})
            if changed.possible:
                yield name, changed


def _near(value: int, *widths: int) -> tuple[int, ...]:
    """Twice, half, and a little more or less."""
    found = {value * 2, value // 2, *(value + w for w in widths or (1,)), *(value - w for w in widths or (1,))}
    return tuple(sorted(v for v in found if v >= 1 and v != value))


def _layouts(layout: str) -> tuple[str, ...]:
    """A layout with one character left out, doubled, exchanged for another, or exchanged with its neighbour."""
    found = set()
    for at, letter in enumerate(layout):
        before, after = layout[:at], layout[at + 1 :]
        if letter in "EtmL|":
            found |= {before + after, before + letter + letter + after}
            found |= {before + other + after for other in "EtmLx" if other != letter}
        found.add(before + after[:1] + letter + after[1:])
    return tuple(sorted(found - {layout}))
