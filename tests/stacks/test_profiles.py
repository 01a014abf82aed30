"""Stack profiles are complete, say where their numbers come from, and are found by the framework names people write."""

import re
from dataclasses import asdict, fields
from importlib import resources

import pytest

from shardwright.documents import parse_yaml
from shardwright.errors import InvalidValueError
from shardwright.hardware.kernels import fit_ids, load_fit
from shardwright.planner.stacks import DEFAULT_STACKS, load_stack, stack_for, stack_from_dict, stack_ids

MEASURED = (
    "kernels_per_layer", "host_s_per_kernel", "elementwise_factor", "tp_exposed", "ep_exposed", "cp_hidden", "p2p_exposed",
    "dp_exposed_floor", "fsdp_interference", "moe_host_forward_s", "moe_host_backward_s",
    "broadcast_s_per_rank", "allocator_slack",
)  # fmt: skip

IDENTITY = {"id", "framework", "description", "aliases", "sources"}
ANY_OF = {"copies": ("_copy_bytes",), "multiprocessors": ("_multiprocessors",), "optimizer_bytes": ("sharded_parameter",)}


@pytest.mark.parametrize("stack_id", stack_ids())
def test_numbers_are_plausible(stack_id):
    stack = load_stack(stack_id)
    assert stack.id == stack_id
    assert all(getattr(stack, name) >= 0 for name in MEASURED)
    for name in ("tp_exposed", "ep_exposed", "cp_hidden", "p2p_exposed", "p2p_exposed_interleaved", "dp_exposed_floor"):
        assert getattr(stack, name) <= 1
    assert 1e-7 < stack.host_s_per_kernel < 1e-3
    assert 10 <= stack.kernels_per_layer <= 100
    assert 1 <= stack.elementwise_factor <= 3
    assert stack.fsdp_gathers_per_step in ("micro-batch", "step")
    assert stack.zero_stage in (0, 1, 2, 3)
    assert stack.grad_bytes in (2, 4)
    assert stack.framework in ("megatron", "torchtitan", "pytorch", "deepspeed")


@pytest.mark.parametrize("stack_id", stack_ids())
def test_attention_is_priced_as_what_it_is(stack_id):
    stack = load_stack(stack_id)
    assert stack.fused_attention == (stack.attention_backend != "unfused")
    if stack.fused_attention:
        known = {backend for fit in fit_ids() for backend in load_fit(fit).backend_factor}
        assert stack.attention_backend in known
    else:
        assert stack.score_saved_bytes > 0


@pytest.mark.parametrize("stack_id", stack_ids())
def test_every_departure_from_the_parent_has_a_source(stack_id):
    """A source is for the field of its name and for all that begin with it; `ANY_OF` are for some by their ends."""
    file = resources.files("shardwright.planner.stacks").joinpath(f"{stack_id}.yaml")
    own = parse_yaml(file.read_text(encoding="utf-8"), stack_id).data
    stack, sources = load_stack(stack_id), own["sources"]
    parent = asdict(load_stack(own["extends"])) if "extends" in own else {}
    changed = {f.name for f in fields(stack) if parent.get(f.name, ...) != getattr(stack, f.name)}
    named = {f for f in changed if f.startswith(tuple(sources)) or any(f.endswith(ANY_OF.get(name, ())) for name in sources)}
    assert changed - named == IDENTITY & changed


@pytest.mark.parametrize("stack_id", stack_ids())
def test_every_profile_says_when_what_it_describes_was_released(stack_id):
    file = resources.files("shardwright.planner.stacks").joinpath(f"{stack_id}.yaml")
    own = parse_yaml(file.read_text(encoding="utf-8"), stack_id).data
    assert load_stack(stack_id).released == own["released"], "a release is never inherited"
    assert re.fullmatch(r"20\d\d-\d\d", own["released"])
    assert len(own["sources"]["released"]) > 10


@pytest.mark.parametrize("value", ["2024", "2024-13", "July 2024", 202407, True])
def test_a_release_is_a_year_and_a_month(value):
    with pytest.raises(InvalidValueError, match=r"stack\.released"):
        stack_from_dict(asdict(load_stack("megatron-core")) | {"released": value})


def test_profiles_saved_before_releases_were_stated_can_be_read():
    saved = {name: value for name, value in asdict(load_stack("torchtitan")).items() if name != "released"}
    assert stack_from_dict(saved).released is None


def test_aliases_belong_to_one_profile():
    owners = {}
    for stack_id in stack_ids():
        for alias in load_stack(stack_id).aliases:
            assert owners.setdefault(alias.lower(), stack_id) == stack_id, alias


@pytest.mark.parametrize(
    ("name", "stack_id"),
    [
        ("Megatron-LM v2.0", "megatron-2021"),
        ("Megatron-LM (2022)", "megatron-2022"),
        ("Megatron-LM", "megatron-core"),
        ("Megatron-DeepSpeed (any fork)", "megatron-deepspeed"),
        ("NeMo 24.07 (Megatron-Core)", "megatron-core-2024"),
        ("Megatron-Bridge/Megatron-Core (NeMo 25.11)", "megatron-core-2025"),
        ("Megatron-Bridge/Megatron-Core (NeMo 26.04.01)", "megatron-core-2026"),
        ("Megatron-Bridge/Megatron-Core (NeMo 26.06)", "megatron-core-graphs"),
        ("NeMo/Megatron-Core (ROCm) MLPerf Training v5.1", "megatron-core-rocm"),
        ("NeMo/Megatron-Core MLPerf Training v5.1", "mlperf-nemo"),
        ("torchtitan (PyTorch FSDP2/DTensor)", "torchtitan"),
        ("llm-foundry/Composer", "llm-foundry"),
        ("fms-fsdp", "fms-fsdp"),
        ("MaxText (JAX)", "jax"),
        ("nanotron v0.5", "nanotron"),
        ("InternEvo", "internevo"),
    ],
)
def test_names_find_their_profile(name, stack_id):
    assert stack_for(name) == stack_id


def test_an_unknown_name_finds_none():
    assert stack_for("a stack of one's own") is None


def test_defaults_exist():
    assert set(DEFAULT_STACKS.values()) <= set(stack_ids())


def test_every_measured_framework_finds_a_profile(reference_data):
    from shardwright.planner.runs.table import read_runs

    rows = read_runs(reference_data / "ground_truth" / "measured_runs.csv")
    assert {row.framework for row in rows if stack_for(row.framework) is None} == set()
