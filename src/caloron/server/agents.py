"""Starts agents for other programs, records their heartbeats, and stops them."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caloron.agents.clis.registry import FRAMEWORKS, INFOS
from caloron.agents.supervise.processes import Process, end_family, read_process
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
from caloron.server.requests import Heartbeat, Logs, Spawn, Stop
from caloron.server.settings import ShellSettings
from caloron.store import log


class NotAllowed(CaloronError):
    """A path that the shell refuses."""


def repository_in(root: Path, repo: str, workspaces: Iterable[Path]) -> Path:
    """The repository that a request names.

    It is named by its path, relative to the root or absolute. A shell that runs in a repository
    also accepts the name of that repository on its forge, as older clients send it.
    """
    if is_repository(root) and repo in _names_of(root):
        return root
    path = _inside(root, repo, "repo")
    if not is_repository(path):
        raise NotAllowed(f"repo {repo!r} is not a git repository in {root}")
    _refuse_workspaces(path, workspaces, "repo")
    return path


def worktrees_in(root: Path, base: str, workspaces: Iterable[Path]) -> Path:
    """The folder of the worktrees."""
    path = _inside(root, base, "worktree_base")
    if path == root:
        raise NotAllowed("worktree_base is the root itself: name a folder in it")
    _refuse_workspaces(path, workspaces, "worktree_base")
    return path


def is_repository(path: Path) -> bool:
    """True for a repository, without asking git: it would run what is configured there."""
    return (path / ".git").exists() or (
        (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir()
    )


def main_branch(repository: Path) -> str:
    """The branch that is checked out, from which agents start."""
    done = git_process(repository, "symbolic-ref", "--short", "HEAD")
    if done.returncode != 0:
        raise PreconditionFailed(f"{repository} has no branch checked out")
    return done.stdout.decode("utf-8", "replace").strip()


def _inside(root: Path, value: str, name: str) -> Path:
    path = (root / value).resolve()
    if not path.is_relative_to(root):
        raise NotAllowed(f"{name} {value!r} is outside {root}")
    if ".git" in path.relative_to(root).parts:
        raise NotAllowed(f"{name} {value!r} is inside the files of a repository")
    return path


def _refuse_workspaces(path: Path, workspaces: Iterable[Path], name: str) -> None:
    for workspace in workspaces:
        if path.is_relative_to(workspace):
            raise NotAllowed(f"{name} is in {workspace}, the workspace of an agent")


def _names_of(root: Path) -> set[str]:
    """The names of the root's repository: its folder, and its name on its forge."""
    names = {".", root.name}
    done = git_process(root, "config", "--get", "remote.origin.url")
    url = done.stdout.decode("utf-8", "replace").strip().removesuffix(".git")
    parts = url.replace(":", "/").rstrip("/").split("/")
    if len(parts) > 1:
        names |= {parts[-1], "/".join(parts[-2:])}
    return names


#: The variables that a harness gets: it needs models, and no forge.
_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "TERM", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "no_proxy",
    # By name, because users call the variables of their tokens CALORON_…, too.
    "CALORON_HOME", "CALORON_FRAMEWORK", "CALORON_FRAMEWORK_CMD", "CALORON_FRAMEWORK_ARGS",
    "CALORON_STUB_FIXTURE",
    "CALORON_HEARTBEAT_S", "CALORON_AGENT_TIMEOUT_S", "CALORON_NETWORK", "CALORON_ALLOW_HOSTS",
    "CALORON_LOG_LEVEL", "CALORON_CRASH_AT", "CALORON_CRASH_LOG",
)  # fmt: skip
_PREFIXES = (
    "LC_",
    *(prefix for name in FRAMEWORKS for prefix in INFOS[name].env_prefixes),
)
_OF_CLIS = {
    variable
    for name in FRAMEWORKS
    for variable in (INFOS[name].program_env, INFOS[name].full_access_env, *INFOS[name].key_vars)
}
#: Waits until the shell has recorded the process, then becomes the harness.
_GATE = 'read -r go || exit 125; exec "$@" </dev/null'


def branch_of(agent: str, sprint: str) -> str:
    return f"agent/{agent}/{sprint}"


def mirror_of(folder: Path, repository: Path) -> Mirror:
    """Our own copy of a repository, which agents can read but not write."""
    name = hashlib.sha256(os.fsencode(repository)).hexdigest()[:16]
    path = folder / "mirrors" / f"{repository.name}-{name}.git"
    return Mirror(path, Remote(str(repository)), main_branch(repository))


def prepare_workspace(mirror: Mirror, directory: Path, request: Spawn) -> str:
    """Clone onto the agent's branch, at its head or at main; returns the first commit.

    Not a linked worktree: that would share the files of the repository with the agent.
    """
    mirror.ensure()
    main = mirror.fetch_main()
    branch = branch_of(request.agent_id, request.sprint_id)
    start = mirror.fetch_branch(branch) or main
    mirror.files(start, Caps().disk_mb << 20)
    _create_ignored(directory.parent)
    create_workspace(
        mirror,
        directory,
        start=start,
        branch=branch,
        agent=request.agent_id,
        identity=IDENTITY,
    )
    return start


def reusable(directory: Path, known: Agent | None) -> bool:
    """True if the agent's own workspace exists already."""
    if not directory.exists():
        return False
    if known is None or known.workspace != str(directory):
        raise NotAllowed(f"{directory} exists already, and is not a workspace of this agent")
    if not known.base:
        # The shell died before the agent started.
        remove_workspace(directory)
    return bool(known.base)


def _create_ignored(base: Path) -> None:
    """Create the folder of worktrees, ignored by the repository around it."""
    if not base.exists():
        base.mkdir(parents=True)
        (base / ".gitignore").write_text("*\n", "utf-8")


class StartedHarness:
    """A harness that waits for its gate to be opened."""

    def __init__(self, child: subprocess.Popen[bytes], process: Process) -> None:
        self.child = child
        self.process = process

    def open_gate(self) -> None:
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(b"go\n")
            self.child.stdin.close()
        except BrokenPipeError:
            # It has ended already; the thread that waits for it sees that.
            return


def start_harness(run_dir: Path, env: dict[str, str], *, unsandboxed: bool) -> StartedHarness:
    """Start a harness in its own session, with its output in a file."""
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = (sys.executable, "-P", "-m", "caloron.cli", "harness", "start")
    argv = (*command, *(("--unsandboxed",) if unsandboxed else ()))
    with (run_dir / "harness.log").open("ab") as log:
        child = subprocess.Popen(
            ("/bin/sh", "-c", _GATE, "sh", *argv),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd="/",
            env=env,
            start_new_session=True,
        )
    process = read_process(child.pid)
    if process is None:
        raise PreconditionFailed("the harness ended at once")
    return StartedHarness(child, process)


def harness_environment(
    request: Spawn,
    agent: Agent,
    workspace: Path,
    *,
    url: str,
    token: str,
    mirror: Mirror,
    base: str,
) -> dict[str, str]:
    """The environment of a harness: its settings, and what it needs of ours."""
    withheld = _token_variables()
    passed = {
        name: value
        for name, value in os.environ.items()
        if (name in _PASSED_ON or name in _OF_CLIS or name.startswith(_PREFIXES))
        and name not in withheld
    }
    return passed | {
        "CALORON_AGENT_ID": request.agent_id,
        "CALORON_AGENT_ROLE": request.role or request.agent_id,
        "CALORON_TASK_ID": request.task_id,
        "CALORON_SPRINT_ID": request.sprint_id,
        "CALORON_SHELL_URL": url,
        "CALORON_SHELL_TOKEN": token,
        "CALORON_WORKTREE": str(workspace),
        "CALORON_SYSTEM_PROMPT": request.system_prompt,
        "CALORON_TASK_DESCRIPTION": request.task_description,
        "CALORON_RUN_DIR": agent.run_dir,
        "CALORON_MIRROR": str(mirror.path),
        "CALORON_REPOSITORY": mirror.remote.url,
        "CALORON_BRANCH": branch_of(request.agent_id, request.sprint_id),
        "CALORON_BASE_COMMIT": base,
    }


def _token_variables() -> set[str]:
    """The variables that a project of this home uses for a forge token."""
    return {getattr(project.config, key) for project in list_projects() for key in TOKEN_VARIABLES}


_STREAMS = {"output": "output.log", "harness": "harness.log"}
_OLD_FIELDS = ("agent_id", "sprint_id", "pid", "alive", "last_heartbeat")
_STARTED_AT_ONCE = 16
_POLL_S = 0.05

Response = dict[str, Any]


class AgentServer:
    """The shell without HTTP: one method for each request."""

    def __init__(
        self,
        home: Path,
        settings: ShellSettings,
        *,
        unsandboxed: bool = False,
        log_line: Callable[[str], object] = sys.stderr.write,
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
        self._registry.forget_unfinished()
        self._registry.reap()

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
        except CaloronError as error:
            log.warning("an agent was not started", error=error, agent=request.agent_id)
            return refusal(str(error))
        except OSError as error:
            log.warning("an agent was not started", error=error, agent=request.agent_id)
            return refusal(f"the machine refused it: {error}")
        finally:
            self._starting.release()

    def _spawn(self, request: Spawn) -> Response:
        known = self._registry.get(request.sprint_id, request.agent_id)
        if known is not None and known.process() is not None:
            if known.task == request.task_id:
                return {"ok": True, "pid": known.pid}
            return refusal(f"agent {known.agent} works on task {known.task} (pid {known.pid})")
        root, taken = self._settings.root, list(self._registry.workspaces())
        repository = repository_in(root, request.repo, taken)
        base = worktrees_in(root, request.worktree_base, taken)
        workspace = base / f"{request.agent_id}-{request.sprint_id}"
        again = reusable(workspace, known)
        agent = self._registry.reserve(request.sprint_id, request.agent_id, request.task_id)
        try:
            mirror = mirror_of(self._folder, repository)
            first_commit = (
                known.base if again and known else self._prepare(agent, mirror, workspace, request)
            )
            env = harness_environment(
                request,
                agent,
                workspace,
                url=self.url,
                token=self._settings.token,
                mirror=mirror,
                base=first_commit,
            )
            pid = self._start(agent, env)
        except BaseException:
            self._registry.ended(agent, None)
            raise
        return {"ok": True, "pid": pid}

    def _prepare(self, agent: Agent, mirror: Mirror, workspace: Path, request: Spawn) -> str:
        """Create a workspace; one without a recorded first commit was interrupted."""
        self._registry.assign_workspace(agent, workspace, "")
        first_commit = prepare_workspace(mirror, workspace, request)
        self._registry.assign_workspace(agent, workspace, first_commit)
        return first_commit

    def _start(self, agent: Agent, env: dict[str, str]) -> int:
        run_dir = Path(agent.run_dir)
        started = start_harness(run_dir, env, unsandboxed=self._unsandboxed)
        self._registry.started(agent, started.process)
        started.open_gate()
        self.log_line(f"agent {agent.agent} of {agent.sprint} runs as {started.process.pid}\n")

        def wait() -> None:
            code = started.child.wait()
            self._registry.ended(agent, code if code >= 0 else 128 - code)

        threading.Thread(target=wait, name=f"wait-{agent.agent}", daemon=True).start()
        return started.process.pid

    def status(self, *, details: bool = False) -> Response:
        rows = self._registry.status()
        if details:
            return {"agents": rows}
        return {"agents": [{name: row[name] for name in _OLD_FIELDS} for row in rows]}

    def stop(self, request: Stop) -> Response:
        """Ask an agent to save its work and end; after the grace period, kill its processes."""
        with self._locked(request.sprint_id, request.agent_id):
            known = self._registry.get(request.sprint_id, request.agent_id)
            if known is None:
                return refusal(
                    f"no agent {request.agent_id} of sprint {request.sprint_id} was started"
                )
            process = known.process()
            if process is None:
                self._registry.reap()
                return {"ok": True, "pid": known.pid, "stopped": False}
            _end_agent(known, request.grace_s)
            self._registry.reap()
            return {"ok": True, "pid": known.pid, "stopped": True}

    def logs(self, request: Logs) -> Response:
        """A part of an agent's log from a byte on; `next_offset` is the start of the next part."""
        known = self._registry.get(request.sprint_id, request.agent_id)
        if known is None:
            return refusal(f"no agent {request.agent_id} of sprint {request.sprint_id} was started")
        alive = known.process() is not None
        try:
            with (Path(known.run_dir) / _STREAMS[request.stream]).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(min(request.offset, size))
                data = file.read(request.limit)
        except FileNotFoundError:
            size, data = 0, b""
        at = min(request.offset, size)
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


def _end_agent(known: Agent, grace_s: float) -> None:
    process = known.process()
    if process is None:
        return
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # Check again: only now is it certain that the handle is for this very process.
        if known.process() is None:
            return
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not ended.poll(grace_s * 1000):
            end_family(process.pid)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)
    deadline = time.monotonic() + 5
    while known.process() is not None and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def refusal(reason: str) -> Response:
    return {"ok": False, "error": reason}
