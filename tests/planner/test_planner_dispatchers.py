"""How tokens reach their experts: bytes by hand, places by drawing, levels of the network, what a dispatcher takes, holds."""

import json
from dataclasses import replace

import numpy as np
import pytest

from shardwright.errors import ShardwrightError
from shardwright.hardware.catalog import load_cluster
from shardwright.hardware.fabric import fabric_of
from shardwright.planner.axes.base import ByDomain, LayerCollective
from shardwright.planner.axes.routing import Routing
from shardwright.planner.cost.network import Network
from shardwright.planner.estimation import estimate, estimate_plan
from shardwright.planner.plans import MOE_DISPATCHERS, Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.report.estimate_table import degrees_text
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan

SEQ, LAYERS, HIDDEN, TOPK, EXPERTS = 4096, 32, 4096, 2, 8
"""Of mixtral-8x7b, and the sequence of these tests."""


def priced(kind=None, *, model="mixtral-8x7b", cluster="dgx-h100:4", overrides=(), precision="bf16", batch=64, **degrees):
    chosen = {"pp": 2, "ep": 8, "etp": 1, "recompute": "full", "moe_dispatcher": kind} | degrees
    options = PricingOptions(framework="megatron", overrides=overrides, precision=precision)
    made = estimate(model, cluster, seq_len=SEQ, global_batch=batch, degrees=Degrees(**chosen), options=options)
    return made.to_dict()


def exchange(record):
    rows = [row for row in record["communication"] if row["axis"] == "ep"]
    return sorted((row["collective"], row["message_bytes"], row["count_per_step"]) for row in rows)


def distinct(ranks):
    """Ranks that hold at least one of two different experts of eight."""
    each = EXPERTS // ranks
    return ranks * (1 - (EXPERTS - each) * (EXPERTS - each - 1) / (EXPERTS * (EXPERTS - 1)))


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_bytes_of_each_exchange(ep):
    tokens = SEQ * HIDDEN * 2
    passes = LAYERS // 2 * priced(ep=ep)["parallel"]["micro_batches"]
    assert exchange(priced("alltoall", ep=ep)) == [("all_to_all", TOPK * tokens, 6 * passes)]
    assert exchange(priced("deepep", ep=ep)) == [("all_to_all", round(distinct(ep) * tokens), 6 * passes)]
    assert exchange(priced("hybridep", ep=ep)) == exchange(priced("deepep", ep=ep))
    both = [("all_gather", ep * tokens, 3 * passes), ("reduce_scatter", ep * tokens, 3 * passes)]
    assert exchange(priced("allgather", ep=ep)) == both


def test_a_gather_spans_the_experts_tensor_ranks():
    gathered = priced("allgather", ep=4, etp=2, tp=2)
    assert {row["group_size"] for row in gathered["communication"] if row["axis"] == "ep"} == {8}
    rows = [row for row in gathered["communication"] if row["axis"] == "tp" and row["collective"] == "all_gather"]
    others = [row for row in priced("alltoall", ep=4, etp=2, tp=2)["communication"] if row["axis"] == "tp"]
    assert len(rows) < len([row for row in others if row["collective"] == "all_gather"])


def test_nothing_depends_on_it_without_expert_parallelism():
    for kind in MOE_DISPATCHERS:
        said = [] if kind == "alltoall" else [f"--moe-dispatcher {kind} has no effect with ep 1"]
        assert priced(kind, ep=1) == priced(ep=1) | {"warnings": [*said, *priced(ep=1)["warnings"]]}


def test_a_switch_without_effect_is_said():
    dense = priced("deepep", model="llama3.1-8b")
    assert "--moe-dispatcher deepep has no effect without experts" in dense["warnings"]
    skewed = priced(model="llama3.1-8b", overrides=("stack.moe_load_imbalance=2",))
    assert "--routing-skew 2 has no effect without experts" in skewed["warnings"]
    skewed = priced(ep=1, overrides=("stack.moe_load_imbalance=2",))
    assert skewed["predicted"] == priced(ep=1)["predicted"]
    assert "--routing-skew 2 has no effect with ep 1" in skewed["warnings"]
    assert "--cp-comm a2a has no effect with cp 1" in priced(cp_comm="a2a", ep=1)["warnings"]
    working = priced("deepep", cp_comm="a2a", ep=4, cp=2)
    assert not [said for said in working["warnings"] if "no effect" in said]


def test_the_stack_decides_where_nothing_is_said():
    assert priced()["parallel"]["moe_dispatcher"] == "alltoall"
    chosen = priced(overrides=("stack.moe_dispatcher=deepep",))
    assert chosen["parallel"]["moe_dispatcher"] == "deepep"
    assert chosen["predicted"] == priced("deepep")["predicted"]


@pytest.mark.parametrize(
    ("experts", "topk", "groups", "allowed", "places"),
    [(8, 2, 1, 1, 4), (64, 6, 1, 1, 8), (256, 8, 8, 4, 8), (256, 8, 8, 4, 4), (256, 8, 8, 4, 64), (160, 6, 8, 3, 2)],
)
def test_distinct_places_are_what_drawing_finds(experts, topk, groups, allowed, places):
    """Choices of groups and experts are drawn, not derived."""
    draw, tokens = np.random.default_rng(5), 20_000
    group = np.argsort(draw.random((tokens, groups)), axis=1)[:, :allowed]
    each = experts // groups
    able = (group[:, :, None] * each + np.arange(each)).reshape(tokens, -1)
    order = np.argsort(draw.random(able.shape), axis=1)[:, :topk]
    chosen = np.take_along_axis(able, order, axis=1) // (experts // places)
    found = np.mean([len(set(row)) for row in chosen.tolist()])
    routing = Routing(experts=experts, topk=topk, groups=groups, topk_groups=allowed)
    assert routing.places(np.array([float(places)]))[0] == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize(("ranks", "dispatch", "combine"), [(8, 153, 158), (16, 43, 43), (32, 58, 57), (64, 51, 50)])
def test_deepeps_own_table(ranks, dispatch, combine):
    """GB/s of deepseek-ai/DeepEP, docs/legacy.md: 4,096 tokens of DeepSeek-V3 on H800, in 8 and in 16 bits."""
    cluster = load_cluster(f"hgx-h800-80g:{ranks // 8}")
    network, one = Network(cluster, fabric_of(cluster)), np.ones(1)
    routing = Routing(experts=256, topk=8, groups=8, topk_groups=4)
    for width, published in ((1 + 4 / 128, dispatch), (2, combine)):
        rows = np.array([4096 * 7168 * width])
        sent = LayerCollective(
            axis="ep",
            kind="all_to_all",
            size=np.array([ranks]),
            stride=np.array([1]),
            message_bytes=rows * routing.places(ranks * one),
            forward=one,
            backward=one,
            by_domain=ByDomain(routing=routing, rows_bytes=rows),
        )
        counted = rows * routing.places((ranks // 8 if ranks > 8 else ranks) * one)
        rate = counted[0] / network.in_layer(sent).time_s[0] / 1e9
        assert rate == pytest.approx(published, rel=0.3 if ranks == 16 else 0.12)


def test_groups_limit_the_nodes_of_a_token():
    free = Routing(experts=256, topk=8)
    limited = replace(free, groups=8, topk_groups=4)
    nodes = np.array([1.0, 2.0, 4.0, 8.0, 32.0])
    assert (limited.places(nodes) <= free.places(nodes) + 1e-9).all()
    assert limited.places(np.array([8.0]))[0] <= 4.0
    assert free.places(np.array([8.0]))[0] > 5.0


def test_one_copy_a_node_is_what_crosses_the_network():
    """Eight nodes of eight: the network carries fewer copies, NVLink what the others would have sent over it."""
    kinds = {kind: priced(kind, model="deepseek-v3", cluster="dgx-h100:32", pp=4, ep=64) for kind in MOE_DISPATCHERS}
    seconds = {kind: record["time"]["exposed_ep_s"] for kind, record in kinds.items()}
    assert seconds["deepep"] < 0.6 * seconds["alltoall"] < seconds["allgather"]
    assert {row["algorithm"] for row in kinds["deepep"]["communication"] if row["axis"] == "ep"} == {"two-level"}
    unlimited = priced(
        "deepep", model="deepseek-v3", cluster="dgx-h100:32", pp=4, ep=64, overrides=("model.moe.topk_groups=8",)
    )
    assert unlimited["time"]["exposed_ep_s"] > 1.2 * seconds["deepep"]


def test_dispatch_in_8_bits_halves_one_way():
    narrow = ("stack.moe_dispatch_8bit=true",)
    plain, eight = (priced("deepep", precision="fp8-blockwise", overrides=how) for how in ((), narrow))
    there = {message: count for _, message, count in exchange(eight)}
    ((_, whole, count),) = exchange(plain)
    assert there == {round(whole * (1 + 4 / 128) / 2): count / 2, whole: count / 2}
    assert eight["time"]["exposed_ep_s"] < plain["time"]["exposed_ep_s"]
    assert priced("deepep", overrides=narrow)["predicted"] == priced("deepep")["predicted"]


def test_kernels_that_hide_take_multiprocessors():
    def step(taken):
        how = ("stack.ep_exposed=0", f"stack.deepep_multiprocessors={taken}")
        return priced("deepep", overrides=how)["time"]["exposed_ep_s"]

    assert step(0) == 0
    assert 0 < step(20) < step(40)
    exposed = priced("deepep", overrides=("stack.ep_exposed=1",))["time"]["exposed_ep_s"]
    assert step(66) == pytest.approx(exposed / 2, rel=1e-6)


def test_buffers_of_dispatchers_are_held():
    buffers = {kind: priced(kind)["stages"][0]["memory"]["buffers_bytes"] for kind in MOE_DISPATCHERS}
    row = 2 * HIDDEN
    assert buffers["deepep"] - buffers["alltoall"] == pytest.approx(10 * (row + 2048) * 8 * 256, abs=2)
    assert buffers["hybridep"] > buffers["alltoall"]


@pytest.mark.parametrize(("ep", "tokens"), [(16, 288), (128, 560), (256, 720)])
def test_queues_of_deepep_grow_with_the_ranks(ep, tokens):
    where = {"model": "deepseek-v3", "cluster": "dgx-h100:32", "batch": 256, "pp": 1, "ep": ep}
    held = {kind: priced(kind, **where)["stages"][0]["memory"]["buffers_bytes"] for kind in ("deepep", "alltoall")}
    row = 2 * 7168 + 2048
    assert held["deepep"] - held["alltoall"] == pytest.approx(10 * row * (8 * tokens + 2 * ep / 8 * 128), rel=1e-9)


def test_skew_reaches_every_copy():
    for kind in ("alltoall", "deepep", "hybridep"):
        even, uneven = (priced(kind, overrides=(f"stack.moe_load_imbalance={skew}",)) for skew in (1, 2))
        assert exchange(uneven)[0][1] == pytest.approx(2 * exchange(even)[0][1], abs=1)
        assert uneven["memory"]["peak_bytes"] > even["memory"]["peak_bytes"]


def test_an_unknown_dispatcher_is_refused_by_name():
    with pytest.raises(ShardwrightError, match="pigeon"):
        priced("pigeon")


@pytest.mark.parametrize("kind", MOE_DISPATCHERS)
def test_a_search_holds_the_dispatcher_it_is_told(kind, tmp_path):
    search = SearchOptions(fix={"moe_dispatcher": kind, "ep": "8"}, top=2, effort="scan")
    options = PricingOptions(framework="megatron")
    made = plan("mixtral-8x7b", "dgx-h100:2", seq_len=SEQ, global_batch=64, options=options, search=search)
    record = made.to_dict()
    assert record["search"]["space"]["moe_dispatcher"] == [kind]
    assert {found["parallel"]["moe_dispatcher"] for found in record["plans"]} == {kind}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(record))
    again = estimate_plan(path, rank=1, options=PricingOptions()).to_dict()
    assert again["parallel"]["moe_dispatcher"] == kind
    assert again["predicted"]["step_time_s"] == record["plans"][0]["predicted"]["step_time_s"]


def test_launches_of_experts_come_on_top_where_the_host_waits():
    """16 small kernels and 6 products an expert and pass both ways, by hand; short launches hide behind what they start."""

    def step(small, product, ep=8, precision="fp8-tensorwise", wait="0.001"):
        how = (f"stack.moe_launch_s={small}", f"stack.moe_product_launch_s={product}")
        how += (f"stack.moe_host_forward_s={wait}", f"stack.moe_host_backward_s={wait}")
        return priced(ep=ep, pp=1, recompute="none", zero=1, precision=precision, overrides=how)["time"]["other_s"]

    passes = LAYERS * priced(ep=8, pp=1)["parallel"]["micro_batches"]
    for ep in (2, 8):
        experts = passes * EXPERTS // ep
        assert step(6e-6, 33e-6, ep) == step(0, 0, ep)
        assert step(0.2, 0, ep) - step(0.1, 0, ep) == pytest.approx(experts * 16 * 0.1, rel=1e-6)
        assert step(0.2, 0, ep, "fp8-blockwise") - step(0.1, 0, ep, "fp8-blockwise") == pytest.approx(experts * 0.4, rel=1e-6)
        assert step(0, 0.2, ep, "bf16") - step(0, 0.1, ep, "bf16") == pytest.approx(experts * 6 * 0.1, rel=1e-6)
        assert step(0.1, 0, ep, "bf16") == step(0, 0, ep, "bf16")
    assert 0 < step(0, 1e-2, wait="0") - step(0, 0, wait="0") < passes * 6e-2


def test_small_experts_wait_for_their_launches_and_large_ones_do_not():
    def waits(model):
        made = (
            priced(
                model=model,
                pp=1,
                ep=8,
                precision="mxfp8",
                overrides=(f"stack.moe_product_launch_s={launch}",),
                cluster="dgx-b200:2",
            )
            for launch in ("33e-6", "0")
        )
        with_launches, without = (record["time"]["other_s"] for record in made)
        return with_launches - without

    assert waits("mixtral-8x7b") == 0
    assert waits("qwen3-30b-a3b") > 0


def test_what_is_not_fused_around_experts_moves_bytes():
    def seconds(model, precision, kind, fused):
        made = priced(kind, model=model, precision=precision, overrides=(f"stack.fused_experts={fused}",))
        return made["time"]["compute_s"]

    assert seconds("mixtral-8x7b", "bf16", "alltoall", "false") == seconds("mixtral-8x7b", "bf16", "alltoall", "true")
    assert seconds("gpt-oss-120b", "bf16", "alltoall", "false") > seconds("gpt-oss-120b", "bf16", "alltoall", "true")
    assert seconds("mixtral-8x7b", "fp8-tensorwise", "deepep", "false") > seconds(
        "mixtral-8x7b", "fp8-tensorwise", "deepep", "true"
    )
    assert seconds("mixtral-8x7b", "fp8-tensorwise", "hybridep", "false") == seconds(
        "mixtral-8x7b", "fp8-tensorwise", "hybridep", "true"
    )


def test_the_published_run_of_deepseek_v3():
    """180,000 H800 hours for 1e12 tokens (arXiv 2412.19437 section 1): 1,543 tokens a second and GPU."""
    options = PricingOptions(precision="fp8-blockwise", optimizer="adam-bf16", stack="hai-llm")
    degrees = Degrees(pp=16, ep=64, zero=1, schedule="dualpipe-v", recompute="selective")
    record = estimate(
        "deepseek-v3", "hgx-h800-80g:256", seq_len=4096, global_batch=15_360, degrees=degrees, options=options
    ).to_dict()
    assert record["parallel"]["moe_dispatcher"] == "deepep"
    assert record["predicted"]["tokens_per_s_per_gpu"] == pytest.approx(1e12 / 180_000 / 3600, rel=0.2)


def test_a_plan_in_words_names_its_switches():
    said = degrees_text(priced("deepep", ep=4, loss_chunks=4, offload="optimizer=0.5"))
    assert "dispatcher deepep, loss in 4 pieces, offload optimizer=0.5" in said
    assert "dispatcher" not in degrees_text(priced(ep=4))
