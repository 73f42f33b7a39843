"""Workspaces and seeds of one project, for tests that run a real setup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caloron.agents.sandbox.bubblewrap import Bubblewrap
from caloron.agents.supervise.supervise import run
from caloron.agents.workspace.project_detection import (
    ProjectCommands,
    detect,
    environment,
    with_path,
)
from caloron.agents.workspace.setup_cache import SetupCache
from caloron.git.command import git
from caloron.ports import Sandbox, SandboxSpec

SANDBOX = Bubblewrap()


class SetupBench:
    """Workspaces of one project, and its seeds."""

    def __init__(self, folder: Path, sandbox: Sandbox = SANDBOX) -> None:
        self.folder = folder
        self.sandbox = sandbox
        self.seeds = self.new_seeds()

    def new_seeds(self, timeout_s: float = 300, **spec: Any) -> SetupCache:
        spec_of_project = SandboxSpec(workspace=self.folder, **spec)
        return SetupCache(
            self.folder / "seeds", self.sandbox, spec=spec_of_project, timeout_s=timeout_s
        )

    def workspace(self, name: str, files: dict[str, str]) -> Path:
        workspace = self.folder / name / "workspace"
        workspace.mkdir(parents=True)
        git(workspace, "init", "--quiet", "--template=")
        for path, text in files.items():
            (workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace / path).write_text(text)
        git(workspace, "add", "--all")
        git(workspace, "commit", "--quiet", "--allow-empty", "--message=start")
        (workspace / ".git" / "info").mkdir()
        return workspace

    def install(
        self, workspace: Path, commands: ProjectCommands, lock: str = "same", **more: Any
    ) -> bool:
        seeds = more.pop("seeds", self.seeds)
        log = workspace.with_name("setup.log")
        return bool(seeds.install(workspace, commands, lock_hash=lock, log=log, **more))

    def inside(self, workspace: Path, commands: ProjectCommands, line: str) -> str:
        """Run a line in a workspace as verify and agents do, and return its output."""
        inside_path = self.sandbox.inside(workspace)
        self.sandbox.give_ownership(workspace)
        spec = SandboxSpec(workspace=workspace, env=environment(commands, inside_path))
        argv = with_path(commands, inside_path, ("sh", "-c", line))
        done = run(self.sandbox.confine(argv, spec), timeout_s=120)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def leftovers(self) -> list[str]:
        """Return the files beside the complete seeds."""
        return sorted(p.name for p in (self.folder / "seeds").iterdir() if p.name.startswith("."))

    def complete_seeds(self) -> int:
        return sum(1 for path in (self.folder / "seeds").glob("*/seed.json") if path.is_file())


def detect_commands(files: dict[str, str]) -> ProjectCommands:
    return detect(files, files.__getitem__)
