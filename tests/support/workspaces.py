"""A mirror with a main branch, and one workspace that an agent works in."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from caloron.agents.sandbox.bubblewrap import Bubblewrap
from caloron.agents.supervise.supervise import run
from caloron.agents.workspace.commits import HandOver, hand_over
from caloron.agents.workspace.workspaces import create_workspace
from caloron.git.command import git
from caloron.git.mirror import Mirror
from caloron.ports import Remote, SandboxSpec

AGENT = ("agent-1", "agent-1@caloron.local")
MESSAGE = "Add a thing\n\nAgent: agent-1\n"
BRANCH = "agent/task-1/p-1"


class Bench:
    """A forge with a person who pushes to it, our mirror of it, and a workspace."""

    def __init__(self, home: Path, files: dict[str, str]) -> None:
        self.home = home
        self.person = home / "person"
        self.workspace = home / "workspaces" / "task-1"
        forge = home / "forge.git"
        git(home, "init", "--bare", "-q", str(forge))
        git(home, "clone", "-q", str(forge), "person")
        self.main = self.commit(files)
        self.mirror = Mirror(home / "mirror.git", Remote(str(forge)))
        self.mirror.ensure()
        self.mirror.fetch_main()
        self.sandbox = Bubblewrap(mirror=self.mirror.path)

    def commit(self, files: dict[str, str]) -> str:
        """Let the person push a commit to main."""
        for name, content in files.items():
            (self.person / name).write_text(content)
        git(self.person, "add", "-A")
        git(self.person, "commit", "-q", "-m", " ".join(files))
        git(self.person, "push", "-q", "origin", "HEAD:main")
        return git(self.person, "rev-parse", "HEAD")

    def create(self, start: str = "", merge: str = "") -> None:
        create_workspace(
            self.mirror,
            self.workspace,
            start=start or self.main,
            branch=BRANCH,
            merge=merge,
            identity=AGENT,
        )

    def agent(self, script: str) -> None:
        """Run a script inside the sandbox, with plain git as an agent would use it."""
        self.sandbox.give_ownership(self.workspace)
        spec = SandboxSpec(workspace=self.workspace)
        done = run(self.sandbox.confine(("sh", "-ec", script), spec))
        assert done.returncode == 0, done.stderr

    def take(self, base: str = "", **more: Any) -> str:
        """Take the agent's work into the mirror, and return its head."""
        work = HandOver(
            workspace=self.workspace,
            base=base or self.main,
            main=self.mirror.fetch_main(),
            message=MESSAGE,
            identity=AGENT,
            ref="refs/caloron/work/task-1",
            bundle=self.home / "run" / "work.bundle",
            **more,
        )
        return hand_over(work, self.sandbox, self.mirror)

    def show(self, commit: str, form: str) -> str:
        return git(self.mirror.path, "show", "-s", f"--format={form}", commit)

    def content(self, commit: str, name: str) -> bytes:
        argv = ("git", "-C", self.mirror.path, "cat-file", "blob", f"{commit}:{name}")
        return subprocess.run(argv, capture_output=True, check=True).stdout
