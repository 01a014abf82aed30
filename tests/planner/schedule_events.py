"""A reference simulator of pipeline schedules: each rank runs its list in order, and waits for what an entry needs."""

from dataclasses import dataclass

FORWARD, BACKWARD = "F", "B"


@dataclass(frozen=True)
class Run:
    """What a simulated step shows: its length, and the most chunks alive at once on each rank."""

    step_s: float
    alive: list[int]


def gpipe_orders(pp, count):
    """All forward passes, then all backward passes."""
    return [[(kind, 0, m) for kind in (FORWARD, BACKWARD) for m in range(count)] for _ in range(pp)]


def one_f_one_b_orders(pp, count):
    """pp - rank - 1 forward passes, then pairs, then the backward passes left."""
    orders = []
    for rank in range(pp):
        orders.append(woven([(0, m) for m in range(count)], [(0, m) for m in range(count)], pp - rank - 1))
    return orders


def interleaved_orders(pp, vpp, count):
    """Megatron-LM's order: groups of pp micro-batches run through one chunk after another."""
    turns = [(k % (pp * vpp) // pp, k // (pp * vpp) * pp + k % pp) for k in range(count * vpp)]
    mirrored = [(vpp - 1 - chunk, m) for chunk, m in turns]
    return [woven(turns, mirrored, 2 * (pp - rank - 1) + (vpp - 1) * pp) for rank in range(pp)]


def woven(forwards, backwards, warm_up):
    first = min(warm_up, len(forwards))
    order = [(FORWARD, *turn) for turn in forwards[:first]]
    for ahead, back in zip(forwards[first:], backwards, strict=False):
        order += [(FORWARD, *ahead), (BACKWARD, *back)]
    return order + [(BACKWARD, *turn) for turn in backwards[len(forwards) - first :]]


def needs(entry, rank, pp, vpp):
    """The entry of another rank (or chunk) that must be done first, or None."""
    kind, chunk, m = entry
    place = chunk * pp + rank + (-1 if kind == FORWARD else 1)
    if place < 0:
        return None
    if place == pp * vpp:
        return rank, (FORWARD, chunk, m)
    return place % pp, (kind, place // pp, m)


def simulated(orders, forward_s, backward_s, vpp=1):
    """Runs the orders; a chunk takes a vpp-th of its rank's pass."""
    pp = len(orders)
    done, clocks, at = {}, [0.0] * pp, [0] * pp
    while any(at[r] < len(orders[r]) for r in range(pp)):
        moved = False
        for rank in range(pp):
            while at[rank] < len(orders[rank]):
                entry = orders[rank][at[rank]]
                before = needs(entry, rank, pp, vpp)
                if before is not None and before not in done:
                    break
                length = (forward_s if entry[0] == FORWARD else backward_s)[rank] / vpp
                clocks[rank] = max(clocks[rank], done[before] if before else 0.0) + length
                done[rank, entry] = clocks[rank]
                at[rank] += 1
                moved = True
        if not moved:
            raise RuntimeError("the orders wait for each other")
    return Run(step_s=max(clocks), alive=[most_alive(order) for order in orders])


def most_alive(order):
    alive = peak = 0
    for kind, _, _ in order:
        alive += 1 if kind == FORWARD else -1
        peak = max(peak, alive)
    return peak
