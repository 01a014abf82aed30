"""Ours beside theirs, configuration by configuration, and what that says of each rule."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agreements import Lax
from cases import Case
from verdicts import Verdict


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration judged by both.

    `changed` is the field one step changed, empty for a legal configuration as it stands; `rules` those of ours that refuse it.
    """

    changed: str
    case: Case
    theirs: Verdict
    rules: tuple[str, ...]


@dataclass(kw_only=True)
class Hits:
    """What the trials say of one rule."""

    refused: int = 0
    accepted: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def disagreements(trials: Iterable[Trial], lax: Mapping[str, Lax], unchecked: Iterable[str]) -> dict[str, list[Trial]]:
    """Trials on which the verdicts differ, by what differs; what the framework is known not to check does not count."""
    found: dict[str, list[Trial]] = defaultdict(list)
    passed = set(unchecked)
    for trial in trials:
        excused = {rule for rule in trial.rules if rule in lax and lax[rule].where(trial.case)}
        checked = [rule for rule in trial.rules if rule not in excused | passed]
        if trial.theirs.accepted and checked:
            found["accepted, but refused by " + ", ".join(checked)].append(trial)
        elif not trial.theirs.accepted and not trial.rules:
            found[f"refused ({trial.theirs.link}: {bare(trial.theirs.message)}), but accepted by us"].append(trial)
    return found


def hits(trials: Iterable[Trial]) -> dict[str, Hits]:
    """How often each rule refused what they refuse, and how often both accepted a change of a field that can break it."""
    trials = list(trials)
    found: dict[str, Hits] = defaultdict(Hits)
    breaking: dict[str, set[str]] = defaultdict(set)
    for trial in trials:
        for rule in trial.rules:
            breaking[trial.changed].add(rule)
            if not trial.theirs.accepted:
                found[rule].refused += 1
                if len(trial.rules) == 1:
                    found[rule].reasons[bare(trial.theirs.message)] += 1
    for trial in trials:
        if trial.theirs.accepted and not trial.rules:
            for rule in breaking[trial.changed]:
                found[rule].accepted += 1
    return dict(found)


def bare(message: str) -> str:
    """A message without its numbers."""
    return re.sub(r"-?\d+", "N", message)[:160]


def unlike_reasons(trials: Iterable[Trial], words: Mapping[str, str]) -> list[str]:
    """Where one rule of ours refuses alone, and their message is not the one that goes with it."""
    made = []
    for trial in trials:
        if not trial.theirs.accepted and len(trial.rules) == 1 and trial.rules[0] in words:
            rule = trial.rules[0]
            if not re.search(words[rule], trial.theirs.message):
                made.append(f"{rule}: {trial.theirs.message[:160]}")
    return made


def shown(found: Mapping[str, list[Trial]], each: int = 2) -> str:
    """Disagreements in words, the most frequent first."""
    lines = []
    for what, trials in sorted(found.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(trials)} x {what}")
        lines += [f"    {trial.changed}: {described(trial.case)}" for trial in trials[:each]]
    return "\n".join(lines)


def described(case: Case) -> str:
    """A configuration on one line."""
    names = ("gpus", "tp", "cp", "pp", "vpp", "ep", "etp", "sp", "micro_batch", "global_batch", "seq_len")
    degrees = " ".join(f"{name}={getattr(case, name)}" for name in names)
    return f"{degrees} model={dict(case.model)} settings={dict(case.settings)}"


def table(found: Mapping[str, Hits]) -> str:
    """Rules and their hits as a table."""
    rows = [f"{rule:44}{one.accepted:9}{one.refused:9}" for rule, one in sorted(found.items())]
    return "\n".join([f"{'rule':44}{'accepted':>9}{'refused':>9}", *rows])


def judged(
    cases: Iterable[tuple[str, Case]], theirs: Callable[[Case], Verdict], ours: Callable[[Case], tuple[str, ...]]
) -> list[Trial]:
    """Every configuration judged by both."""
    return [Trial(changed=changed, case=case, theirs=theirs(case), rules=ours(case)) for changed, case in cases]
