"""Offloading to the host: what is typed, what leaves the device, what it costs, and what hosts hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.hardware.catalog import load_node
from shardwright.hardware.host import host_of
from shardwright.models.catalog import load_model
from shardwright.planner.cost.offload import HOST_UPDATE_SHARE, PINNED_ROUNDING
from shardwright.planner.estimation import estimate_degrees, estimate_plan, estimate_problem
from shardwright.planner.offloading import PARTS, Offload, from_code, offload_of, text_of, without
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan

GIB = 2**30
MODEL, CLUSTER = "llama3.1-8b", "dgx-h100:1"


def problem_of(model=MODEL, cluster=CLUSTER, *, batch=32, seq_len=4096, **options):
    return build_problem(model, cluster, seq_len=seq_len, global_batch=batch, options=PricingOptions(**options))


def priced(problem, **degrees):
    return estimate_degrees(problem, Degrees(**degrees))


def parts(record, name, stage=0):
    return record["stages"][stage]["memory"][f"{name}_bytes"]


fractions = st.integers(0, 1_000_000).map(lambda n: n / 1_000_000)


@given(activations=fractions, optimizer=fractions, parameters=fractions)
def test_fractions_come_back_from_their_code(activations, optimizer, parameters):
    made = Offload(activations=activations, optimizer=optimizer, parameters=parameters)
    assert from_code(made.code) == pytest.approx({"activations": activations, "optimizer": optimizer, "parameters": parameters})
    assert offload_of(made.to_dict()) == made
    assert 0 <= made.code < 2**60


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", Offload()),
        ("none,none", Offload()),
        ("optimizer", Offload(optimizer=1.0)),
        ("optimizer=1,activations=0.5", Offload(optimizer=1.0, activations=0.5)),
        ("optimizer=1+activations=0.5", Offload(optimizer=1.0, activations=0.5)),
        (" parameters = 0.25 , optimizer ", Offload(optimizer=1.0, parameters=0.25)),
    ],
)
def test_what_users_type(text, expected):
    assert offload_of(text) == expected
    assert offload_of(text_of(expected.code)) == expected


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("opt", UnknownNameError, "opt"),
        ("", UnknownNameError, "part to offload"),
        ("none,optimizer", ConflictError, "none and something"),
        ("none=1", ConflictError, "none and something"),
        ("optimizer+none", ConflictError, "none and something"),
        ("optimizer,optimizer=0.5", ConflictError, "twice"),
        ("optimizer=2", InvalidValueError, "no fraction"),
        ("optimizer=-0.1", InvalidValueError, "no fraction"),
        ("optimizer=nan", InvalidValueError, "no fraction"),
        ("optimizer=half", InvalidValueError, "no number"),
        ("optimizer=", InvalidValueError, "no number"),
    ],
)
def test_what_cannot_be_meant_is_named(text, error, says):
    with pytest.raises(error) as found:
        offload_of(text)
    assert says in str(found.value)
    assert found.value.where == "--offload"
    assert found.value.hint


def test_keeping_a_part_on_the_device():
    code = Offload(activations=0.5, optimizer=1.0, parameters=1.0).code
    assert from_code(without(code, "parameters", "activations")) == {"activations": 0.0, "optimizer": 1.0, "parameters": 0.0}


def test_nothing_offloaded_is_the_plan_itself():
    problem = problem_of()
    assert priced(problem, zero=3, offload="none") == priced(problem, zero=3)
    assert priced(problem, zero=3)["memory"]["host_peak_bytes"] is None


@pytest.mark.parametrize("framework", ["megatron", "deepspeed", "pytorch"])
@pytest.mark.parametrize("part", PARTS)
def test_more_in_host_memory_is_less_on_the_device_and_no_faster(framework, part):
    problem = problem_of(framework=framework)
    shares = (0.0, 0.25, 0.5, 1.0)
    made = [priced(problem, zero=3, offload=Offload(**{part: share})) for share in shares]
    peaks = [record["memory"]["peak_bytes"] for record in made]
    hosts = [record["memory"]["host_peak_bytes"] or 0 for record in made]
    steps = [record["predicted"]["step_time_s"] for record in made]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < peaks[0]
    assert hosts == sorted(hosts)
    assert hosts[0] == 0 < hosts[1]
    assert steps == sorted(steps)
    for record in made:
        assert sum(record["time"].values()) == pytest.approx(record["predicted"]["step_time_s"], rel=1e-9)


def test_states_leave_whole_and_gradients_where_the_stack_moves_them():
    whole = load_model(MODEL).parameters
    for framework, gradients in (("megatron", 4 * whole), ("deepspeed", 0)):
        record = priced(problem_of(framework=framework), zero=2 if framework == "deepspeed" else 1, offload="optimizer")
        assert parts(record, "optimizer") == 0
        assert parts(record, "parameters") == pytest.approx(2 * whole, rel=0.01)
        assert parts(record, "gradients") == pytest.approx(gradients, rel=0.01)


def test_activations_of_two_layers_stay():
    problem = problem_of()
    kept, gone = (parts(priced(problem, offload=Offload(activations=share)), "activations") for share in (0.0, 1.0))
    layers = load_model(MODEL).layers
    assert gone == pytest.approx(2 / layers * kept, rel=0.05)
    half = parts(priced(problem, offload=Offload(activations=0.5)), "activations")
    assert half == pytest.approx((kept + gone) / 2, rel=0.01)


def test_the_update_is_bound_by_the_memory_of_the_host():
    record = priced(problem_of(framework="megatron"), offload="optimizer")
    host, own = host_of(load_node("dgx-h100"), 8), load_model(MODEL).parameters / 8
    assert host.memory_bytes_per_s == pytest.approx(614.4e9 / 8)
    assert record["time"]["optimizer_s"] == pytest.approx(own * 30 / (HOST_UPDATE_SHARE * host.memory_bytes_per_s), rel=0.01)


def test_zero_offloads_table_of_latencies():
    """1e10 parameters on the host of a DGX-2 in 2.57 s (arXiv 2101.06840): what the share was taken from comes back."""
    bandwidth = host_of(load_node("dgx2-v100-32g"), 16).memory_bytes_per_s * 16
    assert 1e10 * 30 / (HOST_UPDATE_SHARE * bandwidth) == pytest.approx(2.57, rel=0.05)


@pytest.mark.parametrize("part", PARTS)
def test_a_slower_link_never_helps(part):
    steps = []
    for rate in ("4e9", "16e9", "64e9", "450e9"):
        problem = problem_of(framework="pytorch", overrides=(f"cluster.host_bytes_per_s={rate}",))
        steps.append(priced(problem, zero=3, offload=Offload(**{part: 1.0}))["predicted"]["step_time_s"])
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


def test_copies_that_passes_hide_cost_nothing():
    problem = problem_of(framework="pytorch", overrides=("cluster.host_bytes_per_s=450e9",))
    free, held = priced(problem, zero=3), priced(problem, zero=3, offload="activations")
    assert held["predicted"]["step_time_s"] == pytest.approx(free["predicted"]["step_time_s"])


def test_a_node_holds_no_more_than_its_host_memory():
    problem = problem_of(overrides=("cluster.host_memory_bytes=100e9",))
    record = priced(problem, offload="optimizer")
    assert not record["feasible"]
    (broken,) = record["violations"]
    assert broken["rule"] == "host-memory"
    assert "GiB of host memory" in broken["message"]
    assert broken["remedy"]
    assert priced(problem)["violations"] == []


def test_a_host_of_unknown_size_is_said():
    problem = problem_of(cluster="jean-zay-a100-80g:2")
    assert problem.cluster.node.host_memory_bytes is None
    (warning,) = [text for text in priced(problem, offload="optimizer")["warnings"] if "host memory" in text]
    assert "jean-zay-a100-80g" in warning
    assert not [text for text in priced(problem)["warnings"] if "host memory" in text]


def test_a_host_link_of_unknown_rate_is_refused():
    problem = problem_of(cluster="trn2.48xlarge:1")
    with pytest.raises(InvalidValueError, match="host link of trn2") as found:
        priced(problem, offload="optimizer")
    assert "--set cluster.host_bytes_per_s" in found.value.hint


def test_what_is_assumed_is_listed():
    document = estimate_problem(problem_of(), Degrees(offload="optimizer")).data
    keys = {row["key"]: row["value"] for row in document["assumptions"]}
    assert keys["offload.link_bytes_per_s"] == pytest.approx(0.82 * 64e9)
    assert keys["offload.host_update_share"] == HOST_UPDATE_SHARE
    assert keys["node.host_memory_bytes"] == 2_000_000_000_000
    assert document["sources"]["offload"]["origin"] == "modelled"
    plain = estimate_problem(problem_of(), Degrees()).data
    assert not [row for row in plain["assumptions"] if row["key"].startswith("offload.")]


def test_a_saved_plan_is_priced_the_same():
    problem = problem_of(framework="pytorch")
    made = estimate_problem(problem, Degrees(zero=3, offload="optimizer,parameters=0.333333")).data
    again = estimate_plan(made).data
    assert again["parallel"] == made["parallel"]
    assert again["predicted"] == made["predicted"]
    assert again["memory"] == made["memory"]


def test_a_search_with_offload_fixed_finds_plans_that_offload():
    tight = {"overrides": ("cluster.memory_bytes=20e9",)}
    fix = SearchOptions(fix={"offload": "optimizer"}, effort="scan", remedies=False)
    options = PricingOptions(framework="megatron", **tight)
    made = plan(MODEL, CLUSTER, seq_len=4096, global_batch=32, options=options, search=fix).data
    assert made["search"]["space"]["offload"] == ["optimizer"]
    best = made["plans"][0]
    assert best["parallel"]["offload"] == {"activations": 0.0, "optimizer": 1.0, "parameters": 0.0}
    assert best["memory"]["host_peak_bytes"] > 16 * load_model(MODEL).parameters
    again = estimate_plan(made).data
    assert again["predicted"]["step_time_s"] == best["predicted"]["step_time_s"]


def test_a_search_keeps_within_host_memory():
    fix = SearchOptions(fix={"offload": "optimizer"}, effort="scan", remedies=False)
    options = PricingOptions(framework="megatron", overrides=("cluster.host_memory_bytes=50e9",))
    made = plan(MODEL, CLUSTER, seq_len=4096, global_batch=32, options=options, search=fix)
    assert made.exit_code == 1
    assert made.data["search"]["fits"] == 0
    assert "host-memory" in {broken["rule"] for miss in made.data["near_misses"] for broken in miss["violations"]}


def test_hosts_by_generation_of_the_link():
    v100, h100, gh200, gb200 = (
        host_of(load_node(name), load_node(name).gpus)
        for name in ("jean-zay-v100-32g", "dgx-h100", "gh200-alps", "gb200-nvl72")
    )
    assert v100.link_bytes_per_s < h100.link_bytes_per_s < gb200.link_bytes_per_s
    assert gh200.memory_bytes_per_s == 512e9
    assert gb200.memory_bytes_per_s == 256e9
    assert host_of(load_node("dgx-h100"), 1).memory_bytes_per_s == 614.4e9


def test_rules_hold_parameters_where_they_are_sharded():
    found = priced(problem_of(), zero=1, offload="parameters")["violations"]
    assert [broken["rule"] for broken in found] == ["offload-parameters", "memory"]
    with pytest.raises(ShardwrightError):
        priced(problem_of(), offload="everything")


def test_pinned_memory_is_part_of_what_hosts_hold():
    record = priced(problem_of(framework="megatron"), offload="optimizer")
    whole = load_model(MODEL).parameters
    assert record["memory"]["host_peak_bytes"] == pytest.approx((12 + PINNED_ROUNDING * 6) * whole, rel=0.01)


def test_an_explanation_names_the_host():
    from shardwright.planner.explanation.explain import explain

    made = estimate_problem(problem_of(framework="megatron"), Degrees(offload="optimizer")).data
    found = explain(made).data
    (update,) = [part for part in found["waterfall"] if part["part"] == "optimizer_s"]
    assert update["computed_by"] == "cost.offload.update_s"
    (host,) = [one for one in found["constraints"] if one["part"] == "optimizer_s"]
    assert host["constraint"] == "host"
    plain = explain(estimate_problem(problem_of(framework="megatron"), Degrees()).data).data
    assert next(part for part in plain["waterfall"] if part["part"] == "optimizer_s")["computed_by"] == "cost.states.states"
