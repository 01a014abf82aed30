"""How context parallelism exchanges: bytes by hand, what hides, what is kept, what is legal, what comes back from a file."""

import json

import numpy as np
import pytest

from shardwright.errors import ShardwrightError
from shardwright.planner.estimation import estimate, estimate_plan
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan

SEQ, LAYERS, HEADS, KV_HEADS, WIDTH = 32_768, 32, 32, 8, 128
"""Of llama3.1-8b, and the sequence of these tests."""

KINDS = ("p2p", "allgather", "a2a")


def priced(kind=None, *, cp=4, tp=1, cluster="dgx-h100:2", framework="any", overrides=(), seq_len=SEQ, **degrees):
    options = PricingOptions(framework=framework, overrides=overrides)
    chosen = Degrees(cp=cp, tp=tp, cp_comm=kind, **degrees)
    return estimate("llama3.1-8b", cluster, seq_len=seq_len, global_batch=8, degrees=chosen, options=options).to_dict()


def exchange(record):
    rows = [row for row in record["communication"] if row["axis"] == "cp"]
    return sorted((row["collective"], row["message_bytes"], row["count_per_step"]) for row in rows)


def per_pass(record):
    return LAYERS * record["parallel"]["micro_batches"]


def local(heads, cp, tp=1):
    """Bytes of one of queries, keys, values, outputs on a rank, in bf16."""
    return SEQ // cp * heads // tp * WIDTH * 2


@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2)])
def test_bytes_of_each_exchange(cp, tp):
    whole = cp * 2 * local(KV_HEADS, cp, tp)
    q, k = local(HEADS, cp, tp), local(KV_HEADS, cp, tp)
    ring, gathered, swapped = (priced(kind, cp=cp, tp=tp) for kind in KINDS)
    count = per_pass(ring)
    assert exchange(ring) == [("all_gather", whole, 3 * count)]
    assert exchange(gathered) == [("all_gather", whole, 2 * count), ("reduce_scatter", whole, count)]
    assert exchange(swapped) == [("all_to_all", k, 4 * count), ("all_to_all", q, 4 * count)]


def test_the_ring_is_what_is_priced_where_nothing_is_said():
    assert priced() == priced("p2p")
    assert priced()["parallel"]["cp_comm"] == "p2p"


def test_deepspeed_exchanges_heads():
    assert priced(framework="deepspeed")["parallel"]["cp_comm"] == "a2a"
    assert priced(framework="deepspeed")["communication"] == priced("a2a", framework="deepspeed")["communication"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_context_parallelism_nothing_changes(kind):
    told, plain = priced(kind, cp=1, tp=2), priced(cp=1, tp=2)
    without = [] if kind == "p2p" else [f"--cp-comm {kind} has no effect with cp 1"]
    assert told.pop("warnings") == [*plain.pop("warnings"), *without]
    assert told == plain


def test_only_a_ring_hides_behind_the_core():
    ring, gathered, swapped = (priced(kind) for kind in KINDS)
    assert ring["time"]["exposed_cp_s"] == 0
    assert ring["parallel"]["overlap"]["cp"]
    for other in (gathered, swapped):
        rows = [row for row in other["communication"] if row["axis"] == "cp"]
        assert other["time"]["exposed_cp_s"] == pytest.approx(sum(row["time_s"] for row in rows))
        assert not other["parallel"]["overlap"]["cp"]


def test_one_kernel_of_whole_keys_is_no_slower_than_the_steps_of_a_ring():
    ring, gathered, swapped = (priced(kind)["time"]["compute_s"] for kind in KINDS)
    assert gathered <= ring
    assert swapped <= ring


def test_swapped_outputs_are_kept_in_both_forms():
    ring, swapped = (priced(kind, micro_batch=1) for kind in ("p2p", "a2a"))
    more = swapped["stages"][0]["memory"]["activations_bytes"] - ring["stages"][0]["memory"]["activations_bytes"]
    assert more == LAYERS * local(HEADS, 4)


def test_full_recomputing_keeps_no_swapped_output():
    ring, swapped = (priced(kind, recompute="full")["stages"][0]["memory"] for kind in ("p2p", "a2a"))
    live = swapped["activations_bytes"] - ring["activations_bytes"]
    assert live in {0, local(HEADS, 4)}


def test_heads_beat_a_ring_that_nothing_hides_where_they_weigh_less():
    """Wire bytes a layer, both ways, over (cp − 1)/cp: the ring 3·cp·(k + v), the swap 2·(q + k + v + o).

    With q = o = 4·k of llama3.1-8b: 6·cp against 20, so that the swap sends less from cp 4 on and more at cp 2.
    """
    sent = {
        (kind, cp): sum(row["wire_bytes"] for row in priced(kind, cp=cp)["communication"] if row["axis"] == "cp")
        for kind in ("p2p", "a2a")
        for cp in (2, 4, 8)
    }
    for cp in (2, 4, 8):
        micro_batches = priced(cp=cp)["parallel"]["micro_batches"]
        unit = (cp - 1) / cp * local(KV_HEADS, cp) * LAYERS * micro_batches
        assert sent["p2p", cp] == pytest.approx(6 * cp * unit)
        assert sent["a2a", cp] == pytest.approx(20 * unit)
    bare = {(kind, cp): priced(kind, cp=cp, framework="pytorch")["time"]["exposed_cp_s"] for kind, cp in sent}
    assert bare["a2a", 8] < bare["p2p", 8]
    assert bare["a2a", 2] > bare["p2p", 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_faster_network_is_never_slower(kind):
    steps = []
    for factor in (0.5, 1.0, 2.0, 4.0):
        speed = f"cluster.scaleup_bytes_per_s={450e9 * factor}"
        steps.append(priced(kind, cp=8, overrides=(speed,))["predicted"]["step_time_s"])
    assert np.all(np.diff(steps) <= 0)
    assert steps[-1] < steps[0]


@pytest.mark.parametrize(("cp", "tp", "legal"), [(8, 1, True), (4, 2, True), (16, 1, False), (2, 8, False)])
def test_heads_must_divide(cp, tp, legal):
    record = priced("a2a", cp=cp, tp=tp)
    assert ("cp-heads" in [broken["rule"] for broken in record["violations"]]) == (not legal)
    assert priced("p2p", cp=cp, tp=tp)["violations"] == []


def test_the_rule_names_what_is_legal():
    (broken,) = priced("a2a", cp=16)["violations"]
    assert broken["message"] == "32 heads and 8 key/value heads cannot be divided by tp·cp = 1·16 = 16"
    assert broken["remedy"] == "use cp 4 or 8, or use cp_comm p2p or allgather"
    (broken,) = priced("a2a", cp=2, tp=8)["violations"]
    assert broken["remedy"] == "use cp 1, or use cp_comm p2p or allgather"


def test_targets_have_some_of_them():
    able = {kind: set(priced(kind, zero=3)["expressible_by"]) for kind in KINDS}
    assert "torchtitan" in able["p2p"] & able["allgather"]
    assert "torchtitan" not in able["a2a"]
    assert "torchrun" in able["a2a"]
    (broken,) = priced("a2a", framework="torchtitan")["violations"]
    assert broken["rule"] == "torchtitan-cp-comm"
    assert broken["remedy"] == "use cp_comm p2p"


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_priced_again_alike(kind, tmp_path):
    record = priced(kind)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(record))
    assert estimate_plan(path).to_dict() == record


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_holds_the_exchange(kind):
    search = SearchOptions(fix={"cp_comm": kind, "cp": "4"}, top=3, effort="scan")
    made = plan("llama3.1-8b", "dgx-h100:2", seq_len=SEQ, global_batch=8, search=search).to_dict()
    assert made["search"]["space"]["cp_comm"] == [kind]
    assert {found["parallel"]["cp_comm"] for found in made["plans"]} == {kind}
    best = made["plans"][0]
    again = estimate_plan(made, rank=1).to_dict()
    assert again["predicted"] == best["predicted"]


@pytest.mark.parametrize("kind", ["ring", "a2a+p2p", ""])
def test_other_words_are_refused(kind):
    with pytest.raises(ShardwrightError) as caught:
        priced(kind)
    assert caught.value.where == "--cp-comm"
    assert "a2a" in caught.value.hint + caught.value.message
