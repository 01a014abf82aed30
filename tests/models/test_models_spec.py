"""The spec: round trip, defaults, and what it refuses."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_configs import outcome

from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.models.catalog import load_model, model_from_dict, model_ids
from shardwright.models.schema import ModelRecord
from shardwright.models.spec import RANGES, MlaSpec, ModelSpec, MoeSpec, ScanSpec

SIZES = {"name": "m", "layers": 4, "hidden": 64, "heads": 8, "vocab": 512, "ffn": 128}
MOE = {"experts": 8, "topk": 2, "expert_ffn": 32}
MLA = {"kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "v_dim": 8}


@pytest.mark.parametrize("name", model_ids())
def test_round_trip_through_json(name):
    model = load_model(name)
    again = model_from_dict(json.loads(json.dumps(model.spec.to_dict())))
    assert again.spec == model.spec
    assert again == model
    assert again.digest == model.digest


@pytest.mark.parametrize("name", model_ids())
def test_presets_satisfy_the_schema_and_name_their_source(name):
    spec = load_model(name).spec
    assert spec.name == name
    assert spec.source.startswith("https://")
    assert ModelRecord.model_validate(spec.to_dict()).name == name


def test_the_schema_has_the_fields_and_defaults_of_the_spec():
    spec = ModelSpec.from_dict({**SIZES, "moe": {**MOE, "dense_layers": [0]}})
    record = ModelRecord.model_validate({**SIZES, "moe": {**MOE, "dense_layers": [0]}}).model_dump()
    made = spec.to_dict()
    assert record.keys() == made.keys()
    assert record["moe"] == made["moe"]
    assert {k: v for k, v in record.items() if k not in {"kv_heads", "head_dim"}} == {
        k: v for k, v in made.items() if k not in {"kv_heads", "head_dim"}
    }
    assert ModelRecord.model_json_schema()["properties"]["layers"]["maximum"] == 10_000


def test_what_is_left_out_is_derived():
    spec = ModelSpec.from_dict(SIZES)
    assert (spec.kv_heads, spec.head_dim, spec.windows) == (8, 8, (None,))
    latent = ModelSpec.from_dict({**SIZES, "mla": MLA})
    assert (latent.kv_heads, latent.head_dim) == (8, 12)


def test_windows_are_kept_as_one_period():
    assert ModelSpec.from_dict({**SIZES, "windows": [8, None, 8, None]}).windows == (8, None)
    assert ModelSpec.from_dict({**SIZES, "windows": [8, None, 8]}).windows == (8, None, 8)
    assert ModelSpec.from_dict({**SIZES, "windows": [8, 8]}).windows == (8,)


@given(pattern=st.lists(st.sampled_from([None, 1, 2]), min_size=1, max_size=12), layers=st.integers(12, 30))
def test_a_period_says_the_same(pattern, layers):
    spec = ModelSpec.from_dict({**SIZES, "layers": layers, "windows": pattern})
    assert [spec.window_of(i) for i in range(layers)] == [pattern[i % len(pattern)] for i in range(layers)]
    assert len(spec.windows) <= len(pattern)


REFUSED = [
    ({"layers": 0}, InvalidValueError, "layers"),
    ({"layers": 10_001}, InvalidValueError, "layers"),
    ({"layers": True}, InvalidValueError, "layers"),
    ({"layers": 4.0}, InvalidValueError, "layers"),
    ({"layers": None}, InvalidValueError, "layers"),
    ({"hidden": -64}, InvalidValueError, "hidden"),
    ({"hidden": 1_000_001}, InvalidValueError, "hidden"),
    ({"hidden": "64"}, InvalidValueError, "hidden"),
    ({"hidden": 10**4000}, InvalidValueError, "hidden"),
    ({"heads": 7}, ConflictError, "heads"),
    ({"kv_heads": 3}, ConflictError, "kv_heads"),
    ({"kv_heads": 16}, ConflictError, "kv_heads"),
    ({"head_dim": 0}, InvalidValueError, "head_dim"),
    ({"ffn": None}, InvalidValueError, "ffn"),
    ({"hiden": 64}, UnknownNameError, "hiden"),
    ({"name": ""}, InvalidValueError, "name"),
    ({"name": 3}, InvalidValueError, "name"),
    ({"positions": "learned"}, InvalidValueError, "max_positions"),
    ({"positions": "sinusoidal"}, InvalidValueError, "positions"),
    ({"activation": ["gelu"]}, InvalidValueError, "activation"),
    ({"windows": []}, InvalidValueError, "windows"),
    ({"windows": [0]}, InvalidValueError, "windows"),
    ({"windows": [1, 2, 3, 4, 5]}, ConflictError, "windows"),
    ({"layers": 20, "windows": list(range(1, 18))}, InvalidValueError, "windows"),
    ({"windows": 4096}, InvalidValueError, "windows"),
    ({"qkv_bias": 1}, InvalidValueError, "qkv_bias"),
    ({"notes": [1]}, InvalidValueError, "notes"),
    ({"moe": [1]}, InvalidValueError, "moe"),
    ({"moe": {"experts": 8, "topk": 2}}, InvalidValueError, "moe.expert_ffn"),
    ({"moe": {**MOE, "topk": 9}}, ConflictError, "moe.topk"),
    ({"moe": {**MOE, "topk": 0}}, InvalidValueError, "moe.topk"),
    ({"moe": {**MOE, "dense_layers": [4]}}, ConflictError, "moe.dense_layers"),
    ({"moe": {**MOE, "dense_layers": [1, 1]}}, InvalidValueError, "moe.dense_layers"),
    ({"moe": {**MOE, "dense_layers": ["0"]}}, InvalidValueError, "moe.dense_layers"),
    ({"moe": {**MOE, "groups": 3}}, ConflictError, "moe.groups"),
    ({"moe": {**MOE, "groups": 2, "topk_groups": 3}}, ConflictError, "moe.topk_groups"),
    ({"moe": {**MOE, "expert": 8}}, UnknownNameError, "moe.expert"),
    ({"mla": {**MLA, "kv_rank": None}}, InvalidValueError, "mla.kv_rank"),
    ({"mla": MLA, "kv_heads": 2}, ConflictError, "kv_heads"),
    ({"mla": MLA, "head_dim": 8}, ConflictError, "head_dim"),
    ({"mla": MLA, "positions": "none"}, ConflictError, "positions"),
    ({"mla": MLA, "qk_norm": "head"}, ConflictError, "qk_norm"),
]


@pytest.mark.parametrize(("change", "error", "where"), REFUSED, ids=[str(list(c.items()))[:60] for c, _, _ in REFUSED])
def test_refuses(change, error, where):
    with pytest.raises(error) as caught:
        ModelSpec.from_dict({**SIZES, **change})
    assert caught.value.where == where
    assert where.rsplit(".", maxsplit=1)[-1] in caught.value.message
    assert len(caught.value.message) < 200


def test_a_missing_size_is_named():
    with pytest.raises(InvalidValueError, match="vocab is missing"):
        ModelSpec.from_dict({key: value for key, value in SIZES.items() if key != "vocab"})


@pytest.mark.parametrize("data", [None, [], [1], "llama", {1: 2}])
def test_what_is_no_mapping_is_refused(data):
    with pytest.raises(InvalidValueError):
        ModelSpec.from_dict(data)


def test_experts_in_all_layers_need_no_dense_width():
    spec = ModelSpec.from_dict({**SIZES, "ffn": None, "moe": MOE})
    assert spec.is_moe(0)
    with pytest.raises(InvalidValueError, match="ffn is missing"):
        ModelSpec.from_dict({**SIZES, "ffn": None, "moe": {**MOE, "dense_layers": [2]}})


def test_records_check_themselves_however_they_are_made():
    with pytest.raises(ConflictError):
        MoeSpec(experts=2, topk=3, expert_ffn=8)
    with pytest.raises(InvalidValueError):
        MlaSpec(kv_rank=0, nope_dim=8, rope_dim=8, v_dim=8)
    assert MoeSpec(experts=4, topk=1, expert_ffn=8, dense_layers=(3, 1)).dense_layers == (1, 3)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-1, 9), max_size=3),
    st.just({}),
)


@given(key=st.sampled_from([*ModelSpec.__dataclass_fields__, "other"]), value=ANYTHING)
def test_any_value_gives_a_spec_or_our_error(key, value):
    made = outcome(ModelSpec.from_dict, {**SIZES, key: value})
    if isinstance(made, ShardwrightError):
        assert made.where
    else:
        assert ModelSpec.from_dict(made.to_dict()) == made


def test_ranges_are_of_fields():
    names = {name for record in (ModelSpec, MoeSpec, MlaSpec, ScanSpec) for name in record.__dataclass_fields__}
    assert set(RANGES) - names == {"window", "dense_layer"}


@pytest.mark.parametrize("name", ["", " ", "x" * 201, 7])
def test_what_is_no_name(name):
    data = ModelSpec.from_dict(SIZES).to_dict()
    with pytest.raises(InvalidValueError, match="name"):
        ModelSpec.from_dict(data | {"name": name})
