"""Measured steps of a site: factors in the price, the fit, and what users state."""

import json
import math
from dataclasses import replace

import pytest

import shardwright
from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.hardware.site_factors import AS_MODELLED, PARTS, SiteFactors
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem, problem_from_inputs
from shardwright.planner.site.fitting import Observation, fit_site
from shardwright.planner.site.shrinkage import interval_share, site_shift
from shardwright.planner.site.stated import at_site, priced

JOBS = [
    ("llama3.1-8b", "dgx-h100:2", 8192, 64, Degrees(tp=2), {}),
    ("llama3.1-70b", "dgx-h100:8", 8192, 128, Degrees(tp=8, pp=4, vpp=2, recompute="selective"), {}),
    ("mixtral-8x7b", "dgx-h100:4", 4096, 128, Degrees(tp=2, ep=8, etp=1, pp=2), {"precision": "fp8-blockwise"}),
    ("llama3.1-8b", "dgx-a100-80g:4", 32768, 32, Degrees(cp=4, zero=3), {"framework": "pytorch"}),
    ("gpt2", "dgx-a100-80g:1", 1024, 64, Degrees(), {"framework": "torchtitan"}),
]


def problem_of(job):
    model, cluster, seq_len, batch, degrees, options = job
    return build_problem(model, cluster, seq_len=seq_len, global_batch=batch, options=PricingOptions(**options)), degrees


def step_s(problem, degrees):
    return estimate_degrees(problem, degrees)["predicted"]["step_time_s"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job[0]}-{job[1]}")
def test_one_factor_for_all_parts_scales_the_step(job):
    problem, degrees = problem_of(job)
    plain, slow = estimate_degrees(problem, degrees), estimate_degrees(at_site(problem, SiteFactors.uniform(1.3)), degrees)
    assert slow["predicted"]["step_time_s"] == pytest.approx(1.3 * plain["predicted"]["step_time_s"], rel=1e-9)
    assert slow["memory"] == plain["memory"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job[0]}-{job[1]}")
def test_no_part_that_gets_slower_makes_a_step_faster(job, part):
    problem, degrees = problem_of(job)
    times = [step_s(at_site(problem, replace(AS_MODELLED, **{part: factor})), degrees) for factor in (0.7, 1.0, 1.5)]
    assert times == sorted(times)
    assert times[2] > times[0] or part != "device"


def test_exchange_between_nodes_is_a_part_of_its_own():
    problem, degrees = problem_of(JOBS[0])
    inside, outside = (
        step_s(at_site(problem, replace(AS_MODELLED, **{part: 3.0})), degrees) for part in ("scaleup", "scaleout")
    )
    assert step_s(problem, degrees) < min(inside, outside)
    one_node = build_problem("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64)
    assert step_s(at_site(one_node, replace(AS_MODELLED, scaleout=3.0)), degrees) == step_s(one_node, degrees)


# --- the fit -----------------------------------------------------------------------------------------


def runs_of(truth):
    made = []
    for number, job in enumerate(JOBS[:3]):
        for batch in (job[3], 4 * job[3]):
            problem, degrees = problem_of((*job[:3], batch, *job[4:]))
            price = priced(problem, degrees, f"run {number}")
            made.append(Observation(id=f"run {number}", measured_s=price(truth), price=price))
    return made


def test_one_run_gives_one_factor_and_is_not_believed_whole():
    run = runs_of(SiteFactors.uniform(1.2))[0]
    factors = fit_site([run])
    assert len({getattr(factors, part) for part in PARTS}) == 1
    assert 1.0 < factors.device < 1.2
    assert factors.device == pytest.approx(math.exp(-site_shift(1 / 1.2 - 1)))
    assert factors.runs[0].before_step_time_s < factors.runs[0].after_step_time_s < run.measured_s


@pytest.mark.parametrize(
    ("truth", "slow"),
    [
        (SiteFactors(device=1.25), "device"),
        (SiteFactors(scaleout=1.6), "scaleout"),
        (SiteFactors.uniform(0.9), None),
    ],
)
def test_several_runs_find_the_part_that_differs(truth, slow):
    runs = runs_of(truth)
    factors = fit_site(runs)
    before = [abs(r.before_step_time_s / r.measured_step_time_s - 1) for r in factors.runs]
    after = [abs(r.after_step_time_s / r.measured_step_time_s - 1) for r in factors.runs]
    assert max(after) < 0.6 * max(before)
    if slow is not None:
        assert max(PARTS, key=lambda part: getattr(factors, part)) == slow


def test_a_run_that_is_odd_does_not_drag_the_others_along():
    runs = runs_of(SiteFactors.uniform(1.05))
    odd = replace(runs[0], measured_s=6 * runs[0].measured_s)
    factors = fit_site([odd, *runs[1:]])
    assert 0.95 < factors.device < 1.25
    assert [r.odd for r in factors.runs] == [True] + [False] * (len(runs) - 1)


def test_intervals_narrow_with_every_run():
    shares = [interval_share(n) for n in (0, 1, 2, 8)]
    assert shares[0] == pytest.approx(1.0)
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] > 0.6


# --- what is stated beside a job ---------------------------------------------------------------------


def estimated(measured=(), **more):
    options = PricingOptions(measured=tuple(measured), **more)
    return shardwright.estimate(
        "llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, degrees=Degrees(tp=4), options=options
    ).to_dict()


def test_a_slow_run_makes_every_plan_slower_and_says_so():
    plain, slow = estimated(), estimated(["tp=2,step_time_s=8.1"])
    factor = slow["predicted"]["step_time_s"] / plain["predicted"]["step_time_s"]
    assert 1.05 < factor < 8.1 / 6.7
    width = [r["predicted"]["step_time_high_s"] / r["predicted"]["step_time_s"] - 1 for r in (plain, slow)]
    assert width[1] < width[0]
    lines = {a["key"]: a for a in slow["assumptions"]}
    assert "8.1 s measured" in lines["measured[1]"]["value"]
    assert lines["calibration.site.device"]["origin"] == "inferred"
    assert lines["calibration.site.device"]["value"] == pytest.approx(factor)
    assert slow["sources"]["site"]["origin"] == "measured"


def test_measures_mean_the_same_step():
    tokens = 64 * 8192
    by_time = estimated(["tp=2,step_time_s=8.0"])
    by_rate = estimated([f"tp=2,tokens_per_s_per_gpu={tokens / 8.0 / 8!r}"])
    flops = build_problem("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64).job.flops_per_token("full") * tokens
    by_mfu = estimated([f"tp=2,mfu={flops / 8.0 / 8 / 989e12!r}"])
    assert by_rate["predicted"] == by_time["predicted"]
    assert by_mfu["predicted"]["step_time_s"] == pytest.approx(by_time["predicted"]["step_time_s"], rel=1e-6)


def test_another_job_of_the_site_counts_too():
    other = "model=llama3-8b,seq_len=4096,global_batch=32,gpus=4,tp=4,precision=fp8-tensorwise,recompute=full,step_time_s=2.5"
    assert estimated([other])["predicted"]["step_time_s"] != estimated()["predicted"]["step_time_s"]


def test_a_calibrated_result_is_priced_again_from_itself():
    first = estimated(["tp=2,step_time_s=8.1"])
    again = shardwright.estimate_plan(first).to_dict()
    assert again["predicted"] == first["predicted"]
    problem = problem_from_inputs(json.loads(json.dumps(first["inputs"])))
    assert problem.site.runs[0].measured_step_time_s == 8.1


def test_a_search_ranks_with_what_was_measured():
    def found(*measured):
        options = PricingOptions(measured=measured)
        return shardwright.plan("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, options=options).to_dict()

    plain, slow = found(), found("tp=2,step_time_s=8.1")
    assert slow["search"]["best_step_time_s"] > 1.05 * plain["search"]["best_step_time_s"]


@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        ("tp=2", InvalidValueError, "states no speed"),
        ("", InvalidValueError, "no KEY=VALUE"),
        ("tp=2,step_time_s=3,mfu=0.4", InvalidValueError, "step_time_s and mfu"),
        ("tp=2,tp=4,mfu=0.4", ConflictError, "twice"),
        ("tq=2,mfu=0.4", UnknownNameError, "tq"),
        ("tp=two,mfu=0.4", InvalidValueError, "no number"),
        ("tp=2,mfu=40", InvalidValueError, "out of range"),
        ("tp=2,step_time_s=nan", InvalidValueError, "out of range"),
        ("tp=2,step_time_s=-1", InvalidValueError, "out of range"),
        ("tp=3,step_time_s=2", InvalidValueError, "32 attention heads"),
        ("sequence_parallel=perhaps,step_time_s=2", InvalidValueError, "perhaps"),
        ("model=no-such-model,step_time_s=2", UnknownNameError, "no-such-model"),
    ],
)
def test_statements_that_cannot_be_used(statement, error, said):
    with pytest.raises(error, match=said) as caught:
        estimated([statement])
    assert caught.value.exit_code == 2
    assert caught.value.where.startswith("--measured")


def test_a_run_far_from_the_model_is_named():
    assert any("was it this plan" in line for line in estimated(["tp=2,step_time_s=900"])["warnings"])
    assert not any("was it this plan" in line for line in estimated(["tp=2,step_time_s=7"])["warnings"])


# --- runs of a file ----------------------------------------------------------------------------------

HEAD = "id,source_group,model,node,gpus,seq_len,global_batch,micro_batch,tp,pp,precision,zero_or_fsdp,recompute,framework"
ROWS = [
    "a,mine,llama3.1-8b,dgx-h100,8,8192,128,1,2,1,BF16,ZeRO-1,selective,Megatron-Core,17.4",
    "b,mine,llama3.1-8b,dgx-h100,16,8192,128,1,2,1,BF16,ZeRO-1,selective,Megatron-Core,9.1",
    "c,mine,llama3.1-70b,dgx-h100,64,8192,128,1,8,2,BF16,ZeRO-1,selective,Megatron-Core,19.5",
]


def runs_file(tmp_path, rows):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([f"{HEAD},step_time_s", *rows]) + "\n", encoding="utf-8")
    return str(path)


def command(capsys, *arguments):
    from shardwright.cli import run

    code = run(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_runs_of_a_file_become_a_calibration_that_plans_take(tmp_path, capsys):
    site = tmp_path / "site.json"
    code, out, err = command(capsys, "calibrate", "--from-runs", runs_file(tmp_path, ROWS), "-o", str(site), "--format", "json")
    assert code == 0, err
    document = json.loads(out)
    assert json.loads(site.read_text(encoding="utf-8")) == document
    assert [r["id"] for r in document["site"]["runs"]] == ["a", "b", "c"]
    assert document["site"]["device"] > 1.02
    code, out, err = command(
        capsys, "estimate", "llama3.1-8b", "--cluster", "dgx-h100:1", "--seq-len", "8192", "--global-batch", "64", "--tp", "2",
        "--calibration", str(site), "--format", "json",
    )  # fmt: skip
    assert code == 0, err
    calibrated = json.loads(out)["predicted"]["step_time_s"]
    plain = shardwright.estimate("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, degrees=Degrees(tp=2))
    assert calibrated > 1.02 * plain.to_dict()["predicted"]["step_time_s"]


def test_the_table_shows_runs_before_and_after(tmp_path, capsys):
    code, out, _ = command(capsys, "calibrate", "--from-runs", runs_file(tmp_path, ROWS), "-o", str(tmp_path / "s.json"))
    assert code == 0
    assert "with factors" in out
    assert "scaleout" in out


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "no run"),
        ([ROWS[0], ROWS[1].replace("dgx-h100", "dgx-a100-80g")], "one machine"),
        ([ROWS[0].replace("17.4", "")], "neither a time nor a memory"),
    ],
)
def test_files_of_runs_that_cannot_be_used(tmp_path, capsys, rows, said):
    code, out, err = command(capsys, "calibrate", "--from-runs", runs_file(tmp_path, rows), "-o", str(tmp_path / "s.json"))
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert not (tmp_path / "s.json").exists()


def test_a_calibration_of_steps_and_stated_runs_exclude_each_other(tmp_path, capsys):
    site = tmp_path / "site.json"
    assert command(capsys, "calibrate", "--from-runs", runs_file(tmp_path, ROWS), "-o", str(site))[0] == 0
    with pytest.raises(ShardwrightError, match="holds measured steps already"):
        estimated(["tp=2,step_time_s=8.1"], calibration=str(site))
