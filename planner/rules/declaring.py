"""Short ways to declare rules: messages as templates, remedies derived from the changes that mend.

    degree_rule(...)    a rule of degrees, with the changes that mend it
    setting_rule(...)   a rule that reads settings of a configuration

A template names columns, settings and `WORDS` of the job in braces: "{heads} heads on tp {tp}".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardwright.planner.offloading import text_of
from shardwright.planner.plans import CP_COMM_KINDS, MOE_DISPATCHERS, RECOMPUTE_CHOICES, BoolArray
from shardwright.planner.rules.base import Candidate, Changes, Columns, Facts, Rule
from shardwright.planner.rules.defaults import spoken
from shardwright.planner.rules.settings import Settings, Value
from shardwright.planner.schedules.registry import SCHEDULE_IDS

MEGATRON = ("megatron", "megatron-bridge")

Breaks = Callable[[Settings, Columns, Facts], BoolArray | bool]
Message = str | Callable[[Settings, Candidate, Facts], str]
Mend = Changes | Callable[[Settings, Candidate, Facts], Changes]

WORDS: Mapping[str, Callable[[Facts], Any]] = {
    "gpus": lambda f: f.gpus,
    "seq_len": lambda f: f.seq_len,
    "global_batch": lambda f: f.global_batch,
    "layers": lambda f: f.graph.spec.layers,
    "hidden": lambda f: f.graph.spec.hidden,
    "heads": lambda f: f.graph.spec.heads,
    "kv_heads": lambda f: f.graph.spec.kv_heads,
    "vocab": lambda f: f.graph.spec.vocab,
    "experts": lambda f: f.graph.spec.moe.experts if f.graph.spec.moe else 0,
    "precision": lambda f: f.precision,
    "optimizer": lambda f: f.optimizer,
}


def setting_rule(
    name: str,
    says: str,
    *,
    settings: tuple[str, ...],
    breaks: Breaks,
    message: Message,
    mend: Mend,
    source: str,
    reads: tuple[str, ...] = (),
    targets: tuple[str, ...] = MEGATRON,
    severity: str = "error",
    since: str | None = None,
    until: str | None = None,
    remedy: Message = "",
) -> Rule:
    """A rule that reads settings.

    Args:
        name: its id.
        says: the rule in one sentence.
        settings: settings it reads.
        breaks: (settings, columns, facts) -> where it is broken, [candidates] or one answer for all.
        message: template, or (settings, candidate, facts) -> text.
        mend: nearest legal columns or settings, or (settings, candidate, facts) -> such.
        source: where the framework checks it.
        reads: columns it reads.
        targets: targets it holds for.
        severity: error, changed or warning.
        since: first version it holds for.
        until: first version it no longer holds for.
        remedy: another choice in words, as `message`.
    """

    def broken(columns: Columns, facts: Facts) -> BoolArray:
        found = np.asarray(breaks(facts.settings, columns, facts), dtype=bool)
        return np.broadcast_to(found, columns["tp"].shape)

    def changes(candidate: Candidate, facts: Facts) -> Changes:
        found = mend(facts.settings, candidate, facts) if callable(mend) else mend
        return needed(found, candidate, facts.settings)

    def said(candidate: Candidate, facts: Facts) -> str:
        return _filled(message, settings, candidate, facts)

    def mended(candidate: Candidate, facts: Facts) -> str:
        made = spoken(changes(candidate, facts), targets[0])
        more = _filled(remedy, settings, candidate, facts) if remedy else ""
        return ", or ".join(part for part in (made, more) if part)

    return Rule(
        id=name,
        says=says,
        reads=reads,
        broken=broken,
        message=said,
        remedy=mended,
        targets=targets,
        source=source,
        severity=severity,
        since=since,
        until=until,
        settings=settings,
        mend=changes,
    )


def degree_rule(
    name: str,
    says: str,
    *,
    reads: tuple[str, ...],
    breaks: Callable[[Columns, Facts], BoolArray],
    message: str | Callable[[Candidate, Facts], str],
    mend: Changes | Callable[[Candidate, Facts], Changes],
    source: str,
    targets: tuple[str, ...],
    severity: str = "error",
    since: str | None = None,
    until: str | None = None,
) -> Rule:
    """A rule of degrees that a target has; arguments as for `setting_rule`."""

    def changes(candidate: Candidate, facts: Facts) -> Changes:
        return needed(mend(candidate, facts) if callable(mend) else mend, candidate, facts.settings)

    def said(candidate: Candidate, facts: Facts) -> str:
        return message(candidate, facts) if callable(message) else message.format_map(_values((), candidate, facts))

    return Rule(
        id=name,
        says=says,
        reads=reads,
        broken=breaks,
        message=said,
        remedy=lambda candidate, facts: spoken(changes(candidate, facts), targets[0]),
        targets=targets,
        source=source,
        severity=severity,
        since=since,
        until=until,
        mend=changes,
    )


def needed(changes: Changes, candidate: Candidate, settings: Settings) -> Changes:
    """Changes of what is otherwise: a setting that is not given need not be left out."""
    return {
        key: value
        for key, value in changes.items()
        if (candidate[key] != value if key in candidate else value is not None or settings.given.get(key) is not None)
    }


def _filled(message: Message, settings: tuple[str, ...], candidate: Candidate, facts: Facts) -> str:
    """The text of a message for one candidate."""
    if callable(message):
        return message(facts.settings, candidate, facts)
    return message.format_map(_values(settings, candidate, facts))


def _values(settings: tuple[str, ...], candidate: Candidate, facts: Facts) -> dict[str, Value]:
    """What a template can name; words for columns that hold indices."""
    made: dict[str, Value] = {name: word(facts) for name, word in WORDS.items()}
    made |= {name: "none" if (value := facts.settings[name]) is None else value for name in settings}
    made |= candidate
    words = {"schedule": SCHEDULE_IDS, "recompute": RECOMPUTE_CHOICES}
    words |= {"cp_comm": CP_COMM_KINDS, "moe_dispatcher": MOE_DISPATCHERS}
    made |= {"offload": text_of(candidate["offload"])} if "offload" in candidate else {}
    return made | {name: known[candidate[name]] for name, known in words.items() if name in candidate}
