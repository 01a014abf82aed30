from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.hardware.catalog import cluster_from_dict, load_cluster, node_ids
from shardwright.hardware.cluster import Cluster


def test_count_of_nodes() -> None:
    cluster = load_cluster("dgx-h100:16")
    assert (cluster.name, cluster.nodes, cluster.gpus, cluster.gpus_per_node) == ("dgx-h100:16", 16, 128, 8)
    assert cluster.node.id == "dgx-h100"
    assert cluster.device.id == "h100-sxm5-80g"


def test_usable_gpus_a_node() -> None:
    cluster = load_cluster(" DGX_A100_80G:3X7 ")
    assert (cluster.name, cluster.nodes, cluster.gpus, cluster.gpus_per_node) == ("dgx-a100-80g:3x7", 3, 21, 7)
    assert cluster.node.gpus == 8


@pytest.mark.parametrize(
    ("text", "error", "says", "hints"),
    [
        ("dgx-h100", InvalidValueError, "has no count", "dgx-h100:1"),
        ("dgx-h100:0", InvalidValueError, "asks for 0 nodes", "1 to 1,000,000"),
        ("dgx-h100:-3", InvalidValueError, "'-3'", "NODE:COUNT"),
        ("dgx-h100:2x9", InvalidValueError, "asks for 9 usable GPUs", "1 to 8"),
        ("dgx-h100:2x0", InvalidValueError, "asks for 0 usable GPUs", "1 to 8"),
        ("dgx-h100:abc", InvalidValueError, "'abc'", "NODE:COUNT"),
        ("dgx-h100:1.5", InvalidValueError, "'1.5'", "NODE:COUNT"),
        ("dgx-h100:", InvalidValueError, "no count", "NODE:COUNT"),
        ("dgx-h100:2x", InvalidValueError, "'2x'", "NODE:COUNT"),
        ("dgx-h100:٣", InvalidValueError, "no count", "NODE:COUNT"),
        ("dgx-h100:1000001", InvalidValueError, "1000001 nodes", "1 to 1,000,000"),
        ("dgx-h100:" + "9" * 5000, InvalidValueError, "999", "1 to 1,000,000"),
        ("gdx-h100:2", UnknownNameError, "'gdx-h100'", "dgx-h100"),
        ("gdx-h100", UnknownNameError, "'gdx-h100'", "NODE:COUNT"),
        (":3", InvalidValueError, "names no node", "NODE:COUNT"),
        ("", InvalidValueError, "empty", "NODE:COUNT"),
        ("nowhere.yaml", DamagedFileError, "no such file", "path"),
    ],
)
def test_bad_names_say_what_is_wrong_and_what_is_allowed(
    text: str, error: type[ShardwrightError], says: str, hints: str
) -> None:
    with pytest.raises(error) as caught:
        load_cluster(text)
    assert says in caught.value.message
    assert hints in caught.value.hint
    assert caught.value.where in ("cluster", "nowhere.yaml")
    assert len(caught.value.message) < 300


def test_a_file_without_a_known_suffix_is_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "cluster.txt"
    path.write_text("name: x\n", encoding="utf-8")
    with pytest.raises(InvalidValueError, match=r"no cluster YAML") as caught:
        load_cluster(str(path))
    assert ".yaml" in caught.value.hint


@given(st.sampled_from(node_ids()), st.integers(1, 1000), st.integers(1, 16))
def test_what_is_named_is_what_is_built(node: str, count: int, usable: int) -> None:
    plain = load_cluster(f"{node}:{count}")
    assert plain.gpus == count * plain.node.gpus
    if usable <= plain.node.gpus:
        fewer = load_cluster(f"{node}:{count}x{usable}")
        assert fewer.gpus == count * usable
        assert cluster_from_dict(fewer.to_dict()) == fewer


@given(st.text(max_size=40) | st.from_regex(r"dgx-h100:[-+x0-9a-z ]{0,12}", fullmatch=True))
def test_any_text_gives_a_cluster_or_our_error(text: str) -> None:
    found = _cluster_or_error(text)
    if isinstance(found, Cluster):
        assert found.gpus >= 1
    else:
        assert found.message
        assert found.hint or found.where


def _cluster_or_error(text: str) -> Cluster | ShardwrightError:
    try:
        return load_cluster(text)
    except ShardwrightError as error:
        return error
