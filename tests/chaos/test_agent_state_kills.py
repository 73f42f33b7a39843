"""An agent's home, killed at every point: the old state or the new one, never a third.

Each command runs once undisturbed, stopping at every crash point it reaches; then once for each
point: it is killed there, its state is compared, and it runs again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caloron.agentstate.instance import AgentInstance
from caloron.cycles import Cycles, location_of
from caloron.cycles.state import CycleState, apply
from caloron.cycles.storage import Log
from tests.chaos.recorder import Point, stop_at_each_point

CALORON = (sys.executable, "-c", "from caloron.cli.start import run; run()")
PATIENCE_S = 60
#: Each command with the commands that must run before it.
ERRANDS = {
    "enqueue": ((), "errands enqueue --kind x --id b --payload {}"),
    "claim": ((), "errands claim --id a --owner forge"),
    "next": ((), "errands next --owner forge"),
    "renew": (("errands claim --id a --owner forge",), "errands renew --id a --token 1"),
    "release": (("errands claim --id a --owner forge",), "errands release --id a"),
    "resolve": (
        ("errands claim --id a --owner forge", 'errands annotate --id a --notes-json {"k":1}'),
        "errands resolve --id a --status done --notes merged",
    ),
    "annotate": ((), 'errands annotate --id a --notes-json {"session_id":"s1"}'),
    "park": ((), "errands park --id a --question why"),
    "answer": (("errands park --id a --question why",), "errands answer --id a --answer so"),
    "reopen": (("errands resolve --id a --status done",), "errands reopen --id a"),
    "retry": (("errands resolve --id a --status failed",), "errands retry --id a"),
    "append": ((), "events append --type boot --payload {}"),
}
CYCLES = {
    "begin": ((), "begin allegro --work task"),
    "act": (("begin allegro",), "act allegro pushed --artefact x"),
    "beat": (("begin allegro",), "act allegro"),
    "end": (("begin allegro", "act allegro pushed"), "end allegro --artefact x --next go"),
    "begin after a crash": (("begin allegro --pid {dead}",), "begin allegro"),
    "recover": (("begin allegro", "act allegro pushed"), "recover allegro --force"),
    "begin with a damaged state": (("begin allegro", "end allegro --reason r", "!damage"),
                                   "begin allegro"),
    "begin with a long log": (("begin allegro", "end allegro --reason r", "!lengthen"),
                              "begin allegro"),
}  # fmt: skip


def environment(folder: Path, **extra: str) -> dict[str, str]:
    return os.environ | {
        "MF_INSTANCE_DIR": str(folder / "agent"),
        "CALORON_HOME": str(folder / "home"),
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(sys.path),
        **extra,
    }


def run(folder: Path, line: str, **extra: str) -> int:
    words = line.split()
    return subprocess.run(
        [*CALORON, *words], env=environment(folder, **extra), capture_output=True, check=False,
        timeout=PATIENCE_S,
    ).returncode  # fmt: skip


def points_of(folder: Path, line: str) -> list[str]:
    """Every crash point that a command reaches, with how often it was reached before."""
    log = folder / "points.log"
    log.touch()
    process = subprocess.Popen(
        [*CALORON, *line.split()],
        env=environment(folder, CALORON_CRASH_LOG=str(log)),
        stdout=subprocess.DEVNULL,
    )
    points: list[Point] = []
    stop_at_each_point(process, log, points.append)
    assert process.returncode == 0
    return [f"{point.name}|{point.k}" for point in points]


def killed_at(folder: Path, line: str, point: str) -> None:
    once = folder / "killed"
    code = run(folder, line, CALORON_CRASH_AT=f"engine|{point}|{once}")
    assert once.exists(), point
    assert code == -signal.SIGKILL, point


def copy(template: Path, to: Path) -> Path:
    shutil.copytree(template, to)
    return to


def errands_form(folder: Path) -> Any:
    """Return the content of the file, without times."""
    with AgentInstance(folder / "agent") as home:
        items = home.db.rows(
            "SELECT id, kind, payload, status, owner_agent, notes FROM work_items ORDER BY id"
        )
        events = home.db.rows("SELECT type, actor, work_item_id, payload FROM events ORDER BY id")
        leases = home.db.rows(
            "SELECT item, token, holder, status, attempt, guest FROM caloron_leases ORDER BY item"
        )
        assert home.db.rows("PRAGMA integrity_check")[0][0] == "ok"
        assert not home.db.rows("PRAGMA foreign_key_check")
        return [[tuple(row) for row in rows] for rows in (items, events, leases)]


@pytest.mark.parametrize("name", ERRANDS)
def test_a_kill_leaves_the_errands_as_they_were_or_as_they_should_be(
    tmp_path: Path, name: str
) -> None:
    before, line = ERRANDS[name]
    template = tmp_path / "template"
    template.mkdir()
    for command in ("errands enqueue --kind x --id a --payload {}", *before):
        assert run(template, f"agent-state {command}") == 0
    old = errands_form(template)
    done = copy(template, tmp_path / "done")
    points = points_of(done, f"agent-state {line}")
    new = errands_form(done)
    assert {p.split(".")[1].split("|")[0] for p in points} >= {"before_commit", "after_commit"}
    for number, point in enumerate(points):
        folder = copy(template, tmp_path / f"cell-{number}")
        killed_at(folder, f"agent-state {line}", point)
        form = errands_form(folder)
        assert form == (new if "after_commit" in point else old), point
        if form == old:
            assert run(folder, f"agent-state {line}") == 0
            assert errands_form(folder) == new, point


def cycle_form(folder: Path) -> tuple[CycleState, CycleState]:
    """Return the state of the cycles, and that of the log alone; without times and owners."""
    location = location_of("allegro", hermes=False)._replace(
        state=folder / "home/cycles/allegro.json",
        log=folder / "home/cycles/allegro.log",
    )
    state = Cycles(location).load().state
    folded = CycleState("allegro")
    for entry in Log(location.log).entries():
        folded = apply(folded, entry)
    return _timeless(state), _timeless(folded)


def _timeless(state: CycleState) -> CycleState:
    previous = state.previous and {
        key: value for key, value in state.previous.items() if not key.endswith("_at")
    }
    return state._replace(
        timestamp="",
        started_at="",
        heartbeat="",
        ended_at="",
        holder=None,
        previous=previous,
        seq=0,
    )


def _prepared(template: Path, before: tuple[str, ...]) -> None:
    template.mkdir()
    dead = subprocess.Popen(["sleep", "60"])
    for command in before:
        if command == "!damage":
            (template / "home/cycles/allegro.json").write_text("{")
        elif command == "!lengthen":
            with (template / "home/cycles/allegro.log").open("ab") as log:
                log.write(b"\n" * (1 << 20))
        else:
            assert run(template, f"cycle {command.format(dead=dead.pid)}") == 0, command
    dead.kill()
    dead.wait()


@pytest.mark.parametrize("name", CYCLES)
def test_a_kill_leaves_the_cycles_consistent_with_the_log_and_the_next_call_works(
    tmp_path: Path, name: str
) -> None:
    before, line = CYCLES[name]
    template = tmp_path / "template"
    _prepared(template, before)
    steps = [cycle_form(template)[0]]
    done = copy(template, tmp_path / "done")
    points = points_of(done, f"cycle {line}")
    steps.append(cycle_form(done)[0])
    assert {"file.temp", "file.rename"} <= {point.split("|")[0] for point in points}
    for number, point in enumerate(points):
        folder = copy(template, tmp_path / f"cell-{number}")
        killed_at(folder, f"cycle {line}", point)
        state, from_log = cycle_form(folder)
        assert state == from_log, f"the log does not explain it: {point}"
        crashed = steps[0]._replace(status="crashed", reason=state.reason)
        assert state in (*steps, crashed), point
        # The next call finds everything in order, and numbers only rise.
        run(folder, "cycle recover allegro --force")
        assert run(folder, "cycle begin allegro") == 0, point
        after, from_log = cycle_form(folder)
        assert after == from_log, point
        assert after.cycle_number == state.cycle_number + 1, point
        assert [f.name for f in (folder / "home/cycles").iterdir() if f.name.endswith(".tmp")] == []
