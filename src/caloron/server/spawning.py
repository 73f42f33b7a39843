"""Starts one agent: a workspace of its own, and a harness in it that outlives the shell."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from caloron.agents.processes import Process, look
from caloron.agents.workspaces import create_workspace, remove_workspace
from caloron.engine.confining import TOKEN_VARIABLES
from caloron.errors import PreconditionFailed
from caloron.git.commits import refuse_large
from caloron.git.mirror import CALORON_IDENTITY, Mirror
from caloron.ledger.projects import list_projects
from caloron.ports import Caps, Remote
from caloron.server.places import NotAllowed, main_branch
from caloron.server.registry import Agent
from caloron.server.requests import Spawn

#: What the harness may have of our environment: it asks models, and no forge.
_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "TERM", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "no_proxy", "API_TIMEOUT_MS",
    # By name, because users call the variables of their tokens CALORON_…, too.
    "CALORON_HOME", "CALORON_FRAMEWORK", "CALORON_FRAMEWORK_CMD", "CALORON_FRAMEWORK_ARGS",
    "CALORON_ALLOW_DANGEROUS_CLAUDE", "CALORON_CLAUDE", "CALORON_STUB_FIXTURE",
    "CALORON_HEARTBEAT_S", "CALORON_AGENT_TIMEOUT_S", "CALORON_NETWORK", "CALORON_ALLOW_HOSTS",
    "CALORON_LOG_LEVEL", "CALORON_CRASH_AT", "CALORON_CRASH_LOG",
)  # fmt: skip
_PREFIXES = ("ANTHROPIC_", "CLAUDE_", "LC_")
#: Nothing is done before the shell has written down who was started; then it becomes the harness.
_GATE = 'read -r go || exit 125; exec "$@" </dev/null'


def branch_of(agent: str, sprint: str) -> str:
    return f"agent/{agent}/{sprint}"


def mirror_of(folder: Path, repository: Path) -> Mirror:
    """Our own copy of a repository, which agents may read and never write."""
    name = hashlib.sha256(os.fsencode(repository)).hexdigest()[:16]
    path = folder / "mirrors" / f"{repository.name}-{name}.git"
    return Mirror(path, Remote(str(repository)), main_branch(repository))


def prepare_workspace(mirror: Mirror, directory: Path, wanted: Spawn) -> str:
    """A clone on the agent's branch, begun where that stands or on main; the commit it begins at.

    No linked worktree: such a one shares the repository's own files with its agent.
    """
    mirror.ensure()
    main = mirror.fetch_main()
    branch = branch_of(wanted.agent_id, wanted.sprint_id)
    start = mirror.fetch_branch(branch) or main
    refuse_large(mirror.path, start, Caps().disk_mb << 20)
    _hide(directory.parent)
    create_workspace(
        mirror,
        directory,
        start=start,
        branch=branch,
        agent=wanted.agent_id,
        identity=CALORON_IDENTITY,
    )
    return start


def reusable(directory: Path, known: Agent | None) -> bool:
    """Whether a workspace stands there already that is this agent's own."""
    if not directory.exists():
        return False
    if known is None or known.workspace != str(directory):
        raise NotAllowed(f"{directory} is there already, and is no workspace of this agent")
    if not known.base:
        # The shell died before any agent was let in.
        remove_workspace(directory)
    return bool(known.base)


def _hide(base: Path) -> None:
    """Keep a folder of worktrees out of the status of the repository that it lies in."""
    if not base.exists():
        base.mkdir(parents=True)
        (base / ".gitignore").write_text("*\n", "utf-8")


class Started:
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
            # It was ended already; whoever waits for it sees that.
            return


def start_harness(run_dir: Path, env: dict[str, str], *, unsandboxed: bool) -> Started:
    """Start a harness in a session of its own; what it says goes to a file."""
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
    process = look(child.pid)
    if process is None:
        raise PreconditionFailed("the harness ended as soon as it was started")
    return Started(child, process)


def harness_environment(
    wanted: Spawn, agent: Agent, workspace: Path, *, url: str, token: str, mirror: Mirror, base: str
) -> dict[str, str]:
    """All that the harness is told, and of our own environment what it needs."""
    kept_back = _token_variables()
    passed = {
        name: value
        for name, value in os.environ.items()
        if (name in _PASSED_ON or name.startswith(_PREFIXES)) and name not in kept_back
    }
    return passed | {
        "CALORON_AGENT_ID": wanted.agent_id,
        "CALORON_AGENT_ROLE": wanted.role or wanted.agent_id,
        "CALORON_TASK_ID": wanted.task_id,
        "CALORON_SPRINT_ID": wanted.sprint_id,
        "CALORON_SHELL_URL": url,
        "CALORON_SHELL_TOKEN": token,
        "CALORON_WORKTREE": str(workspace),
        "CALORON_SYSTEM_PROMPT": wanted.system_prompt,
        "CALORON_TASK_DESCRIPTION": wanted.task_description,
        "CALORON_RUN_DIR": agent.run_dir,
        "CALORON_MIRROR": str(mirror.path),
        "CALORON_REPOSITORY": mirror.remote.url,
        "CALORON_BRANCH": branch_of(wanted.agent_id, wanted.sprint_id),
        "CALORON_BASE_COMMIT": base,
    }


def _token_variables() -> set[str]:
    """The variables that any project of this home names for a token of its forge."""
    return {getattr(project.config, key) for project in list_projects() for key in TOKEN_VARIABLES}
