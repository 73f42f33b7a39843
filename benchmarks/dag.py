"""Forty tasks on eight slots, against the shortest schedule of the very same durations."""

from __future__ import annotations

import random
import time
from pathlib import Path
from subprocess import run as run_process

from benchmarks.measure import Measure, median
from benchmarks.schedule import Lasts, Simulation, chains, critical_path
from benchmarks.sprints import Event, Home, approves, home, implements

_TASKS = 40
_SLOTS = 8
#: Agents that sleep stand for agents that wait for a model; real ones take minutes.
_IMPLEMENT_S = (6.0, 12.0)
_REVIEW_S = 3.0
_VERIFY = "sleep 0.1"


def run() -> list[Measure]:
    needs, sleeps = make_plan(random.Random(7))
    with home(verify=_VERIFY) as bench_home:
        bench_home.write(
            needs, [*(implements(t, s) for t, s in sleeps.items()), approves(_REVIEW_S)]
        )
        events = bench_home.finish(bench_home.sprint(parallel=_SLOTS))
        merge = bare_merge(bench_home)
    took = sprint_seconds(events)
    lasts = durations(events, needs)
    bound = Simulation(needs, lasts, slots=_SLOTS, merge=merge).run()
    agents = sum(own.implement + own.review for own in lasts.values())
    links = max(chains(needs).values())
    asleep = {
        task: Lasts(implement=seconds, review=_REVIEW_S, verify=0.1, verify_again=0.1)
        for task, seconds in sleeps.items()
    }
    strict = Simulation(needs, asleep, slots=_SLOTS, merge=0.0).run()
    return [
        Measure(
            f"{_TASKS} tasks on {_SLOTS} slots, of the shortest schedule",
            took / bound,
            "x",
            1.15,
            note=f"{took:.1f} s; the schedule of the measured durations {bound:.1f} s"
            f" (critical path {critical_path(needs, lasts):.1f} s, agents' time / {_SLOTS}"
            f" {agents / _SLOTS:.1f} s, a bare merge {merge * 1000:.0f} ms);"
            f" of their sleeps alone {strict:.1f} s; overhead"
            f" {(took - bound) / links:.2f} s for each of {links} tasks in a row",
        )
    ]


def make_plan(chance: random.Random) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Eight tasks that can start at once; each later one needs one or two earlier ones."""
    names = [f"t{n:02}" for n in range(_TASKS)]
    needs: dict[str, list[str]] = {}
    for n, name in enumerate(names):
        near = names[max(0, n - 16) : n - 4]
        needs[name] = sorted(chance.sample(near, chance.choice((1, 2)))) if n >= _SLOTS else []
    return needs, {name: round(chance.uniform(*_IMPLEMENT_S), 2) for name in names}


def sprint_seconds(events: list[Event]) -> float:
    """Return the time from the record of the goal to the end of the sprint."""
    began = next(e.ts for e in events if e.type == "sprint_created")
    ended = next(e.ts for e in events if e.type == "sprint_phase" and e.payload["phase"] == "ended")
    return (ended - began) / 1000


def durations(events: list[Event], needs: dict[str, list[str]]) -> dict[str, Lasts]:
    """Return the time of the agents and verifications of each task, from the ledger."""
    started: dict[str, int] = {}
    ran: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.type == "attempt_started":
            started[event.item] = event.ts
        elif event.type == "attempt_ended":
            _, task, work = event.item.split("/")
            seconds = (event.ts - started[event.item]) / 1000
            ran.setdefault((task, work.split("-", 1)[1]), []).append(seconds)
    return {
        task: Lasts(
            implement=ran[task, "implement"][0],
            review=ran[task, "review"][0],
            verify=ran[task, "verify"][0],
            verify_again=ran[task, "verify"][-1],
        )
        for task in needs
    }


def bare_merge(bench_home: Home) -> float:
    """Seconds that git alone takes to merge one head, on the merges that were just made."""
    forge = bench_home.project / "forge.git"
    merges = _git(forge, "rev-list", "--merges", "--max-count=9", "main").split()
    return median([_merge_again(forge, commit) for commit in merges])


def _merge_again(forge: Path, commit: str) -> float:
    base, head = _git(forge, "rev-parse", f"{commit}^1", f"{commit}^2").split()
    began = time.perf_counter()
    tree = _git(forge, "merge-tree", "--write-tree", base, head).strip()
    made = _git(forge, "commit-tree", tree, "-p", base, "-p", head, "-m", "again").strip()
    _git(forge, "update-ref", "refs/bench/merged", made)
    return time.perf_counter() - began


def _git(repository: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    argv = ("git", *identity, "-C", str(repository), *arguments)
    return run_process(argv, capture_output=True, text=True, check=True).stdout
