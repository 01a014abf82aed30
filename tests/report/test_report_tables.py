"""What people see: golden files of every table, at 80 columns."""

import csv
import io

import pytest
import report_samples as samples

from shardwright.documents import parse_yaml, rounded
from shardwright.planner.report.output import FORMATS, render
from shardwright.planner.report.style import Style

RESULTS = {
    "plan": samples.plan_result,
    "nothing-fits": samples.nothing_fits,
    "estimate": samples.estimate,
    "infeasible": samples.infeasible,
    "unpriced": samples.unpriced,
    "validation": samples.validation,
    "listing": lambda: {
        "kind": "devices",
        "items": [
            {
                "id": "a" * 30,
                "arch": "hopper",
                "bf16_flops": 989e12,
                "memory_bytes": 85_520_809_984,
                "memory_bytes_per_s": 3.35e12,
            },
            {
                "id": "b",
                "arch": "an-arch-with-a-long-name-that-wraps",
                "bf16_flops": None,
                "memory_bytes": 1,
                "memory_bytes_per_s": 1,
            },
        ],
    },
    "item": lambda: {
        "kind": "device",
        "item": {"id": "b", "peak_flops": {"bf16": 1e15}, "sources": ["one", "two"], "tdp_w": None},
    },
}


@pytest.mark.parametrize("name", RESULTS)
def test_table(name, snapshot):
    assert render(RESULTS[name](), "table", Style()) == snapshot


@pytest.mark.parametrize("name", RESULTS)
def test_tables_keep_to_80_columns_and_carry_no_escape_sequences(name):
    text = render(RESULTS[name](), "table", Style())
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert text.endswith("\n")


@pytest.mark.parametrize("name", RESULTS)
def test_tables_fall_back_to_ascii(name):
    text = render(RESULTS[name](), "table", Style(encoding="ascii"))
    assert text.isascii()
    assert "?" not in text


def test_bars_are_readable_in_ascii():
    text = render(samples.plan_result(), "table", Style(encoding="iso-8859-1"))
    assert "####." in text
    text.encode("iso-8859-1")


def test_the_widest_plans_still_fit_into_80_columns():
    result = samples.plan_result()
    for plan in result["plans"]:
        plan["parallel"] |= {"cp": 16, "vpp": 12, "pp": 16, "ep": 64, "tp": 64, "dp_replicate": 16, "dp_shard": 128}
        plan["parallel"]["schedule"] = "interleaved-1f1b"
        plan["predicted"]["tokens_per_s_per_gpu"] = 123_456.0
        plan["stages"] = [samples.stage(rank, [[16 * v + rank] * 2 for v in range(12)], "0") for rank in range(16)]
    lines = render(result, "table", Style()).splitlines()
    row = next(line for line in lines if "16×12" in line)
    assert " ".join(row.split()) == "1 1 64 16 16×12 64 16×128 1 1 inter none 12.00 s 123,456 43.6 50.7 ███░░░"
    assert len(row) <= 80


def test_colours_only_where_they_are_wanted():
    assert "\x1b[" in render(samples.infeasible(), "table", Style(colour=True))


@pytest.mark.parametrize("name", RESULTS)
def test_json_and_yaml_carry_the_same(name):
    data = RESULTS[name]()
    assert parse_yaml(render(data, "yaml", Style()), "out").data == rounded(data)


@pytest.mark.parametrize("form", FORMATS)
def test_formats_are_deterministic(form):
    assert render(samples.plan_result(), form, Style()) == render(samples.plan_result(), form, Style())


def rows_of(data):
    return list(csv.DictReader(io.StringIO(render(data, "csv", Style()))))


def test_csv_has_one_row_a_plan():
    rows = rows_of(samples.plan_result())
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    assert [row["tp"] for row in rows] == ["4", "8", "4"]
    assert rows[2]["recompute_mode"] == "full"
    assert rows[2]["recompute_layers"] == "4 4 4 4"
    assert rows[0]["usd_per_1m_tokens"] == ""
    assert float(rows[1]["step_time_s"]) == 12.05
    assert rows[0]["sequence_parallel"] == "true"


def test_csv_of_nothing_is_a_header():
    text = render(samples.nothing_fits(), "csv", Style())
    assert text.startswith("rank,tie_group,id,model")
    assert len(text.splitlines()) == 1


def test_csv_of_runs_and_of_an_estimate():
    assert [row["status"] for row in rows_of(samples.validation())].count("skipped") == 2
    assert rows_of(samples.infeasible())[0]["violations"] == "memory heads-divide"
    assert rows_of(samples.unpriced())[0]["feasible"] == "false"


def test_csv_cannot_smuggle_formulas():
    data = samples.validation()
    data["rows"][0]["id"] = "=1+2"
    assert rows_of(data)[0]["id"] == "'=1+2"


def test_near_misses_name_shortage_and_remedies():
    text = render(samples.nothing_fits(), "table", Style())
    assert "12.0" in text
    assert "recompute=full → fits, 17.1 s" in text
    assert "micro_batch=1 → still too large" in text


def test_the_account_shows_every_rule_that_rejected():
    text = render(samples.plan_result(), "table", Style())
    assert "no-effect 25,000; world-divides 20,000" in text
    assert "heads-divide" not in text
    assert "full 4" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"proven_optimal": True, "gap": 0.0}, "proven optimal"),
        ({"stopped": "time_limit"}, "stopped early: time limit"),
        ({"lower_bound_step_time_s": None, "gap": None}, "best 12.00 s"),
    ],
)
def test_the_bound_is_told(changes, said):
    result = samples.plan_result()
    result["search"] |= changes
    assert said in render(result, "table", Style())
