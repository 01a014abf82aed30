"""`size` on the command line: its answers, exit codes, what it refuses."""

import pytest

JOB = ("--seq-len", 4096, "--global-batch", 64)
ASK = ("size", "llama3.1-8b", *JOB, "--node", "dgx-h100", "--nodes", "1,2,4")


def test_answers_in_json(shardwright):
    done = shardwright(*ASK, "--tokens", "10B", "--days", 3, "--format", "json")
    assert done.code == 0
    data = done.json
    assert data["kind"] == "size-result"
    assert [answer["criterion"] for answer in data["answers"]] == ["smallest", "cheapest", "fastest"]


def test_the_table_says_days_money_and_lost_nodes(shardwright):
    done = shardwright(*ASK, "--tokens", "10B", "--days", 3)
    for words in ("smallest", "cheapest", "fastest", "interruptions", "checkpoint", "1 node lost", "USD a GPU-hour"):
        assert words in done.out, words


def test_without_an_answer_the_code_is_one(shardwright):
    done = shardwright(*ASK, "--tokens", "10T", "--budget", 10)
    assert done.code == 1
    assert "No size meets the target" in done.out


def test_csv_has_a_row_a_size(shardwright):
    done = shardwright(*ASK, "--tokens", "10B", "--days", 3, "--format", "csv")
    assert done.out.splitlines()[0].startswith("node,nodes,gpus,status")
    assert len(done.out.splitlines()) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        (*ASK, "--tokens", "10B"),
        (*ASK, "--tokens", "10B", "--days", 3, "--budget", 5),
        (*ASK, "--tokens", "10B", "--days", 0),
        (*ASK, "--tokens", "many", "--days", 3),
        (*ASK, "--days", 3),
        (*ASK, "--tokens", "10B", "--days", 3, "--node", "dgx-b200"),
        (*ASK, "--tokens", "10B", "--days", 3, "--node", "dgx-h1000"),
        (*ASK, "--tokens", "10B", "--days", 3, "--price", "dgx-a100-80g=1"),
        (*ASK, "--tokens", "10B", "--days", 3, "--spare", -1),
        (*ASK, "--tokens", "10B", "--days", 3, "--effort", "most"),
        ("size", "llama3.1-8b", *JOB, "--tokens", "10B", "--days", 3, "--nodes", "8..4x2"),
        ("size", "llama3.1-8b", *JOB, "--tokens", "10B", "--days", 3, "--nodes", "0"),
    ],
)
def test_refused(shardwright, wrong):
    done = shardwright(*wrong)
    assert done.code == 2
    assert done.out == ""
    assert "error:" in done.err


def test_an_estimate_says_its_objective_first(shardwright):
    job = ("llama3.1-8b", "--cluster", "dgx-h100:1", "--seq-len", 4096, "--global-batch", 64, "--tp", 2)
    for objective, words in (("cost", "cost: 0."), ("energy", "energy: 0."), ("goodput", "goodput: ")):
        assert words in shardwright("estimate", *job, "--objective", objective).out
    priced = shardwright("estimate", *job, "--objective", "cost", "--price", "dgx-h100=30", "--format", "json").json
    usual = shardwright("estimate", *job, "--format", "json").json
    assert priced["predicted"]["usd_per_1m_tokens"] == pytest.approx(10 * usual["predicted"]["usd_per_1m_tokens"])
    assert priced["inputs"]["search"]["objective"] == "cost"


def test_prices_of_a_file(shardwright, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("dgx-h100: 6\ndgx-b200: 5.5\n", encoding="utf-8")
    data = shardwright(*ASK, "--tokens", "10B", "--days", 3, "--price", prices, "--format", "json").json
    assert {answer["cluster"]["usd_per_gpu_hour"] for answer in data["answers"]} == {6.0}
    assert {answer["cluster"]["price_source"] for answer in data["answers"]} == {"given in prices.yaml"}


def test_a_reserved_price_of_the_table(shardwright):
    job = ("llama3.1-8b", "--cluster", "p5.48xlarge:1", "--seq-len", 4096, "--global-batch", 64, "--format", "json")
    found = [shardwright("estimate", *job, *more).json for more in ((), ("--price", "p5.48xlarge=reserved-1-year"))]
    assert found[1]["predicted"]["usd_per_1m_tokens"] < 0.66 * found[0]["predicted"]["usd_per_1m_tokens"]
