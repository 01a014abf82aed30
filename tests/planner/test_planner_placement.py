"""Placement: what crosses which links, the program against brute force, symmetry, links that are taken away, records."""

import dataclasses
import json
import random

import numpy as np
import placement_cases as cases
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwright.documents import rounded
from shardwright.hardware.catalog import load_cluster, read_cluster, write_cluster
from shardwright.hardware.topology_records import Block, Excluded, Network, Switch, Uplink
from shardwright.planner.emit.emission import emit
from shardwright.planner.estimation import estimate, estimate_plan
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.report.folder import write_result
from shardwright.planner.schema import read_plan
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.placement import place, placement_record
from shardwright.planner.search.placement_cost import placement_cost, traffic_of
from shardwright.planner.search.placement_sites import sites_of
from shardwright.planner.search.run import plan

GB = 1e9


def shuffled(count, seed=1):
    order = list(cases.named(count))
    random.Random(seed).shuffle(order)
    return order


def priced(cluster, *, degrees=None, model="llama3.1-70b", **options):
    how = PricingOptions(framework="megatron", **options)
    made = estimate(
        model, cluster, seq_len=4096, global_batch=cluster.nodes * 8, degrees=degrees or Degrees(tp=8, pp=4), options=how
    )
    return made.to_dict()


# --- sites -------------------------------------------------------------------------------------------


def test_leaves_and_their_uplinks():
    made = sites_of(cases.tree(12, 4, oversubscription=4))
    (level,) = made.levels
    assert level.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert level.uplink_bytes_per_s == pytest.approx([8 * 50e9] * 3)
    assert level.known
    assert made.nic_bytes_per_s == pytest.approx([400e9] * 12)


def test_the_leaves_of_a_rail_optimised_unit_are_one_group():
    (level,) = sites_of(cases.rails(16, 4)).levels
    assert level.groups == 4
    assert level.uplink_bytes_per_s == pytest.approx([4 * 8 * 50e9] * 4)


def test_pods_above_leaves():
    base = cases.tree(16, 4).network.switches[:-1]
    up = [dataclasses.replace(s, uplinks=(Uplink(to=f"pod{k // 2}", links=32, bytes_per_s=50e9),)) for k, s in enumerate(base)]
    pods = [Switch(name=f"pod{k}", tier=2, uplinks=(Uplink(to="core", links=16, bytes_per_s=50e9),)) for k in range(2)]
    leaf, pod = sites_of(cases.cluster_of([*up, *pods, Switch(name="core", tier=3)], cases.named(16))).levels
    assert (leaf.name, pod.name) == ("tier 1", "tier 2")
    assert pod.group.tolist() == [0] * 8 + [1] * 8
    assert pod.uplink_bytes_per_s == pytest.approx([800e9] * 2)


def test_unknown_rates_lose_nothing():
    (level,) = sites_of(cases.tree(8, 4, rates=False)).levels
    assert not level.known
    assert level.uplink_bytes_per_s == pytest.approx([4 * 400e9] * 2)


def test_blocks_of_a_scheduler():
    blocks = tuple(Block(name=f"b{k}", hosts=cases.named(8)[k : k + 4]) for k in (0, 4))
    cluster = dataclasses.replace(cases.tree(8, 4), network=Network(kind="blocks", blocks=blocks))
    (level,) = sites_of(cluster).levels
    assert (level.name, level.groups, level.known) == ("block", 2, False)


def test_hosts_out_of_use_are_no_places():
    whole = cases.tree(8, 4)
    group = dataclasses.replace(whole.groups[0], count=7, hosts=whole.groups[0].hosts[1:])
    cluster = dataclasses.replace(whole, groups=(group,), excluded=(Excluded(host="n000", reason="slow"),))
    made = sites_of(cluster)
    assert "n000" not in made.hosts
    assert np.bincount(made.levels[0].group).tolist() == [3, 4]


def test_hosts_with_broken_gpus_are_no_places_where_all_are_needed():
    broken = Excluded(host="n001", gpus=(5,), reason="double-bit errors")
    cluster = dataclasses.replace(cases.tree(8, 4), excluded=(broken,))
    assert "n001" not in sites_of(cluster).hosts
    assert placement_record(priced(cases.tree(8, 4), degrees=Degrees(tp=8, pp=2)), cluster) is None
    seven = dataclasses.replace(cluster, groups=(dataclasses.replace(cluster.groups[0], gpus_per_node=7),))
    assert "n001" in sites_of(seven).hosts


def test_presets_say_nothing_of_places():
    assert sites_of(load_cluster("dgx-h100:4")) is None
    assert placement_record(priced(load_cluster("dgx-h100:4")), load_cluster("dgx-h100:4")) is None


# --- traffic -----------------------------------------------------------------------------------------


def test_every_byte_that_leaves_a_node_is_counted_once():
    record = priced(cases.tree(16, 4), degrees=Degrees(tp=4, pp=4))
    traffic = traffic_of(record, 8)
    assert (traffic.slots, traffic.rows, traffic.columns) == (16, 4, 4)
    (reduce_, gather) = (row for row in record["communication"] if row["axis"] == "dp")
    ring = traffic.axes["dp"]
    # two rings of 8 ranks over 4 nodes: neighbours alternate between nodes and inside them, tp 4 apart
    assert ring.bytes.sum() == pytest.approx(16 * 4 * (reduce_["wire_bytes"] + gather["wire_bytes"]))
    (send,) = (row for row in record["communication"] if row["collective"] == "send")
    assert traffic.axes["pp"].bytes.sum() == pytest.approx(2 * 3 * 4 * 8 * send["wire_bytes"] / 2)
    assert "tp" not in traffic.axes


def test_all_to_all_sends_to_each():
    cluster = cases.tree(8, 4)
    record = priced(cluster, model="qwen3-30b-a3b", degrees=Degrees(tp=1, ep=16, pp=1))
    traffic = traffic_of(record, 8)
    total = sum(row["wire_bytes"] for row in record["communication"] if row["axis"] == "ep")
    assert traffic.axes["ep"].bytes.sum() == pytest.approx(64 * total * 8 / 15)
    assert {(int(s) // 2, int(t) // 2) for s, t in zip(traffic.axes["ep"].source, traffic.axes["ep"].target, strict=True)} == {
        (k, k) for k in range(4)
    }


def test_replicas_outermost():
    record = priced(cases.tree(16, 4), degrees=Degrees(tp=8, pp=4))
    usual, other = traffic_of(record, 8), traffic_of(record, 8, "tp-cp-ep-pp-dp")
    assert other.by_column
    assert usual.grid.tolist() == np.arange(16).reshape(4, 4).tolist()
    assert other.grid.tolist() == np.arange(16).reshape(4, 4).T.tolist()
    for axis in ("dp", "pp"):
        assert other.axes[axis].bytes.sum() == pytest.approx(usual.axes[axis].bytes.sum())
    steps = other.axes["pp"].target - other.axes["pp"].source
    assert set(np.abs(steps).tolist()) == {1}


# --- cost --------------------------------------------------------------------------------------------


def test_the_busiest_link_by_hand():
    traffic, place_ = cases.grid(2, 2, ring=8 * GB, chain=2 * GB, back=2 * GB), cases.sites([2, 2], [10 * GB, 10 * GB])
    rows, columns = (placement_cost(traffic, place_, np.array(order)) for order in ([0, 1, 2, 3], [0, 2, 1, 3]))
    assert rows.axes_s == pytest.approx({"dp": 8 / 400, "pp": 4 / 10})
    assert rows.crossing_bytes == pytest.approx({"tier 1": 8 * GB})
    assert columns.axes_s == pytest.approx({"dp": 16 / 10, "pp": 2 / 400})
    assert columns.total_s == pytest.approx(16 / 10 + 2 / 400)


def test_hosts_of_one_scale_up_domain_need_no_cards():
    traffic, place_ = cases.grid(1, 4, ring=8 * GB), cases.sites([4], [1.0])
    together = dataclasses.replace(place_, domain=np.zeros(4, dtype=np.int64))
    assert placement_cost(traffic, place_, np.arange(4)).total_s == pytest.approx(8 / 400)
    assert placement_cost(traffic, together, np.arange(4)).total_s == 0


small = st.tuples(
    st.sampled_from([(1, 4), (2, 2), (2, 3), (3, 2), (1, 6), (4, 1)]),
    st.floats(0.5, 20.0),
    st.floats(0.5, 20.0),
    st.sampled_from([(3, 3), (2, 4), (2, 2, 2), (4, 3), (1, 5), (3, 2, 1)]),
    st.floats(2.0, 400.0),
    st.integers(0, 10**6),
)


@settings(max_examples=40, deadline=None)
@given(small)
@example(((2, 2), 1.0, 1.0, (2, 2, 2), 2.0, 1))  # 0.25 % above the least; its bound says that it may be
def test_the_program_finds_what_brute_force_finds_within_a_percent(case):
    (rows, columns), ring, chain, sizes, rate, seed = case
    traffic = cases.grid(rows, columns, ring=ring * GB, chain=chain * GB, back=chain * GB / 2)
    order = np.random.default_rng(seed).permutation(sum(sizes))
    place_ = cases.sites(sizes, [rate * GB * (1 + g % 2) for g in range(len(sizes))])
    mixed = dataclasses.replace(
        place_, levels=(dataclasses.replace(place_.levels[0], group=_numbered(place_.levels[0].group[order])),)
    )
    mixed = _with_rates(mixed, place_, order)
    best = cases.least_of_all(traffic, mixed)
    found = place(traffic, mixed)
    assert best * (1 - 1e-6) <= found.cost.total_s <= best * 1.01
    assert found.bound_s <= best * (1 + 1e-9)
    assert found.cost.total_s <= found.naive.total_s * (1 + 1e-9)
    assert len(set(found.hosts.tolist())) == traffic.slots


def _numbered(group):
    known = {}
    return np.array([known.setdefault(int(g), len(known)) for g in group])


def _with_rates(mixed, before, order):
    """The groups renumbered in order of appearance keep their rates."""
    level, old = mixed.levels[0], before.levels[0]
    rates = np.zeros(level.groups)
    rates[level.group] = old.uplink_bytes_per_s[old.group[order]]
    return dataclasses.replace(mixed, levels=(dataclasses.replace(level, uplink_bytes_per_s=rates),))


def test_the_program_improves_on_known_shapes_or_proves_them():
    traffic = cases.grid(3, 4, ring=6 * GB, chain=5 * GB, back=5 * GB)
    place_ = cases.sites([5, 4, 3], [20 * GB, 10 * GB, 5 * GB])
    with_program, without = place(traffic, place_), place(traffic, place_, limit=0.0)
    assert with_program.cost.key <= without.cost.key
    assert with_program.bound_s >= without.bound_s
    assert without.stopped


def test_equal_hosts_can_be_exchanged():
    traffic = cases.grid(2, 4, ring=3 * GB, chain=2 * GB, back=1 * GB)
    place_ = cases.sites([4, 4], [20 * GB] * 2)
    hosts = np.array([0, 1, 4, 5, 2, 3, 6, 7])
    for inside in ([1, 0, 2, 3, 4, 5, 6, 7], [3, 2, 1, 0, 7, 6, 5, 4], [4, 5, 6, 7, 0, 1, 2, 3]):
        swapped = np.array(inside)[hosts]
        assert placement_cost(traffic, place_, swapped).key == placement_cost(traffic, place_, hosts).key


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_hosts_are_listed_does_not_change_what_is_reached(seed):
    record = priced(cases.tree(16, 4, 4))
    found = [placement_record(record, cases.tree(16, 4, 4, order=order)) for order in (cases.named(16), shuffled(16, seed))]
    assert found[0]["cost_s"] == pytest.approx(found[1]["cost_s"])
    assert found[1]["naive_cost_s"] > found[1]["cost_s"]


@settings(max_examples=40, deadline=None)
@given(small, st.floats(0.1, 0.99))
def test_taking_links_away_never_helps(case, left):
    (rows, columns), ring, chain, sizes, rate, seed = case
    traffic = cases.grid(rows, columns, ring=ring * GB, chain=chain * GB, back=chain * GB / 3)
    whole = cases.sites(sizes, [rate * GB] * len(sizes))
    fewer = cases.sites(sizes, [rate * GB * (left if g == seed % len(sizes) else 1.0) for g in range(len(sizes))])
    hosts = np.random.default_rng(seed).permutation(sum(sizes))[: traffic.slots]
    assert placement_cost(traffic, fewer, hosts).total_s >= placement_cost(traffic, whole, hosts).total_s
    assert place(traffic, fewer).cost.total_s >= place(traffic, whole).cost.total_s * (1 - 1e-9)


def test_spare_hosts_are_used_where_they_help():
    traffic = cases.grid(2, 3, ring=9 * GB, chain=1 * GB)
    found = place(traffic, cases.sites([2, 6, 2], [1 * GB] * 3))
    assert sorted(found.hosts.tolist()) == [2, 3, 4, 5, 6, 7]
    assert found.gap == 0


# --- on clusters -------------------------------------------------------------------------------------


def test_an_oversubscribed_tree_gains_and_a_full_one_has_nothing_to_gain():
    record = priced(cases.tree(32, 8))
    thin = placement_record(record, cases.tree(32, 8, 4, order=shuffled(32)))
    assert thin["naive_cost_s"] > 2 * thin["cost_s"]
    assert thin["gap"] < 0.05
    full = placement_record(record, cases.rails(32, 8))
    assert full["cost_s"] == pytest.approx(full["naive_cost_s"])
    assert full["gap"] == 0
    assert full["levels"][0]["crossing_bytes"] <= full["levels"][0]["naive_crossing_bytes"]


def test_expert_groups_stay_on_one_leaf():
    cluster = cases.tree(16, 4, 4, order=shuffled(16))
    record = priced(cluster, model="qwen3-30b-a3b", degrees=Degrees(tp=1, ep=32, pp=1))
    made = placement_record(record, cluster)
    leaf = {host: k // 4 for k, host in enumerate(cases.named(16))}
    groups = [{leaf[host] for host in made["hosts"][k : k + 4]} for k in range(0, 16, 4)]
    assert all(len(group) == 1 for group in groups)
    assert made["cost_s"] < made["naive_cost_s"] / 2


def test_orders_are_those_that_the_targets_can_launch():
    cluster = cases.tree(16, 4, 4)
    both = placement_record(priced(cluster), cluster)
    assert [o["order"] for o in both["orders"]] == ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
    assert both["order"] == "tp-cp-ep-dp-pp"
    assert both["orders"][0]["cost_s"] == both["cost_s"]
    routed = priced(cluster, model="qwen3-30b-a3b", degrees=Degrees(tp=1, ep=8, pp=1))
    assert len(placement_record(routed, cluster)["orders"]) == 1


def test_stages_that_do_not_fill_nodes_are_placed_too():
    cluster = cases.tree(12, 4, 4, order=shuffled(12))
    record = priced(cluster, degrees=Degrees(tp=4, pp=8))  # 12 ranks a stage: one and a half nodes
    made = placement_record(record, cluster)
    assert sorted(made["hosts"]) == list(cases.named(12))
    assert made["cost_s"] <= made["naive_cost_s"]


def test_the_same_input_gives_the_same_placement():
    cluster = cases.tree(24, 5, 3, order=shuffled(24))
    record = priced(cluster, degrees=Degrees(tp=8, pp=3), model="gpt3-175b")
    assert placement_record(record, cluster) == placement_record(record, cluster)


@pytest.fixture(scope="module")
def result():
    cluster = cases.tree(16, 4, 4, order=shuffled(16))
    options = PricingOptions(framework="megatron")
    return plan("llama3.1-70b", cluster, seq_len=4096, global_batch=64, options=options, search=SearchOptions(top=3))


def test_plans_carry_their_placement(result, tmp_path):
    made = rounded(result.to_dict())
    first = made["plans"][0]["placement"]
    assert sorted(first["hosts"]) == list(cases.named(16))
    assert all(p["placement"]["cost_s"] <= p["placement"]["naive_cost_s"] for p in made["plans"])
    saved = tmp_path / "r.json"
    saved.write_text(json.dumps(made))
    assert read_plan(saved)[1]["placement"] == first
    assert estimate_plan(saved).to_dict()["placement"] == first


def test_launch_files_name_the_hosts_in_order(result, tmp_path):
    emit(rounded(result.to_dict()), target="megatron", folder=tmp_path / "out", launcher="slurm")
    hosts = result.plans[0]["placement"]["hosts"]
    assert (tmp_path / "out" / "hosts.txt").read_text().split() == hosts
    assert f"--nodelist={','.join(hosts)}" in (tmp_path / "out" / "job.sbatch").read_text()


def test_the_solver_writes_nothing(capfd):
    place(cases.grid(3, 4, ring=6 * GB, chain=5 * GB), cases.sites([5, 4, 3], [20 * GB, 10 * GB, 5 * GB]))
    assert capfd.readouterr().out == ""  # it would end up in the one document on standard output


def test_folders_hold_the_hosts_and_their_ranks(result, tmp_path):
    made = result.to_dict()
    written = {path.name for path in write_result(tmp_path / "out", made)}
    assert {"hosts.txt", "ranks.json"} <= written
    hosts = made["plans"][0]["placement"]["hosts"]
    assert (tmp_path / "out" / "hosts.txt").read_text().split() == hosts
    ranks = json.loads((tmp_path / "out" / "ranks.json").read_text())
    assert ranks["order"] == "tp-cp-ep-dp-pp"
    assert ranks["hosts"][3] == {"host": hosts[3], "ranks": "24-31"}
    without = {**made, "plans": [{**p, "placement": None} for p in made["plans"]]}
    write_result(tmp_path / "out", without)
    assert not (tmp_path / "out" / "hosts.txt").exists()


def test_a_cluster_file_names_places(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(write_cluster(cases.tree(8, 4, 4)))
    assert sites_of(read_cluster(path)).levels[0].groups == 2
