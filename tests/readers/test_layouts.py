"""Layout strings: read, written, refused with the place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.layouts import Layout, check_layout, format_layout, layout_of, parse_layout

GRAMMAR = "Etm L|()*,0123"


def test_a_published_layout_is_read() -> None:
    layout = parse_layout("Et*3|(tt|)*29,m|L")
    assert layout.stages == ("Ettt", *["tt"] * 29, "m", "L")
    assert (layout.layers, layout.mtp_layers, layout.mtp_stage) == (61, 1, 30)
    assert layout.chunks == (3, *[2] * 29, 0, 0)
    assert str(layout) == "Et*3|(tt|)*29m|L"


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Et*2|(tt|)*5t|tmL", ("Ett", "tt", "tt", "tt", "tt", "tt", "t", "tmL")),
        ("Et*7|t*7mL", ("Ettttttt", "tttttttmL")),
        ("E(t|)*3L", ("Et", "t", "t", "L")),
        ("E,t,t|t*1,0L", ("Ett", "tttttttttt" + "L")),
        ("E(t*2|t|)*2L", ("Ett", "t", "tt", "t", "L")),
        ("E||tL", ("E", "", "tL")),
        ("Et*0|tL", ("E", "tL")),
    ],
)
def test_layouts_unroll(text: str, stages: tuple[str, ...]) -> None:
    assert parse_layout(text).stages == stages


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        ("Ett|tXL", 6, "known"),
        ("Ett|tl", 6, "did you mean L"),
        ("Ett |tL", 4, "known"),
        ("E,t,T|L", 5, "did you mean t"),
        ("E(t(t)*2)*3L", 4, "one level"),
        ("E(tt|L", 2, "add )"),
        ("E()*3L", 2, "repeats"),
        ("E(tt|)L", 6, "(...)*n"),
        ("Et*L", 3, "whole number"),
        ("Et*2*3L", 5, "multiply"),
        ("Et*9999999L", 3, "whole number"),
        ("E(t*999|)*999L", 2, "count too large"),
        ("Ett)L", 4, "known"),
        ("E³t*²L", 2, "known"),
    ],
)
def test_faults_are_named_with_their_place(text: str, position: int, hint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_layout(text)
    assert caught.value.where.endswith(f": character {position}")
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["", "  ", "t" * 100_001])
def test_no_layout_and_endless_layouts_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_layout(text)


@pytest.mark.parametrize(
    ("chunks", "mtp", "text"),
    [
        ((8,), 0, "Et*8L"),
        ((10, 10, 10, 10), 0, "Et*10|(t*10|)*2t*10L"),
        ((3, *[2] * 28, 1, 1, 0), 1, "Et*3|(tt|)*28t|t|mL"),
        ((7, 8, 8, 7), 0, "Et*7|t*8|t*8|t*7L"),
        ((1, 2, 1, 2, 1, 2, 1, 2), 0, "Et|(tt|t|)*3ttL"),
        (tuple([5] * 40), 0, "Et*5|(t*5|)*38t*5L"),
    ],
)
def test_the_usual_form_is_written(chunks: tuple[int, ...], mtp: int, text: str) -> None:
    layout = layout_of(chunks, mtp_layers=mtp)
    assert format_layout(layout) == text
    assert parse_layout(text).chunks == chunks


stage_texts = st.lists(st.integers(0, 12).map("t".__mul__), min_size=1, max_size=48)


@given(stage_texts, st.integers(0, 3))
def test_what_is_written_reads_back(stages: list[str], mtp: int) -> None:
    layout = layout_of(tuple(map(len, stages)), mtp_layers=mtp)
    text = format_layout(layout)
    assert parse_layout(text) == layout
    assert len(text) <= len("|".join(layout.stages))


@given(st.text(GRAMMAR, max_size=24))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        layout = parse_layout(text, where="here")
    except InvalidValueError as error:
        fault = error
    else:
        assert parse_layout(format_layout(layout)) == layout
        return
    assert fault.where.startswith("here")
    assert fault.hint


def test_a_long_layout_is_written_quickly_and_short() -> None:
    layout = layout_of(tuple(1 + (index // 7) % 2 for index in range(512)))
    assert parse_layout(format_layout(layout)) == layout
    assert len(format_layout(layout)) < 120


@pytest.mark.parametrize(
    ("text", "layers", "mtp", "pp", "says"),
    [
        ("Ett|tt|ttL", 6, 0, 2, "3 chunks for pp 2"),
        ("Ett|tEL", 3, 0, 2, "2 times E"),
        ("Ett|tt", 4, 0, 2, "0 times L"),
        ("tEt|ttL", 4, 0, 2, "begin with E"),
        ("Ett|ttL", 5, 0, 2, "has 4 layers; the model has 5"),
        ("Ett|ttL", 4, 1, 2, "0 multi-token-prediction blocks"),
        ("Et|mtL", 2, 1, 2, "after multi-token prediction"),
        ("Ettm|mL", 2, 2, 2, "spread over"),
        ("Ett|tm||L", 3, 1, 2, "chunk 2 of 4"),
        ("Ettm|L", 2, 1, 2, "chunk 1 of 2"),
    ],
)
def test_demands_on_a_layout(text: str, layers: int, mtp: int, pp: int, says: str) -> None:
    with pytest.raises(ConflictError) as caught:
        check_layout(parse_layout(text), layers=layers, mtp_layers=mtp, pp=pp)
    assert says in caught.value.message
    assert caught.value.hint


def test_legal_layouts_pass() -> None:
    check_layout(parse_layout("Et*3|(tt|)*29m|L"), layers=61, mtp_layers=1, pp=16)
    check_layout(parse_layout("EtttmL"), layers=3, mtp_layers=1, pp=1)
    check_layout(layout_of((0, 2, 2, 0)), layers=4, mtp_layers=0, pp=2)


@pytest.fixture(scope="module")
def unroll():
    """Megatron-Core's own reader of the same strings."""
    module = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    letters = {"embedding": "E", "loss": "L", "decoder": "t", "mtp": "m"}

    def unrolled(text: str) -> tuple[str, ...]:
        stages = module.PipelineParallelLayerLayout.parse_str_to_list(text)
        return tuple("".join(letters[unit.name] for unit in stage) for stage in stages)

    return unrolled


@pytest.mark.frameworks
@given(text=st.text(GRAMMAR, max_size=24))
def test_what_we_read_megatron_reads_alike(unroll, text: str) -> None:
    try:
        stages = parse_layout(text).stages
    except InvalidValueError:
        return
    assert unroll(text) == stages


@pytest.mark.frameworks
@given(
    items=st.lists(
        st.tuples(st.sampled_from(["E", "t", "m", "L", "|", "(t|)", "(tt|t*2|)", "(|t)"]), st.integers(0, 12)), max_size=8
    ),
    commas=st.lists(st.integers(0, 40), max_size=3),
)
def test_of_the_grammar_we_read_all_that_megatron_reads(unroll, items: list, commas: list) -> None:
    text = "".join(f"{unit}*{count}" if count > 1 or unit.startswith("(") else unit for unit, count in items)
    for comma in commas:
        text = text[:comma] + "," + text[comma:]
    if text.strip(","):
        assert parse_layout(text).stages == unroll(text)


@pytest.mark.frameworks
@given(stages=stage_texts, mtp=st.integers(0, 2))
def test_what_we_write_megatron_reads(unroll, stages: list[str], mtp: int) -> None:
    layout = layout_of(tuple(map(len, stages)), mtp_layers=mtp)
    assert Layout(stages=unroll(format_layout(layout))) == layout
