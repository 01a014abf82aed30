"""Which hosts there are, which of them are in use, and which machine each of them is.

    scheduler's hosts known    those with accelerators that are not out of use, in the order of the switches
    only a network             its hosts; where adapters are counted, those with most of them
    neither                    one node for every machine that was read, or as many as the user says

Hosts that are equal in number and kind of GPUs, and in layout, are a `Team`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.hardware.cluster import MAX_NODES
from shardwright.hardware.readers.base import Adapter, HostState, Machine
from shardwright.hardware.readers.text import counted
from shardwright.hardware.topology_records import Excluded, Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Equal nodes.

    Attributes:
        count: how many.
        hosts: their names; empty where they have none.
        machine: as read; None where no file describes it.
        gpus: of each; None where no file says.
        gpu_type: the scheduler's word for them.
        memory_bytes: of the smallest host.
    """

    count: int
    hosts: tuple[str, ...] = ()
    machine: Machine | None = None
    gpus: int | None = None
    gpu_type: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Teams:
    """All nodes, those out of use, and what there is to say."""

    teams: tuple[Team, ...]
    excluded: tuple[Excluded, ...] = ()
    notes: tuple[str, ...] = ()


def teams_of(
    machines: Sequence[Machine],
    network: Network | None,
    states: Sequence[HostState],
    ports: Mapping[str, Sequence[Adapter]],
    nodes: int | None,
) -> Teams:
    """The nodes.

    Args:
        machines: described from inside.
        network: with its hosts.
        states: of hosts, from the scheduler.
        ports: adapters of each host.
        nodes: number of nodes the user gives, for nodes without names.

    Raises:
        ConflictError: the files contradict each other, or do not say which hosts are which machine.
        InvalidValueError: a number of nodes out of range, or no usable host.
    """
    if states:
        found = _from_states(states, network)
    elif network is not None:
        found = _from_network(network, ports)
    else:
        return _from_machines(machines, nodes)
    if nodes is not None:
        hint = "leave --nodes out, or take hosts out of the files"
        raise ConflictError("the files name the hosts, and --nodes counts them as well", where="--nodes", hint=hint)
    teams = tuple(part for team in found.teams for part in _with_machines(team, machines))
    _check_used(machines, teams)
    return dataclasses.replace(found, teams=teams)


def _from_states(states: Sequence[HostState], network: Network | None) -> Teams:
    order = {host: index for index, host in enumerate(network.hosts)} if network is not None else {}
    usable = sorted((s for s in states if s.usable), key=lambda s: order.get(s.host, len(order)))
    if not usable:
        raise InvalidValueError("every host is out of use", where="FILES", hint="ask the scheduler again")
    groups: dict[tuple[int, str], list[HostState]] = {}
    for state in usable:
        groups.setdefault((state.gpus, state.gpu_type), []).append(state)
    notes = []
    known = {state.host for state in states}
    unlisted = [host for host in order if host not in known]
    if unlisted:
        notes.append(
            f"{counted(len(unlisted), 'host')} of the network unknown to the scheduler left out, {unlisted[0]} the first"
        )
    off = [state.host for state in usable if order and state.host not in order]
    if off:
        notes.append(f"{counted(len(off), 'host')} on no switch of the network, {off[0]} the first")
    excluded = tuple(Excluded(host=s.host, reason=s.reason) for s in states if not s.usable)
    teams = tuple(_team_of(gpus, kind, own) for (gpus, kind), own in groups.items())
    return Teams(teams=teams, excluded=excluded, notes=tuple(notes))


def _team_of(gpus: int, kind: str, states: Sequence[HostState]) -> Team:
    memories = [state.memory_bytes for state in states if state.memory_bytes is not None]
    hosts = tuple(state.host for state in states)
    memory = min(memories) if memories else None
    return Team(count=len(hosts), hosts=hosts, gpus=gpus, gpu_type=kind, memory_bytes=memory)


def _from_network(network: Network, ports: Mapping[str, Sequence[Adapter]]) -> Teams:
    hosts = network.hosts
    notes = [f"every host of the network is taken for a GPU node ({len(hosts)}); give `scontrol show node` to tell them apart"]
    if ports:
        most = max(len(own) for own in ports.values())
        fewer = [host for host in hosts if len(ports.get(host, ())) < most]
        hosts = tuple(host for host in hosts if len(ports.get(host, ())) == most)
        if fewer:
            said = f"{counted(len(fewer), 'host')} with fewer than {most} ports taken for no GPU nodes, {fewer[0]} the first"
            notes = [said]
    return Teams(teams=(Team(count=len(hosts), hosts=hosts),), notes=tuple(notes))


def _from_machines(machines: Sequence[Machine], nodes: int | None) -> Teams:
    kinds = _kinds(machines)
    if nodes is not None and not 1 <= nodes <= MAX_NODES:
        raise InvalidValueError(f"{nodes} nodes", where="--nodes", hint=f"give 1 to {MAX_NODES:,}")
    if nodes is not None and len(kinds) > 1:
        hint = "give the machines one by one, or files of one machine"
        raise ConflictError("the files describe different machines, and --nodes counts one kind", where="--nodes", hint=hint)
    teams = []
    for own in kinds:
        hosts = tuple(m.host for m in own if m.host is not None)
        count = nodes if nodes is not None else len(own)
        named = hosts if len(hosts) == count else ()
        teams.append(Team(count=count, hosts=named, machine=own[0], gpus=own[0].gpus))
    alone = len(machines) == 1 and nodes is None
    notes = ("one node is taken; for more, give --nodes N or a file of the network",) if alone else ()
    return Teams(teams=tuple(teams), notes=notes)


def _kinds(machines: Sequence[Machine]) -> list[list[Machine]]:
    kinds: list[list[Machine]] = []
    for machine in machines:
        own = next((kind for kind in kinds if _alike(kind[0], machine)), None)
        if own is None:
            kinds.append([machine])
        else:
            own.append(machine)
    return kinds


def _alike(a: Machine, b: Machine) -> bool:
    return (a.layout, a.gpus, a.links, a.pci_id) == (b.layout, b.gpus, b.links, b.pci_id)


def _with_machines(team: Team, machines: Sequence[Machine]) -> list[Team]:
    """A team with its machine; split where its hosts are of different machines."""
    fitting = [m for m in machines if team.gpus in (None, m.gpus) and (m.host is None or m.host in team.hosts)]
    kinds = _kinds(fitting)
    if len(kinds) < 2:
        return [_given(team, kinds[0][0] if kinds else None)]
    owner = {m.host: number for number, kind in enumerate(kinds) for m in kind}
    unknown = [host for host in team.hosts if host not in owner]
    if None in owner or unknown:
        which = f", {unknown[0]} for one" if unknown else ""
        hint = "prefix each line with `host: ` (as pdsh does), or give one kind of machine"
        raise ConflictError(
            f"the machines differ, and the files do not say which hosts they are{which}", where="FILES", hint=hint
        )
    split = []
    for number, kind in enumerate(kinds):
        hosts = tuple(host for host in team.hosts if owner[host] == number)
        split.append(_given(dataclasses.replace(team, hosts=hosts, count=len(hosts)), kind[0]))
    return split


def _given(team: Team, machine: Machine | None) -> Team:
    return team if machine is None else dataclasses.replace(team, machine=machine, gpus=machine.gpus)


def _check_used(machines: Sequence[Machine], teams: Sequence[Team]) -> None:
    if machines and all(team.machine is None for team in teams):
        counts = ", ".join(str(team.gpus) for team in teams)
        message = f"{machines[0].source} has {machines[0].gpus} GPUs; the hosts have {counts}, or other names"
        raise ConflictError(message, where="FILES", hint="give files of the same machines")
