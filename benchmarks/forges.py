"""The cost of a sprint on a real Gitea in requests and in waiting."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.forge_ticks import ticks
from benchmarks.measure import Measure, median
from benchmarks.sprints import Home, approves, implements, stop, wait_for
from caloron.forge.connect import connect
from caloron.forge.remote.forge import RemoteForge
from caloron.http import Response
from tests.support.fault_proxy import FaultProxy, Heard
from tests.support.gitea import Repository, Server
from tests.support.sockets import free_port

_TOKEN, _SECRET = "BENCH_FORGE_TOKEN", "BENCH_WEBHOOK_SECRET"
_CHAIN = 5
_ISSUES = 100
_POLL_S = 1.0
#: The requests of a poll; all other requests belong to a task.
_POLLS = ("/issues", "/issues/comments", "/git/refs/heads")


def run() -> list[Measure]:
    server = Server()
    try:
        return [*_polls(server), *ticks(server), *_tasks(server), *_hand_overs(server)]
    finally:
        server.remove()


def _polls(server: Server) -> list[Measure]:
    """Requests of a poll with nothing new, 10 and 100 events; and its time beside theirs."""
    repository = server.repository(server.person("robot"))
    ada = repository.acting_as(server.person("ada"))
    repository.collaborator(ada.who)
    for n in range(_ISSUES):
        repository.open_issue(f"task {n}")
    proxy = FaultProxy(server.url)
    forge = connect("gitea", proxy.url, repository.full_name, repository.who.token)
    cursor = forge.poll("").cursor
    try:
        counts = {}
        for events in (10, 100):
            for n in range(events):
                ada.comment(n % _ISSUES + 1, f"remark {n}")
            with proxy.counting() as heard:
                cursor = forge.poll(cursor).cursor
            counts[events] = len(heard)
        cursor, idle = _until_idle(forge, proxy, cursor)
        share, asked_ms = _share_of_requests(forge, cursor)
    finally:
        forge.close()
        proxy.close()
    return [
        Measure("requests of an idle poll, 100 tasks", idle, "", 3),
        Measure("requests of a poll with 10 events", counts[10], "", None),
        Measure("requests of a poll with 100 events", counts[100], "", None),
        Measure(
            "a poll of Gitea beside the requests it makes",
            share,
            "x",
            1.3,
            note=f"median of 30; the requests take {asked_ms:.0f} ms",
        ),
    ]


def _until_idle(forge: RemoteForge, proxy: FaultProxy, cursor: str) -> tuple[str, int]:
    """Wait, as recent changes are read again: the forge's clock has one-second resolution."""
    for _ in range(40):
        with proxy.counting() as heard:
            cursor = forge.poll(cursor).cursor
        if len(heard) <= 3:
            break
        time.sleep(0.25)
    return cursor, len(heard)


def _share_of_requests(forge: RemoteForge, cursor: str) -> tuple[float, float]:
    """Return the time of a poll for each second that its own requests take."""
    spent: list[float] = []
    client = forge.http._client
    exchange = client.exchange

    def timed(*args: Any, **options: Any) -> Response:
        began = time.perf_counter()
        try:
            return exchange(*args, **options)
        finally:
            spent.append(time.perf_counter() - began)

    client.exchange = timed  # type: ignore[method-assign]
    shares, asked = [], []
    for _ in range(30):
        spent.clear()
        began = time.perf_counter()
        cursor = forge.poll(cursor).cursor
        whole = time.perf_counter() - began
        shares.append(whole / sum(spent))
        asked.append(sum(spent) * 1000)
    return median(shares), median(asked)


def _tasks(server: Server) -> list[Measure]:
    """Requests of a whole sprint for each finished task, without its polls."""
    repository = server.repository(server.person("robot"))
    proxy = FaultProxy(server.url)
    names = [f"t{n}" for n in range(4)]
    try:
        with _project(repository, proxy.url) as bench_home, proxy.counting() as heard:
            bench_home.write({name: [] for name in names}, [*map(implements, names), approves()])
            bench_home.finish(bench_home.sprint(parallel=4))
    finally:
        proxy.close()
    acting = [request for request in heard if not _is_poll(request)]
    return [
        Measure(
            "requests for each finished task",
            len(acting) / len(names),
            "",
            None,
            note=f"{len(names)} tasks; besides, {len(heard) - len(acting)} for looking every"
            f" {_POLL_S:g} s; git's own included",
        )
    ]


def _is_poll(request: Heard) -> bool:
    return request.method == "GET" and request.path.endswith(_POLLS)


def _hand_overs(server: Server) -> list[Measure]:
    """The time from a person's merge on the forge to the start of the task that waited for it."""
    polled = _waits(server, webhook=False)
    pushed = _waits(server, webhook=True)
    note = f"median of {len(polled)} merges by a person, in a chain"
    return [
        Measure("merge → dependent, polling every second", median(polled), "ms", 2000, note=note),
        Measure("merge → dependent, by webhook", median(pushed), "ms", 300, note=note),
    ]


def _waits(server: Server, *, webhook: bool) -> list[float]:
    repository = server.repository(server.person("robot"))
    names = [f"t{n}" for n in range(_CHAIN)]
    tasks = {name: names[max(n - 1, 0) : n] for n, name in enumerate(names)}
    # By webhook alone: the next regular poll would come far too late.
    settings = {"poll_s": 60.0 if webhook else _POLL_S}
    with _project(repository, server.url, **settings) as bench_home:
        if webhook:
            address = f"127.0.0.1:{free_port()}"
            bench_home.environment[_SECRET] = secret = secrets.token_hex(16)
            bench_home.run("config", "set", "webhook", address)
            bench_home.run("config", "set", "webhook_secret_env", _SECRET)
            repository.webhook(f"http://{address}/", secret)
        reads = {"when": {"role": "review"}, "sleep_s": 600, "output": "APPROVED"}
        bench_home.write(tasks, [*map(implements, names), reads])
        process = bench_home.sprint(parallel=2)
        waits = [
            _merge_and_wait(repository, bench_home, process, *pair) for pair in pairwise(names)
        ]
        stop(process)
        return waits


def _merge_and_wait(
    repository: Repository,
    bench_home: Home,
    process: subprocess.Popen[bytes],
    before: str,
    after: str,
) -> float:
    """A person merges a pull request that is still read; milliseconds until the next task."""
    branch = f"agent/{before}/bench-1"

    def open_pulls() -> list[int]:
        return [p["number"] for p in repository.pulls("open") if p["head"]["ref"] == branch]

    wait_for(lambda: bool(open_pulls()), process)
    # A person reads a pull request before the merge; by then the engine has polled it.
    time.sleep(1.5 * _POLL_S)
    (number,) = open_pulls()
    repository.merge(number)
    merged_ms = time.time() * 1000
    item = f"/{after}/"

    def claims() -> list[int]:
        return [
            e.ts for e in bench_home.events() if e.type == "work_item_claimed" and item in e.item
        ]

    wait_for(lambda: bool(claims()), process)
    return claims()[0] - merged_ms


@contextmanager
def _project(repository: Repository, url: str, poll_s: float = _POLL_S) -> Iterator[Home]:
    directory = Path(tempfile.mkdtemp(prefix="caloron-bench-"))
    bench_home = Home(directory)
    bench_home.environment[_TOKEN] = repository.who.token
    options = ("--forge", "gitea", "--host", url, "--repo", repository.full_name)
    try:
        bench_home.run("init", "bench", "--framework", "stub", *options, "--token-env", _TOKEN)
        with chdir(bench_home.project):
            bench_home.run("config", "set", "poll_s", str(poll_s))
            yield bench_home
    finally:
        shutil.rmtree(directory, ignore_errors=True)
