"""Words of a Megatron-LM command line as settings, by the names its argument parser gives them.

    read_arguments(words)   --tensor-model-parallel-size 4 --bf16 -> {tensor_model_parallel_size: 4, bf16: True}
    read_mapping(data)      the same of YAML or JSON: flat, with `--` or `_`, nested, or dotted

An option that is not known is named in a warning with the nearest known one. Where one is given twice, the last holds, as in
argparse, and a warning says so.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.errors import InvalidValueError
from shardwright.planner.readers.megatron_names import BOTH, GONE, LISTS, OFF, RENAMED, SWITCHES, VALUES
from shardwright.planner.readers.shell_walk import Word
from shardwright.planner.readers.stated import Stated, StatedSettings, Value, typed

_BOTH_OFF = frozenset(f"no-{name}" for name in BOTH)
NAMES = SWITCHES | OFF | BOTH | _BOTH_OFF | VALUES | LISTS
_TEXTS = frozenset(("pipeline_model_parallel_layout", "moe_layer_freq", "window_size", "tokenizer_model", "split"))
_BRIDGE: Mapping[str, str] = {
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "gated_linear_unit": "swiglu",
    "share_embeddings_and_output_weights": "untie_embeddings_and_output_weights",
    "sequence_length": "seq_length",
    "num_moe_experts": "num_experts",
    "use_te_rng_tracker": "te_rng_tracker",
    "overlap_p2p_comm": "overlap_p2p_comm",
}
"""Names of TransformerConfig and of Megatron-Bridge, which YAML files carry, and the argument each stands for."""

_OPPOSITE = frozenset(("share_embeddings_and_output_weights",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Settings, and what a user should know about how they were read."""

    settings: StatedSettings
    warnings: tuple[str, ...]


def read_arguments(words: Sequence[Word], source: str) -> Arguments:
    """The settings of a command line.

    Raises:
        InvalidValueError: an option whose value is missing.
    """
    reading = _Reading(source)
    for option, values in _grouped(words, reading):
        reading.option(option, values)
    return reading.done()


def read_mapping(data: Mapping[str, Any], source: str, place: Mapping[str, str]) -> Arguments:
    """The settings of a YAML or JSON mapping.

    Args:
        data: dotted path -> value, nested mappings already flattened.
        source: the file's name.
        place: dotted path -> where it stands.
    """
    reading = _Reading(source)
    for path, value in data.items():
        reading.entry(path, value, place.get(path, source))
    return reading.done()


def _grouped(words: Sequence[Word], reading: _Reading) -> Iterator[tuple[Word, list[Word]]]:
    """Options with the words up to the next option."""
    option: Word | None = None
    values: list[Word] = []
    for word in words:
        if word.text.startswith("--") and len(word.text) > 2:
            if option is not None:
                yield option, values
            name, separator, value = word.text.partition("=")
            option = Word(text=name, line=word.line)
            values = [Word(text=value, line=word.line, unknowns=word.unknowns)] if separator else []
        elif option is None or (word.unknowns and word.unknowns[0].text == word.text and _is_full(option, values)):
            reading.stray(word)
        else:
            values.append(word)
    if option is not None:
        yield option, values


def _is_full(option: Word, values: Sequence[Word]) -> bool:
    """Whether an option has the words it needs, so that a variable behind it may well hold further options."""
    return option.text[2:] in SWITCHES | OFF | BOTH | _BOTH_OFF or len(values) > 0


class _Reading:
    def __init__(self, source: str) -> None:
        self.source = source
        self.stated: dict[str, Stated] = {}
        self.warnings: list[str] = []

    def done(self) -> Arguments:
        settings = StatedSettings(source=self.source, stated=self.stated)
        return Arguments(settings=settings, warnings=tuple(dict.fromkeys(self.warnings)))

    def stray(self, word: Word) -> None:
        """A word that belongs to no option: perhaps a variable full of them."""
        place = f"{self.source}:{word.line}"
        if word.unknowns:
            part = word.unknowns[0]
            self.warnings.append(
                f"{self.source}:{part.line}: {part.text} is not known ({part.why}); options it may hold are not read"
            )
        else:
            self.warnings.append(f"{place}: {word.text[:60]!r} belongs to no option")

    def option(self, option: Word, values: Sequence[Word]) -> None:
        name, where = option.text[2:], f"{self.source}:{option.line}: {option.text}"
        known = name if name in NAMES else name.replace("_", "-") if name.replace("_", "-") in NAMES else None
        if known is None:
            self._unknown(option.text, f"{self.source}:{option.line}")
            return
        if known in GONE:
            self.warnings.append(f"{where} is gone in newer versions of Megatron-LM")
        value, used = self._value(known, values, where)
        for word in values[used:]:
            self.stray(word)
        unknowns = tuple(part for word in values[:used] for part in word.unknowns)
        self._state(setting_of(known), Stated(value=value, where=where, unknowns=unknowns))

    def _value(self, name: str, values: Sequence[Word], where: str) -> tuple[Value, int]:
        """The value of an option, and how many words it took."""
        if name in SWITCHES | OFF | BOTH | _BOTH_OFF:
            return name in SWITCHES | BOTH, 0
        if not values:
            raise InvalidValueError("the option has no value", where=where, hint="give one, or drop the option")
        texts = tuple(word.text for word in values)
        if name in LISTS:
            return texts, len(texts)
        setting = setting_of(name)
        return (texts[0] if setting in _TEXTS else typed(texts[0])), 1

    def entry(self, path: str, value: Any, where: str) -> None:
        """One key of a mapping."""
        name = path.rsplit(".", 1)[-1].lstrip("-").replace("-", "_")
        name = _BRIDGE.get(name, name)
        option = name.replace("_", "-")
        setting = setting_of(option) if option in NAMES else name
        if option not in NAMES and setting not in _SETTINGS:
            self._unknown(path, where)
            return
        if value is None:
            return
        made: Value = _listed(value) if option in LISTS or isinstance(value, list) else value
        if option in OFF and setting != name:
            made = not made if isinstance(made, bool) else False
        elif option in SWITCHES and made is False:
            return
        if path.rsplit(".", 1)[-1] in _OPPOSITE and isinstance(made, bool):
            made = not made
        self._state(
            setting, Stated(value=typed(made) if isinstance(made, str) and setting not in _TEXTS else made, where=where)
        )

    def _state(self, setting: str, one: Stated) -> None:
        before = self.stated.get(setting)
        if before is not None and before.value != one.value:
            self.warnings.append(f"{one.where} is given twice ({before.value} and {one.value}); the last holds")
        self.stated[setting] = one

    def _unknown(self, name: str, where: str) -> None:
        bare = name.rsplit(".", 1)[-1].lstrip("-").replace("_", "-")
        near = difflib.get_close_matches(bare, sorted(NAMES), n=1, cutoff=0.75)
        meant = f" (did you mean --{near[0]}?)" if near else ""
        self.warnings.append(f"{where}: Megatron-LM knows no {name[:80]}{meant}; it is not read")


def _listed(value: Any) -> tuple[str, ...]:
    """The words of a list, which YAML may hold as one text."""
    if isinstance(value, str):
        return tuple(value.strip("[]() ").replace(",", " ").split())
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def setting_of(name: str) -> str:
    """The setting an option sets: its argparse destination."""
    if name in RENAMED:
        return RENAMED[name]
    if name in OFF:
        name = name.removeprefix("no-").removeprefix("disable-")
    elif name in _BOTH_OFF:
        name = name.removeprefix("no-")
    return name.replace("-", "_")


_SETTINGS = frozenset(map(setting_of, NAMES))
