"""Prices that a user states: `--price dgx-h100=2.2`, `--price p5.48xlarge=reserved-1-year`, `--price prices.yaml`.

    NODE=USD        USD per GPU-hour
    NODE=TERM       the middle of that offer of the price table (`hardware.economics`)
    FILE.yaml       a mapping of node preset: USD per GPU-hour

`with_prices` puts them on a cluster. A node named on the command line must be in the cluster; a file may list others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from shardwright.documents import read_document
from shardwright.errors import ConflictError, InvalidValueError
from shardwright.hardware import checks
from shardwright.hardware.catalog import FILE_SUFFIXES, load_node
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.economics import offer_of, priced

WHERE = "--price"

Stated = Mapping[str, tuple[float, str]]
"""Node id → USD per GPU-hour, where it comes from."""


def with_prices(cluster: Cluster, statements: Sequence[str]) -> Cluster:
    """The cluster with stated prices.

    Raises:
        ShardwrightError: a statement that cannot be read, of a node that the cluster has not, or against another one.
    """
    return priced(cluster, stated_prices(statements, {group.node.id for group in cluster.groups})) if statements else cluster


def stated_prices(statements: Sequence[str], present: Collection[str]) -> Stated:
    """Prices by node id; a later file gives way to earlier statements.

    Args:
        statements: as `--price` takes them.
        present: ids of the nodes there are; inline nodes have ids that are no presets.

    Raises:
        ShardwrightError: a statement that cannot be read, of a node there is none of, or two for one node.
    """
    made: dict[str, tuple[float, str]] = {}
    for text in (text for text in statements if not _is_file(text)):
        node, found = _statement(text, present)
        if made.setdefault(node, found) != found:
            message = f"{node} is priced {made[node][0]:g} and {found[0]:g}"
            raise ConflictError(message, where=WHERE, hint="keep one of the two")
    for text in (text for text in statements if _is_file(text)):
        for node, found in _file(Path(text)).items():
            made.setdefault(node, found)
    return made


def _is_file(text: str) -> bool:
    return "=" not in text and text.lower().endswith(FILE_SUFFIXES)


def _statement(text: str, present: Collection[str]) -> tuple[str, tuple[float, str]]:
    name, separator, value = (part.strip() for part in text.partition("="))
    if not separator or not name or not value:
        hint = "write dgx-h100=2.2 (USD per GPU-hour), or name a YAML file"
        raise InvalidValueError(f"{text[:60]!r} is no NODE=USD_PER_GPU_HOUR", where=WHERE, hint=hint)
    node = name if name in present else load_node(name).id
    if node not in present:
        message = f"there is no {node} here to price"
        raise InvalidValueError(message, where=f"{WHERE} {name}", hint="priced can be: " + ", ".join(sorted(present)))
    try:
        return node, (_usd(float(value), f"{WHERE} {name}"), "given")
    except ValueError:
        offer = offer_of(node, value)
        return node, (offer.middle, offer.said)


def _usd(value: object, where: str) -> float:
    try:
        return checks.positive("the price", value)
    except InvalidValueError as error:
        error.where = where
        raise


def _file(path: Path) -> dict[str, tuple[float, str]]:
    document = read_document(path)
    return {load_node(str(n)).id: (_usd(usd, document.place(n)), f"given in {path.name}") for n, usd in document.data.items()}


def prices_for(statements: Sequence[str], node_id: str) -> tuple[str, ...]:
    """The statements that are of a node preset, or may be: a file lists several."""
    named = ((text, text.partition("=")) for text in statements)
    return tuple(text for text, (name, equals, _) in named if not equals or load_node(name.strip()).id == node_id)
