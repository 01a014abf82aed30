"""`sweep`: evaluates all points of a request that its store does not hold yet.

    points -> digests -> those the store lacks, each once -> engine -> store -> result, read from the store

A point is in the store as soon as it is finished. Killed and started again, a sweep evaluates what is missing and ends with
the same bytes. Results are read from the store one at a time: memory does not grow with the number of points.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.documents import digest
from shardwright.errors import InvalidValueError, ShardwrightError, unknown_name
from shardwright.planner.problem import PricingOptions
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.shown import Shown
from shardwright.planner.sweep import scaling
from shardwright.planner.sweep.engines.base import Engine
from shardwright.planner.sweep.engines.local import LocalEngine, usable_cores
from shardwright.planner.sweep.evaluate import failed
from shardwright.planner.sweep.points import Point, Prepared, check_prices, points_of, prepared
from shardwright.planner.sweep.request import SweepRequest, requested
from shardwright.planner.sweep.store import Store

ENGINES = ("local", "ray")
MAX_WORKERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """How far a sweep has come.

    Attributes:
        done: points whose result is known; points: all of them.
        reused: those of `done` that the store held.
        elapsed_s: since the first point was given out.
    """

    done: int
    points: int
    reused: int
    elapsed_s: float


def stored_points(path: Path) -> list[dict[str, Any]]:
    """The points that a store holds, as `SweepResult.records` gives them; their keys say what each result is about.

    Of results about the same job (of other versions, or with other options than a key tells) the one with the fastest plan
    is given. Those that say nothing of what they are about are left out.

    Raises:
        ShardwrightError: no store, or one of another version.
    """
    from shardwright.planner.records.sweep.schema import stored_point

    store = Store.open(path)
    try:
        made: dict[str, dict[str, Any]] = {}
        for text in store.results():
            record = stored_point(text)
            key = record.pop("about", None)
            if key is None:
                continue
            name, point = json.dumps(key), {"key": key, **record}
            if name not in made or _slowness(point) < _slowness(made[name]):
                made[name] = point
        return sorted(made.values(), key=_place)
    finally:
        store.close()


def _slowness(record: dict[str, Any]) -> float:
    best = record["best"]
    return math.inf if best is None else float(best["predicted"]["step_time_s"])


def _place(record: dict[str, Any]) -> tuple[str, ...]:
    """What orders points: words by letters, numbers by size."""
    return tuple(f"{value:012d}" if isinstance(value, int) else str(value) for value in record["key"].values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult(Shown):
    """What a sweep found.

    Attributes:
        asked: points of the sweep.
        points: those that are finished, in the order of the request.
        digests: of their inputs.
        run: what differs from run to run.
        store: holds the results.
    """

    asked: int
    points: tuple[Point, ...]
    digests: tuple[str, ...]
    run: dict[str, Any]
    store: Store

    @property
    def stopped(self) -> str | None:
        """`interrupted` where points are missing."""
        return "interrupted" if len(self.points) < self.asked else None

    @property
    def exit_code(self) -> int:
        """0 if a plan fits anywhere, else 1."""
        return 0 if any(record["status"] == "ok" for record in self.records()) else 1

    def records(self) -> Iterator[dict[str, Any]]:
        """The record of each point, in order."""
        for point, name in zip(self.points, self.digests, strict=True):
            found = json.loads(self.store.get(name) or "{}")
            yield {"key": point.key} | {key: value for key, value in found.items() if key != "about"}

    def head(self) -> dict[str, Any]:
        """The record `sweep --format json` prints, without its points."""
        return {
            "schema_version": 1,
            "kind": "sweep-result",
            "asked": self.asked,
            "stopped": self.stopped,
            "points": [],
            "scaling": scaling.scaling_records(self.records()),
            "run": self.run,
        }

    def to_dict(self) -> dict[str, Any]:
        """The record `sweep --format json` prints."""
        return self.head() | {"points": list(self.records())}

    def __repr__(self) -> str:
        return f"SweepResult(points={len(self.points)}, asked={self.asked})"


def sweep(
    model: str | Sequence[str],
    *,
    node: str | Sequence[str],
    nodes: str | int | Sequence[int] | None = None,
    gpus: str | int | Sequence[int] | None = None,
    seq_len: str | int | Sequence[int] | None = None,
    global_batch: str | int | Sequence[int] | None = None,
    batch_per_gpu: str | float | Sequence[float] | None = None,
    tokens_per_batch: str | int | Sequence[int] | None = None,
    precision: str | Sequence[str] | None = None,
    framework: str | Sequence[str] | None = None,
    options: PricingOptions | None = None,
    search: SearchOptions | None = None,
    engine: str | Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    store: str | Path | None = None,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> SweepResult:
    """The best plans of every combination of models, clusters and jobs.

    Args:
        model: preset ids or paths; one or several, as all knobs: also `"1,2,4"`, `"1..64x2"`, `"8..64+8"`, `"auto"`.
        node: node types.
        nodes: numbers of nodes (default auto: 1, 2, 4, ... up to 16,384 GPUs).
        gpus: numbers of GPUs, instead of nodes.
        seq_len: tokens a sequence (default auto: the model's context, at most 8,192).
        global_batch: sequences a step (default auto: 4,194,304 tokens).
        batch_per_gpu: sequences a step for each GPU, as another batch rule.
        tokens_per_batch: tokens a step, as another batch rule.
        precision: default auto: bf16, or fp16 where the device has no bf16.
        framework: default any.
        options: what else pricing takes; its precision, framework and gpus are not used.
        search: plans a point (`top`), `fix`, `effort`, `tie_percent`; the default keeps the best plan.
        engine: `local`, `ray`, or an engine.
        workers: points evaluated at once (default: the cores).
        address: of a Ray cluster (default: one on this machine for the time of the sweep).
        store: file that keeps finished points, so that the sweep can be resumed.
        on_progress: called with an immutable event as points finish.

    Raises:
        ShardwrightError: an input that cannot be used, or no point that can be priced.

    Example:
        >>> import shardwright
        >>> found = shardwright.sweep("gpt2", node="dgx-h100", nodes="1,2", seq_len=1024, global_batch=512, workers=1)
        >>> [record["status"] for record in found.records()]
        ['ok', 'ok']
    """
    given: dict[str, Any] = {
        "model": model,
        "node": node,
        "nodes": nodes,
        "gpus": gpus,
        "seq_len": seq_len,
        "global_batch": global_batch,
    }
    given |= {"batch_per_gpu": batch_per_gpu, "tokens_per_batch": tokens_per_batch}
    request = requested({**given, "precision": precision, "framework": framework})
    if options is not None:
        request = replace(request, options=options)
    if search is not None:
        request = replace(request, search=search)
    how = engine_of(engine, workers, address) if isinstance(engine, str) else engine
    return run_sweep(request, engine=how, store=store, on_progress=on_progress)


def engine_of(name: str, workers: int | None = None, address: str | None = None) -> Engine:
    """The engine of a name.

    Raises:
        UnknownNameError: there is none.
        InvalidValueError: a number of workers out of range, or an address without Ray.
        UnsupportedError: Ray is not installed.
    """
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES, where="--engine")
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise InvalidValueError(f"{workers} workers", where="--workers", hint=f"give 1 to {MAX_WORKERS}")
    if name == "ray":
        from shardwright.planner.sweep.engines.ray_cluster import ray_engine

        return ray_engine(workers, address)
    if address is not None:
        raise InvalidValueError("an address with the local engine", where="--address", hint="add --engine ray")
    return LocalEngine(workers=workers or usable_cores())


def run_sweep(
    request: SweepRequest,
    *,
    engine: Engine,
    store: str | Path | None = None,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> SweepResult:
    """The points of a request, evaluated; as `sweep`.

    Raises:
        ShardwrightError: an input that cannot be used, or no point that can be priced.
        KeyboardInterrupt: stopped before any point was finished.
    """
    began = time.perf_counter()
    points = points_of(request)
    check_prices(points, request)
    kept = Store.open(Path(store)) if store is not None else Store.temporary()
    try:
        digests = _digests(points, request, kept)
        work = _Work(request=request, points=points, digests=digests, store=kept, tell=on_progress)
        work.go(engine)
    except BaseException:
        kept.close()
        raise
    finished = [(point, name) for point, name in zip(points, digests, strict=True) if kept.has(name)]
    run = {"wall_s": time.perf_counter() - began, "computed": work.computed, "reused": work.reused}
    return SweepResult(
        asked=len(points),
        points=tuple(point for point, _ in finished),
        digests=tuple(name for _, name in finished),
        run=run | {"engine": engine.name, "workers": engine.workers, "version": _version()},
        store=kept,
    )


def _digests(points: Sequence[Point], request: SweepRequest, store: Store) -> tuple[str, ...]:
    """The digest of every point; one that cannot be priced has its result in the store already.

    Raises:
        ShardwrightError: the fault of the first point, where no point can be priced.
    """
    made: list[str] = []
    faults: list[ShardwrightError] = []
    for point in points:
        try:
            made.append(prepared(point, request).digest)
        except ShardwrightError as error:
            faults.append(error)
            text = failed("error", error)
            made.append(digest({"key": point.key, "result": text}))
            store.put(made[-1], text)
    if len(faults) == len(points):
        raise faults[0]
    return tuple(made)


class _Work:
    """The points that are to be evaluated, and how far that is."""

    def __init__(
        self,
        *,
        request: SweepRequest,
        points: Sequence[Point],
        digests: Sequence[str],
        store: Store,
        tell: Callable[[SweepProgress], None] | None,
    ) -> None:
        self._request, self._store, self._tell = request, store, tell
        self._points: dict[str, Point] = {}
        for point, name in zip(points, digests, strict=True):
            self._points.setdefault(name, point)
        self._times = Counter(digests)
        self._began = time.perf_counter()
        self.computed, self.reused = 0, 0

    def go(self, engine: Engine) -> None:
        """Evaluates what the store lacks; interrupted, it ends with what is finished, if anything is."""
        results = engine.results(self._tasks())
        try:
            for name, text in results:
                self._store.put(name, text)
                self.computed += self._times[name]
                self._report()
        except KeyboardInterrupt:
            if self.computed + self.reused == 0:
                raise
        finally:
            if isinstance(results, Generator):
                results.close()

    def _tasks(self) -> Iterator[Prepared]:
        """Points in their order, less those that are known when their turn comes."""
        from shardwright.planner.records.sweep.schema import stored_point

        for name, point in self._points.items():
            known = self._store.get(name)
            if known is not None:
                stored_point(known)
                self.reused += self._times[name]
            else:
                yield prepared(point, self._request)
        self._report()

    def _report(self) -> None:
        if self._tell is not None:
            total, elapsed = sum(self._times.values()), time.perf_counter() - self._began
            done = self.computed + self.reused
            self._tell(SweepProgress(done=done, points=total, reused=self.reused, elapsed_s=elapsed))


def _version() -> str:
    import shardwright

    return shardwright.__version__
