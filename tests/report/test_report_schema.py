"""Published JSON Schemas, and reading results back whatever became of the file."""

import contextlib
import copy
import io
import json

import jsonschema
import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError, UnknownNameError, UnsupportedError
from shardwright.planner.report.output import json_text
from shardwright.planner.schema import json_schema, read_plan, read_result, schema_names

SAMPLES = {
    "plan": ("plan-result", samples.plan_result),
    "nothing-fits": ("plan-result", samples.nothing_fits),
    "estimate": ("estimate", samples.estimate),
    "infeasible": ("estimate", samples.infeasible),
    "unpriced": ("estimate", samples.unpriced),
    "validation": ("validation", samples.validation),
}


def validator(name):
    return jsonschema.Draft202012Validator(json_schema(name))


@pytest.mark.parametrize("name", schema_names())
def test_schemas_are_schemas(name):
    jsonschema.Draft202012Validator.check_schema(json_schema(name))


@pytest.mark.parametrize("name", SAMPLES)
def test_results_keep_to_their_schema(name):
    kind, make = SAMPLES[name]
    validator(kind).validate(json.loads(json_text(make())))


@pytest.mark.parametrize("name", SAMPLES)
def test_every_key_is_declared_and_required(name):
    kind, make = SAMPLES[name]
    check = validator(kind)
    data = json.loads(json_text(make()))
    assert not check.is_valid({**data, "surprise": 1})
    for key in data:
        assert not check.is_valid({k: v for k, v in data.items() if k != key}), key


def test_a_schema_that_does_not_exist():
    with pytest.raises(UnknownNameError) as caught:
        json_schema("plan-reslt")
    assert caught.value.hint.startswith("did you mean plan-result")


@pytest.fixture
def saved(tmp_path):
    def write(data, name="result.json"):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json_text(data), encoding="utf-8")
        return path

    return write


def test_reads_a_result_an_estimate_and_a_mapping(saved):
    inputs, plan = read_plan(saved(samples.plan_result()), 3)
    assert inputs["stack"] == "megatron-core"
    assert plan["rank"] == 3
    _, plan = read_plan(saved(samples.estimate()))
    assert plan["parallel"]["tp"] == 4
    assert read_plan(samples.plan_result(), 2)[1]["rank"] == 2


def test_reads_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(json_text(samples.estimate())))
    assert read_result("-")["kind"] == "estimate"


@pytest.mark.parametrize(("rank", "hint"), [(4, "it has 1 to 3"), (0, "it has 1 to 3"), (-1, "it has 1 to 3")])
def test_ranks_that_are_not_there(saved, rank, hint):
    with pytest.raises(InvalidValueError) as caught:
        read_plan(saved(samples.plan_result()), rank)
    assert caught.value.where == "--rank"
    assert caught.value.hint == hint


def test_an_estimate_has_one_rank(saved):
    with pytest.raises(InvalidValueError, match="no rank 2"):
        read_plan(saved(samples.estimate()), 2)


def test_nothing_fitted(saved):
    with pytest.raises(InvalidValueError, match="nothing fitted"):
        read_plan(saved(samples.nothing_fits()))


def test_a_plan_without_price_is_no_plan(saved):
    with pytest.raises(InvalidValueError, match="cannot be priced"):
        read_plan(saved(samples.unpriced()))


DAMAGES = {
    "cut off": (DamagedFileError, lambda text: text[: len(text) // 2]),
    "empty": (DamagedFileError, lambda _: ""),
    "a list": (DamagedFileError, lambda _: "[]"),
    "no kind": (DamagedFileError, lambda text: text.replace('"kind"', '"kinds"')),
    "other kind": (DamagedFileError, lambda text: text.replace("plan-result", "sweep-result")),
    "newer": (UnsupportedError, lambda text: text.replace('"schema_version": 1', '"schema_version": 2')),
    "no version": (UnsupportedError, lambda text: text.replace('"schema_version": 1,', "")),
    "unknown key": (UnknownNameError, lambda text: text.replace('"tp": 4', '"tp": 4, "tpp": 4')),
    "text for a number": (InvalidValueError, lambda text: text.replace('"tp": 4', '"tp": "4"')),
    "a negative degree": (InvalidValueError, lambda text: text.replace('"tp": 4', '"tp": -4')),
    "not a number": (InvalidValueError, lambda text: text.replace('"tp": 4', '"tp": NaN')),
    "key twice": (InvalidValueError, lambda text: text.replace('"tp": 4', '"tp": 4, "tp": 4')),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told_with_its_place(saved, name):
    kind, damage = DAMAGES[name]
    path = saved(damage(json_text(samples.plan_result())))
    with pytest.raises(kind) as caught:
        read_result(path)
    assert str(path) in caught.value.where
    assert caught.value.message


def test_the_place_of_a_wrong_value_has_line_and_keys(saved):
    path = saved(DAMAGES["text for a number"][1](json_text(samples.plan_result())))
    with pytest.raises(InvalidValueError) as caught:
        read_result(path)
    assert caught.value.where.endswith("plans.0.parallel.tp")
    line = int(caught.value.where.removeprefix(f"{path}:").partition(":")[0])
    assert '"tp": "4"' in path.read_text().splitlines()[line - 1]


@pytest.mark.parametrize("make", [lambda p: p, lambda p: p / "missing.json"])
def test_folders_without_result_and_missing_files(tmp_path, make):
    with pytest.raises(DamagedFileError):
        read_result(make(tmp_path))


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just([]) | st.just({})
)


def paths_of(data, path=()):
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from paths_of(value, (*path, key))


PATHS = list(paths_of(samples.estimate()))


@given(st.sampled_from(PATHS), LEAVES)
def test_any_single_change_is_read_or_refused_with_a_reason(path, value):
    data = copy.deepcopy(samples.estimate())
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with contextlib.suppress(ShardwrightError):
        assert read_plan(data)[1] == data
