"""Reading documents: whatever the bytes, a `Document` or one of our errors with the place."""

import json
import os
from pathlib import Path

import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwright import documents
from shardwright.documents import Document, parse_json, parse_yaml, read_document, read_text
from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError, UnknownNameError

PARSERS = {"json": parse_json, "yaml": parse_yaml}

YAML_WORDS = [
    "a",
    "b",
    ": ",
    ":",
    "- ",
    "-",
    "\n",
    "  ",
    "\t",
    "[",
    "]",
    "{",
    "}",
    ",",
    "'",
    '"',
    "|",
    ">",
    "#",
    "&x",
    "*x",
    "!!str ",
]
YAML_ODDITIES = [
    "!t",
    "? ",
    "%YAML 1.1",
    "---",
    "...",
    "<<",
    "=",
    "1",
    "1e999",
    ".nan",
    "~",
    "0x1F",
    "1_0",
    "\\",
    "\0",
    "\ufeff",
    "é",
    "\r",
    "\x85",
]
YAML_PIECES = st.lists(st.sampled_from([*YAML_WORDS, *YAML_ODDITIES]), max_size=30).map("".join)


def mappings(max_codepoint: int = 0x10FFFF) -> st.SearchStrategy:
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-documents.MAX_INTEGER, documents.MAX_INTEGER)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=max_codepoint), max_size=20)
    )
    keys = st.text("abcXYZ019_-: #", min_size=1, max_size=8)
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
    )
    return st.dictionaries(keys, values, max_size=5)


MAPPINGS = mappings()
PAIRLESS = mappings(0xFFFF)  # JSON writes others as pairs of escapes, which YAML does not know


def holds_only_plain_values(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(k) is str and holds_only_plain_values(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(holds_only_plain_values, value))
    return type(value) in (str, int, float, bool, type(None))


def outcome(parse, *args) -> None:
    try:
        made = parse(*args)
    except ShardwrightError as error:
        refusal = error
    else:
        assert holds_only_plain_values(made.data)
        documents.canonical_json(made.data).encode()
        return
    assert refusal.message
    assert refusal.where


# --- any input ---------------------------------------------------------------------------------------


@given(st.binary(max_size=200), st.sampled_from([".json", ".yaml", ""]))
@example(b"\xff\xfe{\x00}\x00", ".json")
@example(b'{"a": "\\ud800"}', ".json")
@example(b"\x00", ".yaml")
@example(b'a: "\\ud800"', ".yaml")
def test_any_bytes_give_a_document_or_our_error(tmp_path_factory, raw, suffix):
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(raw)
    outcome(read_document, path)


@given(st.text(max_size=200) | YAML_PIECES)
@example("0x_")
@example("a: 0b")
@example("? [a]\n: 1")
@example("!!python/object/apply:os.system ['true']")
@example("%TAG ! x\n---\na: 1")
@example("%YAML 9.9\n---\na: 1")
@example("a: !<> b")
@example("a: '\\x'\n\tb: 1")
@example('a: "\\U00110000"')
def test_any_text_as_yaml(text):
    outcome(parse_yaml, text, "x.yaml")


@given(st.text(max_size=200) | st.text('{}[]",:0123456789.eE+-\\ntrufalsNI ', max_size=60))
@example("1" * 5000)
@example('{"a": ' + "9" * 5000 + "}")
@example('{"a": 1e999}')
def test_any_text_as_json(text):
    outcome(parse_json, text, "x.json")


# --- values come through unharmed --------------------------------------------------------------------


@given(MAPPINGS)
def test_json_round_trip(value):
    assert parse_json(json.dumps(value), "x").data == value


@given(MAPPINGS)
@example(
    {"a": "5e-6", "b": "no", "c": "0x1F", "d": "~", "e": "", "f": "1_000", "g": "2026-01-31", "h": "<<", "i": "=", "j": ".nan"}
)
@example({"a": "x\ny", "b": " x ", "c": "- x", "d": "#", "e": "'", "f": '"', "g": "a: b", "h": "!t", "i": "&a", "j": "*a"})
def test_yaml_round_trip(value):
    assert parse_yaml(documents.yaml_text(value), "x").data == value


@given(PAIRLESS)
def test_json_is_read_alike_as_yaml(value):
    text = json.dumps(value, indent=1)
    assert parse_yaml(text, "x").data == parse_json(text, "x").data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-6", 5e-6),
        ("1.5e9", 1.5e9),
        ("1.5E+9", 1.5e9),
        (".5", 0.5),
        ("-3.", -3.0),
        ("+7", 7),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("80_000", 80000),
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("nULL", "nULL"),
        ("'5e-6'", "5e-6"),
        ('"true"', "true"),
        ("1:30", "1:30"),
        ("1_", "1_"),
        ("2026-01-31", "2026-01-31"),
        ("1.2.3", "1.2.3"),
        ("0b11", "0b11"),
        ("a100-80g", "a100-80g"),
        ("8x", "8x"),
        ("-", None),
        ("<<", "<<"),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text, value):
    if text == "-":  # a list of one empty item
        value = [None]
        text = "\n  -"
    got = parse_yaml(f"a: {text}\n", "x").data["a"]
    assert got == value
    assert type(got) is type(value)


def test_integers_stay_exact_and_floats_stay_floats():
    data = parse_yaml("a: 9007199254740993\nb: 1.0", "x").data
    assert data == {"a": 9007199254740993, "b": 1.0}
    assert type(data["b"]) is float


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_byte_order_mark_and_windows_line_ends(tmp_path: Path, suffix: str):
    path = tmp_path / f"bom{suffix}"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1,\r\n "b": 2}\r\n')
    document = read_document(path)
    assert document.data == {"a": 1, "b": 2}
    assert document.place("b") == f"{path}:2: b"
    assert PARSERS[suffix[1:]]("\ufeff" + '{"a": 1}', "x").data == {"a": 1}


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a: 1\nb: !!python/object/apply:os.system ['touch /tmp/x']", 2, "tag"),
        ("a: !!binary aGk=", 1, "tag"),
        ("!!map {a: 1}", 1, "tag"),
        ("a: &x 1\nb: 2", 1, "anchor"),
        ("a: 1\nb: *x", 2, "alias"),
        ("a: 1\n---\nb: 2", 2, "more than one"),
        ("%YAML 1.1\n---\na: no", 2, "1.2"),
        ("a: 1\n1: 2", 2, "no text"),
        ("? [x, y]\n: 1", 1, "no text"),
        ("a: [1, 2\nb: 3", 2, "not YAML"),
        ("a: 1\n\tb: 2", 2, "not YAML"),
    ],
)
def test_yaml_that_is_no_configuration(text, line, word):
    with pytest.raises(DamagedFileError, match=word) as caught:
        parse_yaml(text, "x.yaml")
    assert caught.value.where.startswith(f"x.yaml:{line}")


def test_many_laughs_are_refused_before_they_grow():
    lines = ["a0: &a0 [lol, lol, lol, lol]"] + [
        f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 30)
    ]
    with pytest.raises(DamagedFileError):
        parse_yaml("\n".join(lines), "x")


@pytest.mark.parametrize("name", sorted(PARSERS))
@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 25, "-" + "9" * 25, "9" * 5000, ".nan", "-.inf"]
)
def test_values_that_are_no_usable_number(name, value):
    if name == "yaml" and value.strip("-").isalpha():
        assert parse_yaml(f'{{"a": {value}}}', "x").data["a"] == value  # plain words in YAML
        return
    with pytest.raises((InvalidValueError, DamagedFileError)) as caught:
        PARSERS[name](f'{{"a": {value}}}', "x")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_a_key_given_twice_is_named_with_its_line(name):
    with pytest.raises(InvalidValueError, match="'b' is given twice") as caught:
        PARSERS[name]('{"a": {"b": 1,\n "c": [{"b": 2}],\n\n "b": 3}}', "x")
    assert caught.value.where == "x:4"


@pytest.mark.parametrize("name", sorted(PARSERS))
@pytest.mark.parametrize("depth", [documents.MAX_DEPTH - 1, documents.MAX_DEPTH, 2_000, 200_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded(name, depth, opening, closing):
    middle = opening * depth + "1" + closing * depth
    text = '{"top":' + middle + "}"
    if depth < documents.MAX_DEPTH:
        assert PARSERS[name](text, "x").data
        return
    with pytest.raises(DamagedFileError, match="deep") as caught:
        PARSERS[name](text, "x")
    assert caught.value.where.startswith("x")


@pytest.mark.parametrize("name", sorted(PARSERS))
@pytest.mark.parametrize(
    ("text", "word"), [("[1]", "a list"), ('"a"', "text"), ("1", "a number"), ("true", "true"), ("null", "nothing")]
)
def test_the_top_level_is_a_mapping(name, text, word):
    with pytest.raises(DamagedFileError, match=word):
        PARSERS[name](text, "x")


@pytest.mark.parametrize("name", sorted(PARSERS))
@pytest.mark.parametrize("text", ['{"a":\n "\\ud800"}', '{"b": 1,\n "\\udfff": 2}'])
def test_half_a_surrogate_pair_is_refused_with_its_line(name, text):
    with pytest.raises(ShardwrightError) as caught:
        PARSERS[name](text, "x")
    assert caught.value.where.startswith("x:")
    caught.value.where.encode()
    caught.value.message.encode()


def test_a_file_of_100_mb_is_refused_without_being_read(tmp_path: Path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(100 * 10**6)
    with pytest.raises(DamagedFileError, match=r"100\.0 MB; at most 8\.4 MB"):
        read_document(path)


def test_yaml_has_a_lower_limit_than_json():
    with pytest.raises(DamagedFileError, match="MB"):
        parse_yaml("a: 1\n" + "#" * documents.YAML_LIMIT_CHARACTERS, "x")


@pytest.mark.parametrize(
    ("raw", "word"), [(b"", "empty"), (b" \n\t", "empty"), (b"\xff\xfe{", "not UTF-8"), (b"\xef\xbb\xbf", "empty")]
)
def test_files_that_are_no_text(tmp_path: Path, raw: bytes, word: str):
    path = tmp_path / "x.json"
    path.write_bytes(raw)
    with pytest.raises(DamagedFileError, match=word) as caught:
        read_text(path)
    assert caught.value.where == str(path)
    assert caught.value.hint


@pytest.mark.parametrize("text", ['{"a": 1, "b": "tex', '{"a": 1, "b', '{"a": 1,', '{"a": [1, 2', '{"a"', '{"a": '])
def test_json_that_ends_early_is_told_from_other_dialects(text: str):
    with pytest.raises(DamagedFileError) as caught:
        parse_json(text, "m.json")
    assert caught.value.hint == "was it written to the end?"
    assert not caught.value.message.endswith("at")


@pytest.mark.parametrize("text", ["{'a': 1}", "// note\n{}", '{"a": 1,}', '{"a": 1} {"a": 1}', '{"a": tru}', "<html></html>"])
def test_what_is_no_json_gets_what_json_takes(text: str):
    with pytest.raises(DamagedFileError, match="is not JSON") as caught:
        parse_json(text, "m.json")
    assert "double quotes, no comments" in caught.value.hint


def test_a_number_of_endless_digits_is_told_without_python():
    with pytest.raises(DamagedFileError, match="more digits than can be read"):
        parse_json('{"a": ' + "9" * 5000 + "}", "m.json")


def test_paths_that_are_no_files(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    for path, word in [
        ("", "folder"),
        ("missing", "no such file"),
        ("pipe", "no regular file"),
        ("loop", "cannot read"),
        ("nowhere", "a link that leads to no file"),
        ("a\0b", "cannot read"),
    ]:
        with pytest.raises(DamagedFileError, match=word):
            read_document(tmp_path / path)
    with pytest.raises(DamagedFileError, match="cannot read"):
        read_text(tmp_path / ("x" * 5000))


# --- places ------------------------------------------------------------------------------------------

TEXT_JSON = """{
  "name": "hidden_size: 3",
  "hidden_size": 4096,
  "inner": {
    "hidden_size": 1, "a\\"b": [
      {"x": 1},
      {"x": 2,
       "y": "{[,:"}
    ]
  }, "last":
     7
}"""
TEXT_YAML = """# hidden_size: 0
name: "hidden_size: 3"
hidden_size: 4096
inner:
  hidden_size: 1
  'a"b':
    - x: 1
    - x: 2
      y: |
        x: {[,:
last: 7
"""


@pytest.mark.parametrize(
    ("keys", "json_line", "yaml_line"),
    [
        (("name",), 2, 2),
        (("hidden_size",), 3, 3),
        (("inner",), 4, 4),
        (("inner", "hidden_size"), 5, 5),
        (("inner", 'a"b'), 5, 6),
        (("inner", 'a"b', 0, "x"), 6, 7),
        (("inner", 'a"b', 1), 7, 8),
        (("inner", 'a"b', 1, "y"), 8, 9),
        (("last",), 10, 11),
        (("inner", "missing", "z"), 4, 4),
    ],
)
def test_place_gives_the_line_of_the_key(keys, json_line, yaml_line):
    name = ".".join(map(str, keys))
    assert parse_json(TEXT_JSON, "m.json").place(*keys) == f"m.json:{json_line}: {name}"
    assert parse_yaml(TEXT_YAML, "m.yaml").place(*keys) == f"m.yaml:{yaml_line}: {name}"


def test_place_of_what_is_nowhere():
    document = parse_json('{"a": 1}', "m.json")
    assert document.place("b") == "m.json: b"
    assert document.place() == "m.json"
    assert Document(data={}, source="given", text="").place("a", 1) == "given: a.1"
    assert document.place("\x1b[31m\n") == "m.json: \\x1b[31m\\n"


@given(PAIRLESS)
def test_every_key_of_a_document_has_the_same_line_in_both_readings(value):
    text = json.dumps(value, indent=1)
    yaml_lines = {path: line for path, line in parse_yaml(text, "x").lines.items() if path}
    assert documents.json_lines(text) == yaml_lines


@given(st.text('{}[]",:a \n\\', max_size=80))
def test_lines_of_damaged_json_are_found_without_failing(text):
    assert all(1 <= line <= text.count("\n") + 1 for line in documents.json_lines(text).values())


# --- pydantic records --------------------------------------------------------------------------------


class Inner(pydantic.BaseModel, extra="forbid"):
    bandwidth: float
    count: int = 1


class Outer(pydantic.BaseModel, extra="forbid"):
    name: str
    inner: Inner | str = "none"
    items: list[Inner] = []
    limit: float | bool = 1.0


def refused(text: str) -> ShardwrightError:
    with pytest.raises(ShardwrightError) as caught:
        documents.validate(Outer, parse_yaml(text, "x.yaml"))
    return caught.value


def test_a_right_document_becomes_a_record():
    record = documents.validate(Outer, parse_yaml("name: n\ninner: {bandwidth: 5e-6}", "x"))
    assert record.inner == Inner(bandwidth=5e-6)


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_right_one():
    error = refused("name: n\nitems:\n  - bandwidth: 1\n  - bandwidth: 1\n    cuont: 2\n")
    assert isinstance(error, UnknownNameError)
    assert error.where == "x.yaml:5: items.1.cuont"
    assert error.hint == "did you mean count?"


def test_a_missing_key_is_named_with_the_line_of_its_parent():
    error = refused("name: n\nitems:\n  - count: 2\n")
    assert isinstance(error, InvalidValueError)
    assert "items.0.bandwidth" in error.message
    assert error.where == "x.yaml:3: items.0"


def test_a_wrong_value_is_shown_without_the_names_of_union_branches():
    error = refused("name: n\n\nlimit: [1]\n")
    assert isinstance(error, InvalidValueError)
    assert error.where == "x.yaml:3: limit"
    assert "[1]" in error.message


def test_several_faults_are_counted():
    assert "(and 1 more)" in refused("nam: n").message


# --- digests and rounding ----------------------------------------------------------------------------


def test_digest_ignores_the_order_of_keys():
    assert documents.digest({"a": 1, "b": [1.5]}) == documents.digest({"b": [1.5], "a": 1})
    assert documents.digest({"a": 1}) != documents.digest({"a": 2})
    assert documents.digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_keeps_twelve_digits_and_settles(value):
    once = documents.rounded(value)
    assert once == pytest.approx(value, rel=1e-11, abs=1e-300)
    assert documents.rounded(once) == once


def test_rounding_makes_plain_values():
    numpy = pytest.importorskip("numpy")
    given_value = {
        "a": (numpy.float64(1 / 3), numpy.int64(2)),
        "b": numpy.array([-0.0, 0.1 + 0.2]),
        "c": None,
        "d": True,
        "e": "x",
    }
    made = documents.rounded(given_value)
    assert json.dumps(made) == '{"a": [0.333333333333, 2], "b": [0.0, 0.3], "c": null, "d": true, "e": "x"}'
