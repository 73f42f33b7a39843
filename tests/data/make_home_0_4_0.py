"""Make `home_0_4_0.tar.xz`: a home in which version 0.4.0 left a sprint in every state.

    git worktree add /tmp/v040 4520a02 && make -C /tmp/v040 venv
    python tests/data/make_home_0_4_0.py /tmp/v040

Real commands and the scripted agent made everything in it. A sprint that is not over was left by
`kill -9` of its engine at a crash point; no file and no database was edited afterwards.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from shutil import copy
from typing import Any

ARCHIVE = Path(__file__).with_name("home_0_4_0.tar.xz")
#: Left out: workspaces made in advance, a pipe, and what SQLite makes again from its log. Version
#: 0.4.0 makes all of them again; the first two would not work in another place.
LEFT_OUT = ("pool", "wake", ".sqlite-shm")
#: Every run of an agent costs this, so that one that is counted twice, or not at all, shows.
COST_USD = 0.25
FEEDBACK = """
---
caloron_feedback:
  task_clarity: 6
  blockers: ["the price list is missing"]
  self_assessment: completed
  notes: "ask for the price list"
---"""
INSIGHT = {
    "themes": ["missing input"],
    "improvements": [
        {
            "category": "Tooling",
            "priority": "high",
            "description": "Put the price list into the repository",
            "evidence": "two tasks named it",
            "applies_when": "prices change",
        }
    ],
    "learnings": ["tasks wait for a price list"],
    "sentiment": "mixed",
}


def task(name: str, *after: str) -> dict[str, Any]:
    prompt = f"write {name}.txt"
    return {"id": name, "title": f"Task {name}", "agent_prompt": prompt, "depends_on": after}


def does(role: str, of: str = "", **what: Any) -> dict[str, Any]:
    when = {"role": role} | ({"task": of} if of else {})
    return {"when": when, "report": {"cost_usd": COST_USD}, **what}


def plans(*tasks: dict[str, Any]) -> dict[str, Any]:
    return does("po", output=json.dumps(tasks))


def writes(name: str, **what: Any) -> dict[str, Any]:
    files = {f"{name}.txt": f"{name}\n"}
    return does("implement", name, files=files, output=f"Done.\n{FEEDBACK}", **what)


def approves(name: str = "", **what: Any) -> dict[str, Any]:
    return does("review", name, output="fine\nAPPROVED", **what)


class Maker:
    """The home that is being made, and the `caloron` of the checkout that makes it."""

    def __init__(self, checkout: Path, place: Path) -> None:
        self.checkout, self.place, self.home = checkout, place, place / "home"
        ada = "[user]\n\tname = Ada\n\temail = ada@example.invalid\n"
        (place / "gitconfig").write_text(ada, "utf-8")

    def caloron(
        self, *words: str, program: tuple[str, ...] = ("-m", "caloron.cli"), **env: str
    ) -> int:
        known = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(self.place)}
        own = {
            "CALORON_HOME": str(self.home),
            "CALORON_STUB_FIXTURE": str(self.place / "fixture.json"),
            "GIT_CONFIG_GLOBAL": str(self.place / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "PYTHONPATH": f"{self.checkout / 'src'}:{self.checkout}",
        }
        argv = (str(self.checkout / ".venv" / "bin" / "python"), *program, *words)
        return subprocess.run(argv, env=known | own | env, cwd=self.place, check=False).returncode

    def project(self, name: str, *script: dict[str, Any], **settings: Any) -> None:
        assert self.caloron("init", name, "--framework", "stub") == 0
        quick = {"verify": "test -f README.md", "poll_s": 0.2, "lease_s": 2.0}
        for key, value in (quick | settings).items():
            assert self.caloron("config", "set", key, str(value), "--project", name) == 0
        self.script(*script)

    def script(self, *responses: dict[str, Any]) -> None:
        text = json.dumps({"responses": responses})
        (self.place / "fixture.json").write_text(text, "utf-8")

    def sprint(self, name: str, *words: str, **options: Any) -> int:
        return self.caloron("sprint", f"goal of {name}", "--project", name, *words, **options)

    def killed(self, name: str, *points: str, **options: Any) -> None:
        """Run a sprint until its engine, and whatever else is named, is killed at these points."""
        once = [f"{point}|{self.place}/killed-{name}-{n}" for n, point in enumerate(points)]
        code = self.sprint(name, "--yes", CALORON_CRASH_AT=";".join(once), **options)
        assert code == -signal.SIGKILL, code
        # An agent outlives its engine, and what it writes belongs to the home.
        while any(str(self.place) in line for line in command_lines()):
            time.sleep(0.1)

    def lost(
        self, name: str, item: str, point: str = "shim.begin.after_commit", **options: Any
    ) -> None:
        """Run a sprint until one attempt dies with its agent and its shim, and then the engine."""
        shim = f"shim/{name}-1/{item}|{point}|1"
        self.killed(name, shim, "engine|interrupt.before_commit|1", **options)

    def state(self, name: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """The newest sprint and its tasks, from a copy: to open a database may change it."""
        with tempfile.TemporaryDirectory() as copies:
            for file in (self.home / "projects" / name).glob("ledger.sqlite*"):
                copy(file, copies)
            ledger = sqlite3.connect(Path(copies, "ledger.sqlite"))
            newest = "SELECT id, data FROM sprints ORDER BY number DESC"
            sprint, data = ledger.execute(newest).fetchone()
            rows = ledger.execute("SELECT id, data FROM tasks WHERE sprint = ?", (sprint,))
            tasks = {task: json.loads(text) for task, text in rows}
            ledger.close()
        return json.loads(data), tasks


def command_lines() -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return found


def make(maker: Maker) -> None:
    a, b, c, d = "abcd"
    assert maker.caloron("org", "init") == 0
    assert maker.caloron("cycle", "begin", "allegro", "--work", "issue 12") == 0
    assert maker.caloron("cycle", "act", "allegro", "pushed", "--artefact", "branch fix-12") == 0
    assert maker.caloron("cycle", "end", "allegro", "--result", "partial", "--next", "tests") == 0

    # Two sprints that are over, and what was learned from them.
    looks_back = does("retro", output=json.dumps(INSIGHT))
    maker.project("ended", retro="model")
    maker.script(plans(task(a), task(b, a)), writes(a), writes(b), approves(), looks_back)
    assert maker.sprint("ended", "--yes") == 0
    maker.script(plans(task(c)), writes(c), approves(), looks_back)
    assert maker.sprint("ended", "--yes") == 0

    # The planner has answered; the next tick would have taken its answer in.
    maker.project("planning", plans(task(a)))
    maker.killed("planning", "engine|settle.after_commit|2")
    sprint, tasks = maker.state("planning")
    assert (sprint["phase"], sprint["po"]["item"], tasks) == ("planning", "planning-1/po/1-po", {})

    maker.project("approval", plans(task(a), task(b, a)))
    assert maker.sprint("approval", "--plan-only") == 0
    assert maker.state("approval")[0]["phase"] == "approval"

    maker.project("running", plans(task(a), task(b, a)), writes(a), writes(b), approves())
    maker.lost("running", "b/1-implement")
    sprint, tasks = maker.state("running")
    assert (sprint["phase"], tasks[a]["status"]) == ("running", "Done")
    assert tasks[b]["work"]["item"] == "running-1/b/1-implement"
    assert maker.caloron("state", "backup", "running.tar", "--project", "running") == 0

    # The model has answered, after main, the planner, and the agent, verification and review of a.
    maker.project("retro", plans(task(a)), writes(a), approves(), looks_back, retro="model")
    maker.killed("retro", "engine|settle.before_commit|6")
    assert maker.state("retro")[0]["phase"] == "retro"

    # The agent of b fails twice, so b waits for a person, and a for b. That of c has ended, but
    # its shim died before it could say so.
    fails = does("implement", b, output="there is no price list", exit_code=1)
    slow = writes(c, sleep_s=10)
    maker.project("escalated", plans(task(a, b), task(b), task(c)), fails, slow, approves())
    maker.lost("escalated", "c/1-implement", "shim.exit")
    sprint, tasks = maker.state("escalated")
    assert (sprint["phase"], tasks[b]["status"]) == ("running", "Escalated")

    # a and b are merged; c and d are approved and were being verified together.
    writing = [writes(name) for name in "abcd"]
    reading = [approves(a), approves(b, sleep_s=2), approves(c, sleep_s=3), approves(d, sleep_s=3)]
    maker.project("queue", plans(*map(task, "abcd")), *writing, *reading, verify="sleep 3")
    maker.lost("queue", "c/4-verify")
    sprint, tasks = maker.state("queue")
    assert [tasks[name]["status"] for name in "abcd"] == ["Done", "Done", "InReview", "InReview"]
    assert [member["task"] for member in sprint["train"]["members"]] == [c, d]

    # The forge has merged a, and the ledger does not know it.
    maker.project("merging", plans(task(a)), writes(a), approves())
    maker.killed("merging", "engine|effect.do/merge/a|1")
    assert maker.state("merging")[1][a]["merging"]

    # The forge merged a on a main that had moved meanwhile; together they fail.
    maker.project(
        "unverified",
        plans(task(a)),
        does("implement", files={"parts/a": "a\n"}, output=f"Done.\n{FEEDBACK}"),
        approves(),
        verify="test $(ls parts 2>/dev/null | wc -l) -le 1",
    )
    moving = (str(maker.checkout / "tests" / "support" / "blind_forge.py"),)
    maker.lost("unverified", "a/4-verify", program=moving)
    assert maker.state("unverified")[1][a]["landed"]

    maker.project("discarded", plans(task(a)))
    assert maker.sprint("discarded", "--plan-only") == 0
    assert maker.caloron("discard", "--yes", "--project", "discarded") == 0
    assert maker.state("discarded")[0]["discarded"]


def pack(place: Path) -> None:
    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if entry.name.endswith(LEFT_OUT) else entry

    with tarfile.open(ARCHIVE, "w:xz") as archive:
        for name in ("home", "running.tar"):
            archive.add(place / name, name, filter=kept)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="caloron-0.4.0-") as folder:
        maker = Maker(Path(sys.argv[1]).absolute(), Path(folder))
        make(maker)
        pack(maker.place)
