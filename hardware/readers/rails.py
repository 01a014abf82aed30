"""Which network cards are compute rails, and whom they serve.

Distances between a GPU and a card, nearest first (the words of `nvidia-smi topo`):

    PIX one PCIe bridge   PXB several   PHB host bridge   NODE same memory domain   SYS across sockets

A card below a PCIe bridge with some GPU (PIX, PXB) is a rail; where no card is, those on a host bridge or in the memory
domain of some GPU are (`compute_cards`). Every GPU is served by the rails nearest to it: all of them where they share its
PCIe bridge, else the one with the fewest GPUs so far (`served`). A card that is nearer to nobody (SYS to all) is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardwright.hardware.topology_records import Groups, Nic

DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
_NEAR, _FAR = 2, 4  # indices: below these a PCIe bridge is shared; this one crosses sockets

Distances = Sequence[Sequence[str]]


def groups_of(distances: Distances, limit: str) -> Groups:
    """Groups of GPUs that are linked by distances up to a limit, each in order.

    Args:
        distances: [gpu][gpu]; what is no word of `DISTANCES` links nobody.
        limit: the farthest distance within a group.
    """
    allowed = DISTANCES[: DISTANCES.index(limit) + 1]
    return linked([[word in allowed for word in row] for row in distances])


def linked(adjacent: Sequence[Sequence[bool]]) -> Groups:
    """Connected components of a symmetric relation on 0..n-1, in order of their first members."""
    group = list(range(len(adjacent)))
    for a, row in enumerate(adjacent):
        for b, joined in enumerate(row):
            if joined and group[a] != group[b]:
                old, new = max(group[a], group[b]), min(group[a], group[b])
                group = [new if label == old else label for label in group]
    return tuple(tuple(g for g, label in enumerate(group) if label == first) for first in sorted(set(group)))


def compute_cards(distances: Distances) -> list[int]:
    """Indices of the cards that are compute rails.

    Args:
        distances: [card][gpu].
    """
    best = [min((_rank(word) for word in row), default=_FAR) for row in distances]
    near = [card for card, rank in enumerate(best) if rank < _NEAR]
    return near or [card for card, rank in enumerate(best) if rank < _FAR]


def served(distances: Distances, cards: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Card → the GPUs it serves.

    Args:
        distances: [card][gpu].
        cards: the compute rails.
    """
    made: dict[int, list[int]] = {card: [] for card in cards}
    gpus = len(distances[0]) if distances else 0
    for gpu in range(gpus):
        best = min((_rank(distances[card][gpu]) for card in cards), default=_FAR)
        nearest = [card for card in cards if _rank(distances[card][gpu]) == best]
        if best < _NEAR:
            for card in nearest:
                made[card].append(gpu)
    return {card: tuple(sorted(own)) for card, own in _shared(distances, made).items()}


def _shared(distances: Distances, made: dict[int, list[int]]) -> dict[int, list[int]]:
    """Gives each GPU without a card on its bridge the least loaded of the nearest ones."""
    placed = {gpu for own in made.values() for gpu in own}
    for gpu in range(len(distances[0]) if distances else 0):
        if gpu not in placed and made:
            card = min(made, key=lambda c: (_rank(distances[c][gpu]), len(made[c]), c))
            made[card].append(gpu)
    return made


def _rank(word: str) -> int:
    return DISTANCES.index(word) if word in DISTANCES else _FAR


def rails(
    names: Sequence[str], distances: Distances, sockets: Groups | None, rates: Mapping[str, float | None] | None = None
) -> tuple[tuple[Nic, ...], tuple[str, ...]]:
    """The rails in the order of the GPUs they serve, and the names of the other cards.

    Args:
        names: of all cards.
        distances: [card][gpu].
        sockets: groups of GPUs; a rail takes the socket of the GPUs nearest to it.
        rates: bytes a second by name, where known.
    """
    cards = compute_cards(distances)
    gpus = served(distances, cards)
    order = sorted(cards, key=lambda card: (gpus[card] or (len(distances[card]),), card))
    made = tuple(
        Nic(name=names[c], bytes_per_s=(rates or {}).get(names[c]), gpus=gpus[c], socket=_socket(distances[c], sockets))
        for c in order
    )
    return made, tuple(name for card, name in enumerate(names) if card not in cards)


def _socket(row: Sequence[str], sockets: Groups | None) -> int | None:
    """The socket that holds all GPUs nearer than across sockets; None where there is none, or several."""
    near = {gpu for gpu, word in enumerate(row) if _rank(word) < _FAR}
    found = [index for index, group in enumerate(sockets or ()) if near & set(group)]
    return found[0] if len(found) == 1 else None
