"""A Ray cluster (extra `ray`): one that runs already, by its address, or one on this machine for the time of the sweep.

A local cluster listens on the loopback alone, has no dashboard and reports no usage. Workers of another cluster need the same
shardwright installed; one with other source is refused, since its results could differ. Ray's own retries are off: a task
whose worker is lost is given out again by us, a limited number of times. No more than `WINDOW` tasks a worker are out at once.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError, UnsupportedError
from shardwright.planner.sweep.engines.base import lost
from shardwright.planner.sweep.engines.local import usable_cores
from shardwright.planner.sweep.evaluate import evaluated
from shardwright.planner.sweep.points import Prepared, program_digest

WHERE = "--engine ray"
WINDOW = 2
LOOPBACK = "127.0.0.1"
KNOCK_S = 10.0
STORE_BYTES = 80 * 2**20
"""Of Ray's object store: near the least that it takes; results are a few kilobytes."""


class RayEngine:
    """Evaluates points as tasks of a Ray cluster.

    Args:
        workers: tasks that run at once; None for the cores of the cluster.
        address: of a running cluster; None to start one on this machine.
    """

    name = "ray"

    def __init__(self, workers: int | None, address: str | None) -> None:
        self._address = address
        self._asked = workers
        self.workers = workers or usable_cores()

    def results(self, tasks: Iterator[Prepared]) -> Iterator[tuple[str, str]]:
        """Digest and result of each task; see `base.Engine`."""
        first = next(tasks, None)
        if first is None:
            return
        with redirect_stdout(sys.stderr), self._connected() as ray:  # Ray remarks on lost workers on standard output
            yield from self._finished(ray, first, tasks)

    def _finished(self, ray: Any, first: Prepared, tasks: Iterator[Prepared]) -> Iterator[tuple[str, str]]:
        remote = ray.remote(evaluated_here).options(num_cpus=1, max_retries=0)
        program = program_digest()
        out: dict[Any, Prepared] = {}
        losses: dict[str, int] = {}
        again = [first]
        while True:
            while len(out) < WINDOW * self.workers and (task := again.pop() if again else next(tasks, None)):
                out[remote.remote(task.payload, program)] = task
            if not out:
                return
            ready, _ = ray.wait(list(out), num_returns=1)
            for reference in ready:
                task = out.pop(reference)
                text = _received(ray, reference)
                if text is None:
                    lost(task.digest, losses)
                    again.append(task)
                else:
                    yield task.digest, text

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Ray, connected; a connection of the caller's own is used and left open.

        Ray stops the tasks of a connection that ends, so that nothing need be cancelled.
        """
        with _environment(self._address is None):
            import ray

            mine = not ray.is_initialized()
            if mine:
                _connect(ray, self._address, self.workers)
        try:
            if self._address is not None and self._asked is None:
                self.workers = max(int(ray.cluster_resources().get("CPU", 1)), 1)
            yield ray
        finally:
            if mine:
                ray.shutdown()


def ray_engine(workers: int | None, address: str | None) -> RayEngine:
    """The engine, if Ray is there.

    Raises:
        UnsupportedError: it is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        hint = "pip install ray, or use --engine local"
        raise UnsupportedError("Ray is not installed", where=WHERE, hint=hint)
    return RayEngine(workers, address)


def evaluated_here(payload: str, program: str) -> str:
    """What a worker does: evaluates a point, if it has the source of the caller; else an empty text."""
    return evaluated(payload) if program_digest() == program else ""


def _received(ray: Any, reference: Any) -> str | None:
    """The result of a task; None where its worker was lost.

    Raises:
        ConflictError: the worker has other source.
    """
    try:
        text = str(ray.get(reference))
    except ray.exceptions.RayError:
        return None
    if not text:
        message = "a worker of the cluster has another version of shardwright"
        raise ConflictError(message, where="--address", hint="install the same version on all of its nodes")
    return text


def _connect(ray: Any, address: str | None, workers: int) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if address is None:
        local = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        ray.init(_node_ip_address=LOOPBACK, **local, **quiet)
        return
    try:
        _knock(address)
        ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        hint = "name HOST:PORT of its head, or auto on one of its nodes"
        message = f"no Ray cluster answers at {address}: {str(error).partition(chr(10))[0]}"
        raise InvalidValueError(message, where="--address", hint=hint) from error


def _knock(address: str) -> None:
    """Sees whether anybody listens, which Ray itself would wait minutes for.

    Raises:
        OSError: nobody does.
        ValueError: it is no HOST:PORT.
    """
    if address != "auto":
        host, _, port = address.removeprefix("ray://").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()


@contextmanager
def _environment(local: bool) -> Iterator[None]:
    """What Ray reads when it is imported and started: no usage reports.

    For a local cluster also: the loopback alone (the switch is named for the systems where that is the default), a secret of
    its own, and where workers find our modules.
    """
    wanted = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if local:
        wanted |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        wanted |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
