"""Starts agents for other programs, records their heartbeats, and stops them."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from caloron.agents.clis.registry import FRAMEWORKS, info
from caloron.agents.supervise.processes import end_family, living, read_process, send
from caloron.agents.workspace.workspaces import create_workspace, remove_workspace
from caloron.engine.runs.sandbox_policy import TOKEN_VARIABLES
from caloron.errors import CaloronError, PreconditionFailed
from caloron.git.command import IDENTITY, git_process
from caloron.git.mirror import Mirror
from caloron.graph.errors import StageFailed
from caloron.graph.stdlib.outside import KeyValues
from caloron.ledger.projects import list_projects
from caloron.ports import Caps, Remote
from caloron.server.registry import Agent, Registry
from caloron.server.requests import Heartbeat, Logs, Spawn, Status, Stop
from caloron.server.settings import HarnessSettings, ShellSettings
from caloron.store import log

#: The variables that a harness gets: it needs models, and no forge.
_PASSED_ON = {
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "TERM", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "no_proxy",
    # By name, because users call the variables of their tokens CALORON_…, too.
    "CALORON_HOME", "CALORON_FRAMEWORK", "CALORON_FRAMEWORK_CMD", "CALORON_FRAMEWORK_ARGS",
    "CALORON_STUB_FIXTURE",
    "CALORON_HEARTBEAT_S", "CALORON_AGENT_TIMEOUT_S", "CALORON_NETWORK", "CALORON_ALLOW_HOSTS",
    "CALORON_LOG_LEVEL", "CALORON_CRASH_AT", "CALORON_CRASH_LOG",
}  # fmt: skip
_CLIS = [info(name) for name in FRAMEWORKS]
_OF_CLIS = {v for cli in _CLIS for v in (cli.program_env, cli.full_access_env, *cli.key_vars)}
_PREFIXES = ("LC_", *(prefix for cli in _CLIS for prefix in cli.env_prefixes))
#: Waits until the shell has recorded the process, then becomes the harness.
_GATE = 'read -r go || exit 125; exec "$@" </dev/null'
_STREAMS = {"output": "output.log", "harness": "harness.log"}
_OLD_FIELDS = ("agent_id", "sprint_id", "pid", "alive", "last_heartbeat")
_STARTED_AT_ONCE = 16
_POLL_S = 0.05

Response = dict[str, Any]


class NotAllowed(CaloronError):
    """A path that the shell refuses."""


class AgentServer:
    """The shell without HTTP: one method for each request."""

    def __init__(
        self,
        home: Path,
        settings: ShellSettings,
        *,
        unsandboxed: bool,
        log_line: Callable[[str], object],
    ) -> None:
        self._folder = home / "shell"
        self._settings = settings
        self._unsandboxed = unsandboxed
        self.log_line = log_line
        self._registry = Registry(self._folder)
        self._values = KeyValues(home / "graph")
        self._starting = threading.BoundedSemaphore(_STARTED_AT_ONCE)
        self._locks: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
        self._guard = threading.Lock()
        #: Our address for agents; set once we listen.
        self.url = ""
        self._registry.reap(restarted=True)

    def close(self) -> None:
        """Close the files; agents keep running."""
        self._registry.close()

    def heartbeat(self, heartbeat: Heartbeat) -> Response:
        at = self._registry.record_heartbeat(heartbeat)
        key = f"caloron:{heartbeat.sprint_id}:agent:{heartbeat.agent_id}:last_heartbeat"
        try:
            self._values.set({"key": key, "value": at})
        except StageFailed as error:
            log.warning(
                "cannot write a heartbeat for graphs", error=error, agent=heartbeat.agent_id
            )
            # Only graphs read this value; the registry has the heartbeat.
            self.log_line(f"{error}\n")
        return {"ok": True}

    def spawn(self, request: Spawn) -> Response:
        """Start an agent, unless it runs already."""
        if not self._starting.acquire(blocking=False):
            return refusal("too many agents are being started; try again")
        try:
            with self._locked(request.sprint_id, request.agent_id):
                return self._spawn(request)
        except (CaloronError, OSError) as error:
            log.warning("an agent was not started", error=error, agent=request.agent_id)
            machine = "the machine refused it: " if isinstance(error, OSError) else ""
            return refusal(f"{machine}{error}")
        finally:
            self._starting.release()

    def _spawn(self, request: Spawn) -> Response:
        known = self._registry.get(request.sprint_id, request.agent_id)
        if known is not None and known.process() is not None:
            if known.task == request.task_id:
                return {"ok": True, "pid": known.pid}
            return refusal(f"agent {known.agent} works on task {known.task} (pid {known.pid})")
        repository = self._repository(request.repo)
        base = self._inside(request.worktree_base, "worktree_base")
        if base == self._settings.root:
            raise NotAllowed("worktree_base is the root itself: name a folder in it")
        workspace = base / f"{request.agent_id}-{request.sprint_id}"
        first_commit = _reusable(workspace, known)
        agent = self._registry.reserve(request.sprint_id, request.agent_id, request.task_id)
        try:
            mirror = self._mirror_of(repository)
            branch = f"agent/{request.agent_id}/{request.sprint_id}"
            if not first_commit:
                # A workspace without a recorded first commit was interrupted.
                self._registry.assign_workspace(agent, workspace, "")
                first_commit = _prepare_workspace(mirror, workspace, branch, agent.agent)
                self._registry.assign_workspace(agent, workspace, first_commit)
            settings = HarnessSettings(
                agent=request.agent_id,
                role=request.role or request.agent_id,
                task=request.task_id,
                sprint=request.sprint_id,
                worktree=workspace,
                run_dir=Path(agent.run_dir),
                shell_url=self.url,
                token=self._settings.token,
                system_prompt=request.system_prompt,
                task_description=request.task_description,
                mirror=str(mirror.path),
                repository=mirror.remote.url,
                branch=branch,
                base=first_commit,
            )
            pid = self._start(agent, _passed_on() | settings.environment())
        except BaseException:
            self._registry.ended(agent, None)
            raise
        return {"ok": True, "pid": pid}

    def _repository(self, repo: str) -> Path:
        """The repository that a request names.

        It is named by its path, relative to the root or absolute. A shell that runs in a repository
        also accepts the name of that repository on its forge, as older clients send it.
        """
        root = self._settings.root
        if _is_repository(root) and repo in _names_of(root):
            return root
        path = self._inside(repo, "repo")
        if not _is_repository(path):
            raise NotAllowed(f"repo {repo!r} is not a git repository in {root}")
        return path

    def _inside(self, value: str, name: str) -> Path:
        """The path that a request names: in the root, and not where an agent has been."""
        root = self._settings.root
        path = (root / value).resolve()
        if not path.is_relative_to(root):
            raise NotAllowed(f"{name} {value!r} is outside {root}")
        if ".git" in path.relative_to(root).parts:
            raise NotAllowed(f"{name} {value!r} is inside the files of a repository")
        for workspace in self._registry.workspaces():
            if path.is_relative_to(workspace):
                raise NotAllowed(f"{name} is in {workspace}, the workspace of an agent")
        return path

    def _mirror_of(self, repository: Path) -> Mirror:
        """Our own copy of a repository, which agents can read but not write."""
        done = git_process(repository, "symbolic-ref", "--short", "HEAD")
        if done.returncode != 0:
            raise PreconditionFailed(f"{repository} has no branch checked out")
        name = hashlib.sha256(os.fsencode(repository)).hexdigest()[:16]
        path = self._folder / "mirrors" / f"{repository.name}-{name}.git"
        main = done.stdout.decode("utf-8", "replace").strip()
        return Mirror(path, Remote(str(repository)), main)

    def _start(self, agent: Agent, env: dict[str, str]) -> int:
        """Start a harness in its own session, with its output in a file."""
        run_dir = Path(agent.run_dir)
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        harness = (sys.executable, "-P", "-m", "caloron.cli", "harness", "start")
        options = ("--unsandboxed",) if self._unsandboxed else ()
        with (run_dir / _STREAMS["harness"]).open("ab") as output:
            child = subprocess.Popen(
                ("/bin/sh", "-c", _GATE, "sh", *harness, *options),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd="/",
                env=env,
                start_new_session=True,
            )
        process = read_process(child.pid)
        if process is None:
            raise PreconditionFailed("the harness ended at once")
        self._registry.started(agent, process)
        assert child.stdin is not None
        # A harness that has ended already is seen by the thread that waits for it.
        with suppress(BrokenPipeError):
            child.stdin.write(b"go\n")
            child.stdin.close()
        self.log_line(f"agent {agent.agent} of {agent.sprint} runs as {child.pid}\n")

        def wait() -> None:
            code = child.wait()
            self._registry.ended(agent, code if code >= 0 else 128 - code)

        threading.Thread(target=wait, name=f"wait-{agent.agent}", daemon=True).start()
        return child.pid

    def status(self, request: Status) -> Response:
        rows = self._registry.status()
        if request.details == "1":
            return {"agents": rows}
        return {"agents": [{name: row[name] for name in _OLD_FIELDS} for row in rows]}

    def stop(self, request: Stop) -> Response:
        """Ask an agent to save its work and end; after the grace period, kill its processes."""
        with self._locked(request.sprint_id, request.agent_id):
            known = self._registry.get(request.sprint_id, request.agent_id)
            if known is None:
                return _unknown(request)
            process = known.process()
            if process is not None:
                send(process, signal.SIGTERM)
                deadline = time.monotonic() + request.grace_s
                while living([process]) and time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                if living([process]):
                    end_family(process.pid)
            self._registry.reap()
            return {"ok": True, "pid": known.pid, "stopped": process is not None}

    def logs(self, request: Logs) -> Response:
        """A part of an agent's log from a byte on; `next_offset` is the start of the next part."""
        known = self._registry.get(request.sprint_id, request.agent_id)
        if known is None:
            return _unknown(request)
        alive = known.process() is not None
        try:
            with (Path(known.run_dir) / _STREAMS[request.stream]).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                at = file.seek(min(request.offset, size))
                data = file.read(request.limit)
        except FileNotFoundError:
            size, at, data = 0, 0, b""
        return {
            "ok": True,
            "text": data.decode("utf-8", "replace"),
            "offset": at,
            "next_offset": at + len(data),
            "size": size,
            "alive": alive,
        }

    @contextmanager
    def _locked(self, sprint: str, agent: str) -> Iterator[None]:
        """Handle one request at a time for each agent."""
        with self._guard:
            lock = self._locks[(sprint, agent)]
        with lock:
            yield


def refusal(reason: str) -> Response:
    return {"ok": False, "error": reason}


def _unknown(request: Stop | Logs) -> Response:
    return refusal(f"no agent {request.agent_id} of sprint {request.sprint_id} was started")


def _is_repository(path: Path) -> bool:
    """True for a repository, without asking git: it would run what is configured there."""
    return (path / ".git").exists() or (
        (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir()
    )


def _names_of(root: Path) -> set[str]:
    """The names of the root's repository: its folder, and its name on its forge."""
    names = {".", root.name}
    done = git_process(root, "config", "--get", "remote.origin.url")
    url = done.stdout.decode("utf-8", "replace").strip().removesuffix(".git")
    parts = url.replace(":", "/").rstrip("/").split("/")
    if len(parts) > 1:
        names |= {parts[-1], "/".join(parts[-2:])}
    return names


def _reusable(directory: Path, known: Agent | None) -> str:
    """The first commit of the agent's own workspace; empty if a new one must be made."""
    if not directory.exists():
        return ""
    if known is None or known.workspace != str(directory):
        raise NotAllowed(f"{directory} exists already, and is not a workspace of this agent")
    if not known.base:
        # The shell died before the agent started.
        remove_workspace(directory)
    return known.base


def _prepare_workspace(mirror: Mirror, directory: Path, branch: str, agent: str) -> str:
    """Clone onto the agent's branch, at its head or at main; return the first commit.

    Not a linked worktree: that would share the files of the repository with the agent.
    """
    mirror.ensure()
    main = mirror.fetch_main()
    start = mirror.fetch_branch(branch) or main
    mirror.files(start, Caps().disk_mb << 20)
    if not directory.parent.exists():
        # The repository around the worktrees ignores them.
        directory.parent.mkdir(parents=True)
        (directory.parent / ".gitignore").write_text("*\n", "utf-8")
    create_workspace(mirror, directory, start=start, branch=branch, agent=agent, identity=IDENTITY)
    return start


def _passed_on() -> dict[str, str]:
    """The variables of ours that a harness gets; never one that a project uses for a token."""
    withheld = {
        getattr(project.config, key) for project in list_projects() for key in TOKEN_VARIABLES
    }
    return {
        name: value
        for name, value in os.environ.items()
        if (name in _PASSED_ON or name in _OF_CLIS or name.startswith(_PREFIXES))
        and name not in withheld
    }
