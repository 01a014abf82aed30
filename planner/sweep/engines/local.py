"""Processes of this machine: one pipe each, one task at a time.

Workers are started afresh (`spawn`), so that they hold nothing of the caller, and end when their pipe does: also when the
caller is killed. They leave interrupts from the keyboard to the caller. One worker is this very process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from shardwright.planner.sweep.engines.base import lost
from shardwright.planner.sweep.evaluate import evaluated
from shardwright.planner.sweep.points import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """A pool of processes.

    Attributes:
        workers: how many; 1 evaluates in this process.
    """

    workers: int
    name: str = field(default="local", init=False)

    def results(self, tasks: Iterator[Prepared]) -> Iterator[tuple[str, str]]:
        """Digest and result of each task; see `base.Engine`."""
        if self.workers == 1:
            return ((task.digest, evaluated(task.payload)) for task in tasks)
        return _pooled(tasks, self.workers)


def usable_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(slots=True, kw_only=True)
class _Worker:
    """A process, our end of its pipe, and the task it has."""

    process: BaseProcess
    pipe: Connection
    task: Prepared | None = None


def _pooled(tasks: Iterator[Prepared], count: int) -> Iterator[tuple[str, str]]:
    workers: dict[Connection, _Worker] = {}
    losses: dict[str, int] = {}
    again: list[Prepared] = []
    try:
        while True:
            _fill(workers, tasks, again, count)
            if not workers:
                return
            for pipe in wait(list(workers)):
                worker = workers[pipe]  # type: ignore[index]
                task, text = worker.task, _received(worker)
                worker.task = None
                if text is None:
                    del workers[worker.pipe]
                    _end(worker)
                    if task is not None:
                        lost(task.digest, losses)
                        again.append(task)
                elif task is not None:
                    yield task.digest, text
    finally:
        for worker in workers.values():
            _end(worker)


def _fill(workers: dict[Connection, _Worker], tasks: Iterator[Prepared], again: list[Prepared], count: int) -> None:
    """Gives every idle worker a task, starts workers while there are tasks for them, ends those without."""
    for worker in [w for w in workers.values() if w.task is None]:
        _give(workers, worker, _next(tasks, again))
    while len(workers) < count and (task := _next(tasks, again)) is not None:
        with _interrupts_held():
            worker = _started()
            workers[worker.pipe] = worker
        _give(workers, worker, task)


def _next(tasks: Iterator[Prepared], again: list[Prepared]) -> Prepared | None:
    return again.pop() if again else next(tasks, None)


def _give(workers: dict[Connection, _Worker], worker: _Worker, task: Prepared | None) -> None:
    if task is None:
        del workers[worker.pipe]
        _end(worker)
        return
    worker.task = task
    try:
        worker.pipe.send_bytes(task.payload.encode())
    except OSError:  # it has died: found when its pipe is read
        return


def _received(worker: _Worker) -> str | None:
    """What a worker sends; None when it has died."""
    try:
        return worker.pipe.recv_bytes().decode()
    except (EOFError, OSError):
        return None


def _started() -> _Worker:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process=process, pipe=ours)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Interrupts from the keyboard come when this ends; a process started within does not see them until it ignores them.

    The mask is for the new process, which inherits it; it is not enough for this one, whose other threads have none.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    held: list[int] = []
    resource_tracker.ensure_running()  # which lets interrupts through when it is started
    handler = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if held:
        raise KeyboardInterrupt


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.join()


def serve(pipe: Connection) -> None:
    """What a worker does: evaluates what it is sent until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            payload = pipe.recv_bytes().decode()
        except EOFError:
            return
        pipe.send_bytes(evaluated(payload).encode())
