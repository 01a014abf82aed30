"""A loss in pieces: bytes by hand, what it costs, what is legal, what comes back from a file."""

import json

import pytest

from shardwright.errors import ShardwrightError
from shardwright.planner.estimation import estimate, estimate_degrees, estimate_plan
from shardwright.planner.explanation.neighbours import changes
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan

SEQ, VOCAB, HIDDEN = 8192, 128_256, 4096
"""Of llama3.1-8b, and the sequence of these tests."""

TITAN_BYTES = 14
"""Bytes a logit at the peak of an eager cross entropy in fp32 (stack torchtitan)."""


def priced(pieces=1, *, model="llama3.1-8b", framework="torchtitan", version=None, stack=None, freeze=(), **degrees):
    options = PricingOptions(framework=framework, target_version=version, stack=stack, freeze=freeze)
    chosen = Degrees(loss_chunks=pieces, **degrees)
    return estimate(model, "dgx-h100:2", seq_len=SEQ, global_batch=64, degrees=chosen, options=options).to_dict()


def memory(record):
    return record["stages"][-1]["memory"]


@pytest.mark.parametrize("pieces", [2, 4, 8, 64])
@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_the_logits_of_one_piece_are_there(pieces, tp, cp):
    whole = priced(tp=tp, cp=cp, recompute="full")
    cut = priced(pieces, tp=tp, cp=cp, recompute="full")
    logits = SEQ // cp * VOCAB // tp * TITAN_BYTES
    assert memory(whole)["logits_bytes"] == logits
    assert memory(cut)["logits_bytes"] in {logits // pieces, 0}
    assert memory(cut)["total_bytes"] < memory(whole)["total_bytes"]


def test_what_the_pieces_add_up_stands_beside_their_logits():
    whole, cut = priced(recompute="full"), priced(2, recompute="full")
    added = memory(cut)["buffers_bytes"] - memory(whole)["buffers_bytes"]
    assert added == VOCAB * HIDDEN * 2 + SEQ * HIDDEN * 4


def test_a_frozen_head_has_no_gradient_to_add_up():
    rest = {"recompute": "full", "freeze": ("head",)}
    whole, cut = priced(**rest), priced(2, **rest)
    assert memory(cut)["buffers_bytes"] - memory(whole)["buffers_bytes"] == SEQ * HIDDEN * 4


def test_a_schedule_that_keeps_all_logits_has_none_of_them_left():
    degrees = {"pp": 2, "schedule": "gpipe", "framework": "pytorch", "stack": "torchtitan"}
    whole, cut = priced(**degrees), priced(4, **degrees)
    count = whole["parallel"]["micro_batches"]
    assert count > 1
    assert memory(whole)["logits_bytes"] == count * SEQ * VOCAB * TITAN_BYTES
    assert memory(cut)["logits_bytes"] == SEQ * VOCAB * TITAN_BYTES // 4


def test_pieces_cost_time():
    steps = [priced(pieces)["predicted"]["step_time_s"] for pieces in (1, 8, 64, 512)]
    assert steps == sorted(steps)
    assert steps[0] < steps[1] < 1.02 * steps[0]


def test_the_backward_pass_of_the_head_is_over_when_the_forward_pass_ends():
    whole, cut = (priced(pieces, pp=2, recompute="none")["stages"][-1]["time"] for pieces in (1, 2))
    assert cut["forward_s"] > whole["forward_s"]
    assert cut["backward_s"] < whole["backward_s"]
    assert sum(cut.values()) == pytest.approx(sum(whole.values()), rel=0.02)


def test_full_recomputing_does_not_run_a_cut_loss_of_further_tokens_again():
    model = "deepseek-v3"
    record = {n: priced(n, model=model, framework="any", recompute="full") for n in (1, 2)}
    times = [record[n]["stages"][-1]["time"] for n in (1, 2)]
    assert sum(times[1].values()) == pytest.approx(sum(times[0].values()), rel=0.02)


def test_more_pieces_than_tokens_are_refused():
    assert "loss-chunks" not in [v["rule"] for v in priced(SEQ, framework="any")["violations"]]
    (broken,) = (v for v in priced(2 * SEQ, framework="any")["violations"] if v["rule"] == "loss-chunks")
    assert broken["message"] == "16,384 pieces of the 8,192 tokens a rank has of a micro-batch"
    assert broken["remedy"] == "use loss_chunks 8192"


def test_targets_that_cut_the_loss():
    assert priced(8, framework="any", zero=3)["expressible_by"] == ["torchrun", "torchtitan"]
    for framework, version in (("megatron", None), ("megatron", "0.14"), ("deepspeed", None), ("torchtitan", "0.2")):
        (broken,) = (v for v in priced(8, framework=framework, version=version)["violations"] if v["rule"] != "memory")
        assert broken["rule"] in {"whole-loss", "torchtitan-whole-loss"}
        assert broken["remedy"] == "use loss_chunks 1"
    assert priced(8, version="0.3")["violations"] == []


def test_the_pytorch_package_cuts_it_where_nothing_divides_the_model():
    assert priced(8, framework="pytorch")["violations"] == []
    (broken,) = priced(8, framework="pytorch", pp=2)["violations"]
    assert broken["rule"] == "torch-loss-chunks"
    assert broken["remedy"] == "use loss_chunks 1"


def test_torchtitan_cuts_a_sequence_evenly():
    (broken,) = priced(7)["violations"]
    assert broken["rule"] == "torchtitan-loss-chunks"
    assert broken["remedy"] == "use loss_chunks 8"


@pytest.mark.parametrize("pieces", [0, -1, 10**8, True])
def test_other_numbers_are_refused(pieces):
    with pytest.raises(ShardwrightError) as caught:
        priced(pieces)
    assert caught.value.where == "--loss-chunks"


def test_a_file_is_priced_again_alike(tmp_path):
    record = priced(8)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(record))
    assert record["parallel"]["loss_chunks"] == 8
    assert estimate_plan(path).to_dict() == record


def test_a_search_holds_the_pieces():
    job = {"seq_len": SEQ, "global_batch": 64, "options": PricingOptions(framework="torchtitan")}
    plain = plan("llama3.1-8b", "dgx-h100:2", **job, search=SearchOptions(top=3, effort="scan")).to_dict()
    assert plain["search"]["space"]["loss_chunks"] == [1]
    search = SearchOptions(fix={"loss_chunks": "8"}, top=3, effort="scan")
    made = plan("llama3.1-8b", "dgx-h100:2", **job, search=search).to_dict()
    assert made["search"]["space"]["loss_chunks"] == [8]
    assert {found["parallel"]["loss_chunks"] for found in made["plans"]} == {8}
    assert made["search"]["candidates"] == plain["search"]["candidates"]
    again = estimate_plan(made, rank=1).to_dict()
    assert again["predicted"] == made["plans"][0]["predicted"]


@pytest.mark.parametrize(("framework", "cuts"), [("torchtitan", True), ("pytorch", True), ("megatron", False), ("any", False)])
def test_pieces_are_a_knob_where_the_framework_cuts_losses(framework, cuts):
    options = PricingOptions(framework=framework)
    problem = build_problem("qwen3-8b", "dgx-h100:1", seq_len=32_768, global_batch=64, options=options)
    record = estimate_degrees(problem, Degrees(recompute="full", zero=3))
    found = [change for change in changes(problem, record) if "loss_chunks" in change["turned"]]
    assert bool(found) == cuts
    assert all(change["delta_bytes"] < 0 for change in found)
