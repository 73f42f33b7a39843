"""A home of its own with a project in it, and `caloron` run the way a user runs it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.support import warm
from tests.support.wait import paths, wait_for

SOURCE = Path(__file__).parents[2] / "src"
#: Far beyond the duration of any step: a step that reaches it never ends.
_PATIENCE_S = 90.0
PROGRAM = (sys.executable, "-m", "caloron.cli")
#: Variables that Python reads when it starts.
_AT_START = ("PYTHON", "LANG", "LC_", "CALORON_CRASH")
#: The file that opens every gate when a test is over.
_ENDED = "test-ended"


@dataclass(frozen=True)
class Answer:
    """The output of one run of the program, and its exit code."""

    code: int
    stdout: str
    stderr: str

    @cached_property
    def json(self) -> dict[str, Any]:
        envelope: dict[str, Any] = json.loads(self.stdout)
        assert envelope["ok"] is (self.code in (0, 9)), self
        return envelope

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = self.json["data"]
        return data

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        return {task["id"]: task for task in self.data["tasks"]}

    @property
    def statuses(self) -> dict[str, str]:
        return {name: task["status"] for name, task in self.tasks.items()}


class Running:
    """A `caloron` that is at work while the test does something else."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def wait(self) -> Answer:
        out, err = self.process.communicate(timeout=_PATIENCE_S)
        return Answer(self.process.returncode, out, err)

    def wait_for_line(self, words: str) -> None:
        """Read the progress until a line holds these words."""
        assert self.process.stderr is not None
        while line := self.process.stderr.readline():
            if words in line:
                return
        raise AssertionError(f"the program never printed: {words}")

    def interrupt(self) -> Answer:
        """Send Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True)
class Gate:
    """A gate at which an agent waits until the test lets it go on."""

    #: Agents see this folder and cannot change it.
    folder: Path
    name: str
    home: Home

    @property
    def line(self) -> str:
        """The shell line for a fixture; each agent that comes says so."""
        opened, ended = self.folder / f"{self.name}-open", self.folder / _ENDED
        wait = f'[ ! -e "{opened}" ] && [ ! -e "{ended}" ]'
        return f'echo "at gate {self.name}"; while {wait}; do sleep 0.03; done'

    @property
    def arrivals(self) -> int:
        return self.home.printed("at gate ").count(self.name)

    def wait_for_agent(self, count: int = 1) -> None:
        wait_for(lambda: self.arrivals >= count, f"{count} agents at gate {self.name}")

    def open(self) -> None:
        (self.folder / f"{self.name}-open").touch()


class Home:
    """A temporary CALORON_HOME with one project, `demo`."""

    def __init__(self, root: Path, path: Path | None = None) -> None:
        self.root = root
        self.path = path or root / "home"
        self.fixture = root / "fixture.json"
        #: A folder that agents see and cannot change.
        self.gates = root / "gates"
        self.gates.mkdir(parents=True)
        (root / "gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.invalid\n")
        known = ("PATH", "HOME", "LANG", "TMPDIR")
        self.environment = {name: os.environ[name] for name in known if name in os.environ} | {
            "CALORON_HOME": str(self.path),
            "CALORON_STUB_FIXTURE": str(self.fixture),
            "GIT_CONFIG_GLOBAL": str(root / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "PYTHONPATH": str(SOURCE),
        }
        self._running: list[Running] = []
        #: What is run as `caloron`.
        self.program: tuple[str, ...] = PROGRAM

    # Preparation

    def init(self, name: str = "demo", *arguments: str, **settings: Any) -> Home:
        """Make a project; the forge is polled often, so that acts of a person arrive soon."""
        if "--framework" not in arguments:
            arguments = ("--framework", "stub", *arguments)
        assert self.caloron("init", name, *arguments).code == 0
        return self.set(name, **{"poll_s": 0.2, "read_only": [str(self.gates)]} | settings)

    def set(self, name: str = "demo", **settings: Any) -> Home:
        file = self.project(name) / "config.yml"
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | settings))
        return self

    def script(self, *responses: dict[str, Any], default: str = "APPROVED") -> Home:
        """Set the responses of the agents; a reviewer without a response approves."""
        self.fixture.write_text(json.dumps({"responses": responses, "default": default}))
        return self

    def plan(self, *tasks: dict[str, Any], name: str = "plan.json") -> Path:
        file = self.root / name
        file.write_text(json.dumps(tasks))
        return file

    def gate(self, name: str) -> Gate:
        return Gate(self.gates, name, self)

    def project(self, name: str = "demo") -> Path:
        return self.path / "projects" / name

    # Commands of the user

    def caloron(
        self,
        *arguments: str,
        json: bool = True,
        stdin: str = "",
        cwd: Path | None = None,
        **env: str,
    ) -> Answer:
        """Run one command to its end."""
        arguments = arguments if cwd else self.naming_project(arguments)
        if self.program == PROGRAM and not any(name.startswith(_AT_START) for name in env):
            code, out, err = warm.server().run(
                self._argv(arguments, json=json)[len(PROGRAM) :],
                stdin=stdin,
                env=self.environment | env,
                cwd=cwd or self.root,
                timeout=_PATIENCE_S,
            )
            return Answer(code, out, err)
        done = subprocess.run(
            self._argv(arguments, json=json),
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment | env,
            cwd=cwd or self.root,
            timeout=_PATIENCE_S,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def data(self, *command: str) -> dict[str, Any]:
        """Run one command that must succeed; the data of its answer."""
        answer = self.caloron(*command)
        assert answer.code == 0, answer
        return answer.data

    def sprint(self, *tasks: dict[str, Any], options: tuple[str, ...] = ()) -> Answer:
        """Run a whole sprint of these tasks; without any, the planner is asked."""
        return self.caloron(*self._sprint(tasks, options))

    def start(self, *arguments: str) -> Running:
        """Start a command and leave it running."""
        process = subprocess.Popen(
            self._argv(self.naming_project(arguments), json=True),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.root,
        )
        running = Running(process)
        self._running.append(running)
        return running

    def start_sprint(self, *tasks: dict[str, Any], options: tuple[str, ...] = ()) -> Running:
        return self.start(*self._sprint(tasks, options))

    def _sprint(self, tasks: tuple[dict[str, Any], ...], options: tuple[str, ...]) -> list[str]:
        plan = ("--plan", str(self.plan(*tasks))) if tasks else ()
        return ["sprint", "make it so", "--yes", *plan, *options]

    def naming_project(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """Name the active project for a sprint, which a user starts in a repository instead."""
        active = self.path / "active"
        begins = bool(arguments) and arguments[0] in ("sprint", "kickoff")
        if not begins or "--project" in arguments or "-p" in arguments or not active.exists():
            return tuple(arguments)
        return (arguments[0], "--project", active.read_text("utf-8").strip(), *arguments[1:])

    def _argv(self, arguments: Sequence[str], *, json: bool) -> list[str]:
        form = ["--output", "json"] if json else []
        return [*self.program, *arguments, *form]

    def run_outside(self, *argv: str, cwd: Path) -> None:
        """Run another program as the user does."""
        subprocess.run(argv, cwd=cwd, env=self.environment, check=True, capture_output=True)

    # Results

    def files(self) -> dict[str, bytes]:
        """The tree of main, without what `init` put there."""
        names = self.git("ls-tree", "-r", "-z", "--name-only", "main").split(b"\0")
        return {
            name.decode(): self.git("cat-file", "blob", f"main:{name.decode()}")
            for name in names
            if name and name != b"README.md"
        }

    def git(self, *arguments: str, repository: str = "forge.git") -> bytes:
        argv = ("git", f"--git-dir={self.project() / repository}", *arguments)
        return subprocess.run(argv, check=True, capture_output=True, env=self.environment).stdout

    def issues(self, state: str = "all") -> list[dict[str, Any]]:
        answer = self.caloron("issue", "list", "--state", state)
        return list(answer.data["issues"])

    def pulls(self, state: str = "all") -> list[dict[str, Any]]:
        answer = self.caloron("pr", "list", "--state", state)
        return list(answer.data["pull_requests"])

    def comments(self, number: int) -> list[str]:
        answer = self.caloron("issue", "show", str(number))
        return [comment["body"] for comment in answer.data["comments"]]

    def reviews(self, number: int) -> list[tuple[str, str]]:
        answer = self.caloron("pr", "show", str(number))
        return [(r["verdict"], r["body"].partition("\n")[0]) for r in answer.data["reviews"]]

    def escalations(self) -> list[dict[str, Any]]:
        return [i for i in self.issues() if "caloron:escalated" in i["labels"]]

    def state_file(self, sprint: str = "demo-1") -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.path / "kv" / f"{sprint}.json").read_bytes())
        return content

    def wait_for_status(self, task: str, status: str, sprint: str = "demo-1") -> None:
        """Wait until the sprint's file shows the task in this status."""

        def reached() -> bool:
            try:
                tasks = self.state_file(sprint)["state"]["tasks"]
            except FileNotFoundError:
                return False
            return bool(task in tasks and tasks[task]["status"] == status)

        wait_for(reached, f"{task} is {status}")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The lines of the diary of one kind."""
        return [json.loads(payload) for payload, _ in self._diary(kind)]

    def _diary(self, kind: str) -> list[tuple[str, str]]:
        with self.ledger() as ledger:
            if not ledger.execute("SELECT 1 FROM sqlite_master WHERE name = 'events'").fetchone():
                return []
            query = "SELECT payload, work_item_id FROM events WHERE type = ? ORDER BY id"
            return ledger.execute(query, (kind,)).fetchall()

    def attempts(self, role: str, task: str = "") -> int:
        """Count the starts of an agent, or a verification, for this role."""
        items = [item.split("/") for _, item in self._diary("attempt_started")]
        return sum(i[-1].endswith(f"-{role}") and (not task or i[1] == task) for i in items)

    def verify_runs(self) -> list[tuple[str, str]]:
        """Every verification that was started, by its task and its item, from the runs' folders."""
        return [(f.parts[-4], f.parts[-3]) for f in self.run_files("spec.json", "verify")]

    def run_files(
        self, name: str, role: str = "*", task: str = "*", sprint: str = "*"
    ) -> list[Path]:
        """Return the files of this name in the folders of attempts, the oldest file first."""
        files = paths(self.project() / "runs", f"{sprint}/{task}/*-{role}/*/{name}")
        return sorted((f for f in files if f.exists()), key=lambda f: f.stat().st_mtime_ns)

    def prompts(self, role: str = "*", task: str = "*", sprint: str = "*") -> list[str]:
        """Return the prompts of agents, the oldest first."""
        return [f.read_text() for f in self.run_files("prompt.txt", role, task, sprint)]

    def printed(self, beginning: str) -> list[str]:
        """The rests of the lines that begin like this in what agents printed, oldest log first."""
        lines_by_time: list[tuple[int, list[str]]] = []
        for log in paths(self.path, "projects/*/runs/*/*/*/*/output.log*"):
            try:
                text, at = log.read_text("utf-8", "replace"), log.stat().st_mtime_ns
            except FileNotFoundError:
                # A file that is being written may be renamed meanwhile.
                continue
            lines = text.split("\n")[:-1]
            rests = [line.removeprefix(beginning) for line in lines if line.startswith(beginning)]
            lines_by_time.append((at, rests))
        return [rest for _, rests in sorted(lines_by_time) for rest in rests]

    def living(self) -> dict[int, str]:
        """Return the command lines of the living processes started in or for this home."""
        lines = {}
        for entry in Path("/proc").glob("[0-9]*"):
            if int(entry.name) == os.getpid():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                folder = (entry / "cwd").readlink()
            except OSError:
                continue
            line = b" ".join(words).decode("utf-8", "replace").strip()
            if line and (f"{self.root}/" in line or folder.is_relative_to(self.root)):
                lines[int(entry.name)] = line
        return lines

    def processes(self, words: str = "") -> list[int]:
        """Return the living processes of this home whose command lines hold these words."""
        return [pid for pid, line in self.living().items() if words in line]

    @contextmanager
    def ledger(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.project() / "ledger.sqlite", isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()

    def close(self) -> None:
        """Leave no process behind, whatever became of the test."""
        for running in self._running:
            if running.process.poll() is None:
                running.process.terminate()
                try:
                    running.process.communicate(timeout=20)
                except subprocess.TimeoutExpired:
                    running.kill()
        (self.gates / _ENDED).touch()


def task(name: str, *after: str, **fields: Any) -> dict[str, Any]:
    """A task of a plan."""
    return {
        "id": name,
        "title": f"Task {name}",
        "agent_prompt": f"do {name}",
        "depends_on": list(after),
    } | fields


def does(role: str, task: str | list[str] = "", **what: Any) -> dict[str, Any]:
    """A response of the scripted agent; `attempt` and `round` are conditions."""
    conditions = {"attempt", "round"} & what.keys()
    when = {"role": role} | {name: what.pop(name) for name in conditions}
    return {"when": when | ({"task": task} if task else {}), **what}


def writes(task: str, files: dict[str, Any] | None = None, **what: Any) -> dict[str, Any]:
    """The agent of a task writes files; without any, one that is named after the task."""
    return does("implement", task, files=files or {f"{task}.txt": f"{task}\n"}, **what)
