"""What a launcher is told besides the plan: `emit --launch KEY=VALUE`.

    job_name        name of the job                        (the model's name)
    hosts           host names in rank order, a,b,c        (the plan's placement)
    port            port of the rendezvous                 (29500)
    partition, account, time, qos, constraint              Slurm
    image, namespace, kind (pytorchjob | trainjob)         Kubernetes
    steps           training steps                         (50)
    env.NAME        a further environment variable

Values are free text; every writer quotes them for its own format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from shardwright.errors import ConflictError, InvalidValueError, unknown_name

WHERE = "--launch"
KINDS = ("pytorchjob", "trainjob")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ENV = "env."
MAX_TEXT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """What a launcher is told; None where it decides."""

    job_name: str | None = None
    hosts: tuple[str, ...] = ()
    port: int = 29500
    steps: int = 50
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    qos: str | None = None
    constraint: str | None = None
    image: str | None = None
    namespace: str | None = None
    kind: str = KINDS[0]
    environment: Mapping[str, str] = field(default_factory=dict)


_WHOLE = {"port": (1, 65535), "steps": (1, 10**9)}
KEYS = tuple(sorted(f.name for f in fields(LaunchOptions) if f.name != "environment"))


def launch_options(statements: Sequence[str]) -> LaunchOptions:
    """The options of `KEY=VALUE` statements.

    Raises:
        UnknownNameError: a key that does not exist.
        InvalidValueError: no `=`, an empty or unprintable value, a number out of range.
        ConflictError: a key stated twice.
    """
    given: dict[str, object] = {}
    environment: dict[str, str] = {}
    for statement in statements:
        key, value = _pair(statement)
        store: dict[str, object] | dict[str, str] = given
        if key.startswith(_ENV):
            store, key = environment, _variable(key.removeprefix(_ENV))
        elif key not in KEYS:
            raise unknown_name("launch option", key, (*KEYS, "env.NAME"), where=WHERE)
        if key in store:
            raise ConflictError(f"{key} is stated twice", where=WHERE, hint="keep one of the two")
        store[key] = value if store is environment else _typed(key, value)  # type: ignore[assignment]
    return LaunchOptions(environment=environment, **given)  # type: ignore[arg-type]


def _pair(statement: str) -> tuple[str, str]:
    key, separator, value = statement.partition("=")
    if not separator or not key.strip() or not value:
        raise InvalidValueError(f"{statement!r} is no KEY=VALUE", where=WHERE, hint="write --launch partition=gpu")
    if "\0" in value or len(value) > MAX_TEXT:
        hint = f"at most {MAX_TEXT} characters, none of them NUL"
        raise InvalidValueError(f"the value of {key.strip()} cannot be written to a file", where=WHERE, hint=hint)
    return key.strip(), value


def _variable(name: str) -> str:
    if not _NAME.match(name):
        raise InvalidValueError(f"{name!r} is no name of an environment variable", where=WHERE, hint="write env.NAME=VALUE")
    return name


def _typed(key: str, value: str) -> object:
    if key == "hosts":
        return tuple(part for part in re.split(r"[,\s]+", value) if part)
    if key == "kind" and value not in KINDS:
        raise unknown_name("kind of Kubernetes job", value, KINDS, where=WHERE)
    if key not in _WHOLE:
        return value
    low, high = _WHOLE[key]
    if not value.isascii() or not value.isdigit() or not low <= int(value) <= high:
        raise InvalidValueError(f"{key} is {value!r}", where=WHERE, hint=f"a whole number from {low} to {high}")
    return int(value)
