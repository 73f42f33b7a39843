"""The time of a whole tick on a real Gitea beside the requests that it makes.

A tick is one round of the engine: poll the forge, decide, commit, and carry out the decisions.
Requests are those of the API and the commands of git that talk to it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from benchmarks.measure import Measure, median
from caloron.forge.connect import connect
from caloron.forge.remote import git as remote_git
from caloron.forge.remote.forge import RemoteForge
from caloron.git import mirror
from tests.integration.engine.loop import Loop
from tests.support.gitea import Server

P = ParamSpec("P")
T = TypeVar("T")
_SPRINTS = 5
_IDLE = 30


class Requests:
    """Counts the seconds that this process waits for a forge."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[P, T]) -> Callable[P, T]:
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return run


@contextmanager
def counting(forge: RemoteForge) -> Iterator[Requests]:
    requests = Requests()
    client: Any = forge.http._client
    modules: tuple[Any, ...] = (mirror, remote_git)
    client.exchange = requests.timed(client.exchange)
    plain = mirror.git_remote  # type: ignore[attr-defined]
    for module in modules:
        module.git_remote = requests.timed(plain)
    try:
        yield requests
    finally:
        del client.exchange
        for module in modules:
            module.git_remote = plain


def ticks(server: Server) -> list[Measure]:
    """A sprint of two tasks from its first issue to its end, tick by tick; then idle ones."""
    shares, idle, asked = [], [], []
    for _ in range(_SPRINTS):
        with _loop(server) as (loop, requests):
            whole, spent = _sprint(loop, requests)
            shares.append(whole / spent)
            asked.append(spent * 1000)
            idle += [_share(loop, requests) for _ in range(_IDLE // _SPRINTS)]
    return [
        Measure(
            "a tick on Gitea beside the requests it makes",
            median(shares),
            "x",
            1.3,
            note=f"all ticks of a sprint of two tasks, median of {_SPRINTS} sprints;"
            f" its requests take {median(asked):.0f} ms",
        ),
        Measure("an idle tick beside its requests", median(idle), "x", 1.3,
                note=f"median of {len(idle)}"),
    ]  # fmt: skip


@contextmanager
def _loop(server: Server) -> Iterator[tuple[Loop, Requests]]:
    directory = Path(tempfile.mkdtemp(prefix="caloron-bench-"))
    repository = server.repository(server.person("robot"))
    forge = connect("gitea", server.url, repository.full_name, repository.who.token)
    os.environ["CALORON_KV_DIR"] = str(directory / "kv")
    loop = Loop(directory, forge)
    # As in the engine: a commit is on disk before anything is done.
    loop.ledger.db.rows("PRAGMA synchronous = FULL")
    try:
        with counting(forge) as requests:
            yield loop, requests
    finally:
        loop.close()
        forge.close()
        del os.environ["CALORON_KV_DIR"]
        shutil.rmtree(directory, ignore_errors=True)


def _sprint(loop: Loop, requests: Requests) -> tuple[float, float]:
    """Seconds of all its ticks, and of their requests; the work between them is not counted."""
    requests.seconds = whole = spent = 0.0
    for _ in range(200):
        before = requests.seconds
        began = time.perf_counter()
        busy = _tick(loop)
        whole += time.perf_counter() - began
        spent += requests.seconds - before
        if busy:
            continue
        working = [task.id for task in loop.state.tasks.values() if task.work]
        if not working:
            return whole, spent
        loop.end(working[0])
    raise RuntimeError("the sprint never ends")


def _tick(loop: Loop) -> bool:
    news, before = loop.poller.poll(), loop.state
    loop.tick()
    acted = loop.perform()
    if loop.signal.errors:
        raise loop.signal.errors[0]
    return bool(news or acted) or loop.state != before


def _share(loop: Loop, requests: Requests) -> float:
    requests.seconds = 0.0
    began = time.perf_counter()
    _tick(loop)
    return (time.perf_counter() - began) / requests.seconds
