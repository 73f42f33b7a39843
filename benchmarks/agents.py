"""An agent's home: claims, calls, the dashboard and memory, with little and with much history."""

from __future__ import annotations

import compileall
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Measure, alternate, median, ratio
from benchmarks.sprints import SOURCE
from caloron.agentstate.dashboard import regenerate
from caloron.agentstate.instance import AgentInstance

_WAITING = 8
_ROUNDS = 400
_LEASE_MS = 600_000
_RUNS = 21
_ITEMS = 100_000
_PEAK = (
    "import resource, sys; from pathlib import Path\n"
    "from caloron.agentstate.instance import AgentInstance\n"
    "from caloron.cli.commands.agent_state.main import main\n"
    "home = AgentInstance(Path(sys.argv[1]))\n"
    "claim = home.work_items.claim_next('forge')\n"
    "home.work_items.resolve(claim.item.id, 'done')\n"
    "home.regenerate_dashboard(); home.write_retro()\n"
    "main(['errands', 'list'], len); main(['events', 'since', '0'], len)\n"
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
)


class Ours:
    """The queue as agents use it."""

    def __init__(self, where: Path) -> None:
        self.home = AgentInstance(where)
        self._filled = 0

    def turn(self) -> float:
        """Seconds per item for claiming and ending everything that waits."""
        errands = self.home.work_items
        for _ in range(_WAITING):
            self._filled += 1
            errands.enqueue(f"item-{self._filled}", "review", "{}")
        began = time.perf_counter()
        for _ in range(_WAITING):
            claim = errands.claim_next("forge", kinds=("review",))
            assert claim is not None
            errands.resolve(claim.item.id, "done", token=claim.lease.token)
        return (time.perf_counter() - began) / _WAITING


class Bare:
    """The same rows in the same two commits, written blindly: no rule is checked, no trigger runs,
    nothing is read back."""

    def __init__(self, where: Path) -> None:
        with AgentInstance(where) as home:
            triggers = home.db.rows("SELECT name FROM sqlite_master WHERE type = 'trigger'")
            for row in triggers:
                home.db.rows(f"DROP TRIGGER {row['name']}")
        self._filled = 0
        self._connection = sqlite3.connect(where / "state.sqlite", isolation_level=None)
        for pragma in ("foreign_keys = ON", "journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}")

    def _fill(self) -> None:
        run = self._connection.execute
        for _ in range(_WAITING):
            self._filled += 1
            item, now = f"item-{self._filled}", int(time.time() * 1000)
            run("BEGIN IMMEDIATE")
            row = (item, now, now)
            run(
                "INSERT INTO work_items VALUES (?, 'review', '{}', 'pending', NULL, ?, ?, NULL)",
                row,
            )
            run(
                "INSERT INTO caloron_leases (item, kind, created_at) VALUES (?, 'review', ?)",
                (item, now),
            )
            self._event(now, "work_item_created", item, '{"kind":"review","status":"pending"}')
            run("COMMIT")

    def _event(self, now: int, type: str, item: str, payload: str) -> None:
        self._connection.execute(
            "INSERT INTO events (ts, type, actor, work_item_id, payload) VALUES (?, ?, ?, ?, ?)",
            (now, type, "forge", item, payload),
        )

    def turn(self) -> float:
        self._fill()
        run = self._connection.execute
        began = time.perf_counter()
        for _ in range(_WAITING):
            run("BEGIN IMMEDIATE")
            (item,) = run(
                "SELECT item FROM caloron_leases WHERE status IN ('pending', 'in_flight')"
                " AND status = 'pending' ORDER BY priority DESC, created_at, item LIMIT 1"
            ).fetchone()
            now = int(time.time() * 1000)
            run(
                "UPDATE caloron_leases SET token = token + 1, holder = 'forge', expires_at = ?,"
                " attempt = attempt + 1, status = 'in_flight' WHERE item = ?",
                (now + _LEASE_MS, item),
            )
            run(
                "UPDATE work_items SET status = 'in_flight', owner_agent = 'forge', updated_at = ?"
                " WHERE id = ?",
                (now, item),
            )
            self._event(now, "work_item_claimed", item, '{"status":"in_flight"}')
            run("COMMIT")
            run("BEGIN IMMEDIATE")
            now = int(time.time() * 1000)
            run(
                "UPDATE caloron_leases SET status = 'done', token = token + 1, holder = '',"
                " expires_at = 0 WHERE item = ?",
                (item,),
            )
            run("UPDATE work_items SET status = 'done', updated_at = ? WHERE id = ?", (now, item))
            self._event(now, "work_item_resolved", item, '{"status":"done","notes":null}')
            run("COMMIT")
        return (time.perf_counter() - began) / _WAITING


def run() -> list[Measure]:
    with tempfile.TemporaryDirectory(prefix="caloron-bench-") as folder:
        folder_path = Path(folder)
        return [_claims(folder_path), *_calls(folder_path), *_history(folder_path)]


def _claims(folder_path: Path) -> Measure:
    ours, bare = Ours(folder_path / "ours"), Bare(folder_path / "bare")
    mine, theirs = alternate(_ROUNDS, ours.turn, bare.turn)
    return Measure(
        "agent's claim and resolve, speed of a bare loop",
        ratio(theirs, mine),
        "x",
        0.8,
        "more",
        f"{1 / median(mine):,.0f} items/s; the bare loop of the same two commits"
        f" {1 / median(theirs):,.0f}/s",
    )


def _calls(folder_path: Path) -> list[Measure]:
    # As in an installation: a checkout may contain sources that were never compiled.
    compileall.compile_dir(SOURCE, quiet=1)
    environment = os.environ | {"MF_INSTANCE_DIR": str(folder_path / "called")}
    with AgentInstance(folder_path / "called") as home:
        home.work_items.enqueue("a", "review", "{}")
    path = os.pathsep.join([str(SOURCE), environment.get("PYTHONPATH", "")])
    environment["PYTHONPATH"] = path
    program = (sys.executable, "-c", "from caloron.cli.start import run; run()", "agent-state")
    commands = {
        "errands list": (*program, "errands", "list"),
        "errands annotate": (
            *program, "errands", "annotate", "--id", "a", "--notes-json", '{"k":1}',
        ),
    }  # fmt: skip
    bare = _timed((sys.executable, "-c", "pass"), environment)
    least = _timed((sys.executable, "-c", "import json, sqlite3"), environment)
    original = _original(environment)
    *mine, empty, smallest, other = alternate(
        _RUNS,
        *(_timed(command, environment) for command in commands.values()),
        bare,
        least,
        original or (lambda: 0.0),
    )
    compared = f"; agent-state itself {median(other) * 1000:.0f} ms" if original else ""
    return [
        Measure(
            f"`agent-state {name}` cold",
            median(times) * 1000,
            "ms",
            note=f"python -c pass {median(empty) * 1000:.0f} ms, with json and sqlite3"
            f" {median(smallest) * 1000:.0f} ms{compared or '; agent-state not here (no bun)'}",
        )
        for name, times in zip(commands, mine, strict=True)
    ]


def _original(environment: dict[str, str]) -> Callable[[], float] | None:
    """agent-state's own `errands list`, where it and bun are installed."""
    script = Path(
        os.environ.get("MF_AGENT_STATE_ERRANDS_SCRIPT")
        or "~/.config/metafactory/pkg/repos/agent-state/skill/scripts/errands.ts"
    ).expanduser()
    bun = shutil.which("bun")
    if bun is None or not script.exists():
        return None
    return _timed((bun, str(script), "list"), environment)


def _timed(command: tuple[str, ...], environment: dict[str, str]) -> Callable[[], float]:
    def timed_run() -> float:
        began = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    return timed_run


def _filled(where: Path, items: int) -> Path:
    """A home with so many items, a tenth of them open, and three events for each."""
    with AgentInstance(where) as home, home.db.transaction("fill") as connection:
        count = (
            f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {items})"
        )
        connection.execute(
            f"{count} INSERT INTO work_items SELECT 'old-' || i, 'kind-' || (i % 7), '{{}}',"
            " iif(i % 10, 'done', 'pending'), 'forge', i, i, NULL FROM n"
        )
        for kind, payload in (
            ("work_item_created", '{"kind":"x","status":"pending"}'),
            ("work_item_claimed", '{"status":"in_flight"}'),
            ("work_item_resolved", '{"status":"done","notes":null}'),
        ):
            connection.execute(
                f"{count} INSERT INTO events (ts, type, actor, work_item_id, payload)"
                f" SELECT i, '{kind}', 'forge', 'old-' || i, '{payload}' FROM n"
            )
    return where


def _history(folder_path: Path) -> list[Measure]:
    few, many = _filled(folder_path / "few", 1000), _filled(folder_path / "many", _ITEMS)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        regenerate(many)
        times.append(time.perf_counter() - began)
    small, large = _peak_mb(few), _peak_mb(many)
    return [
        Measure(f"dashboard of {_ITEMS:,} items", median(times), "s", 1.0),
        Measure(
            "memory with 100 times the history",
            large / small,
            "x",
            1.25,
            note=f"{large:.1f} MB at most, against {small:.1f} MB: a claim, its end, dashboard,"
            " retro, a list and the whole diary printed",
        ),
    ]


def _peak_mb(where: Path) -> float:
    environment = os.environ | {"MF_INSTANCE_DIR": str(where), "PYTHONPATH": str(SOURCE)}
    result = subprocess.run(
        (sys.executable, "-c", _PEAK, str(where)),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(result.stdout) * 1024 / 1e6
