"""Workspaces of one project and its seeds, for tests that set projects up for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caloron.agents.recipes import Recipe, detect, environment, with_path
from caloron.agents.sandbox import Bubblewrap, run
from caloron.agents.seeds import Seeds
from caloron.git.command import git
from caloron.ports import Caps, Confinement, Sandbox

SANDBOX = Bubblewrap()


class Place:
    """Workspaces of one project, and its seeds."""

    def __init__(self, folder: Path, sandbox: Sandbox = SANDBOX) -> None:
        self.folder = folder
        self.sandbox = sandbox
        self.seeds = self.new_seeds()

    def new_seeds(self, timeout_s: float = 300, **caps: int) -> Seeds:
        return Seeds(
            self.folder / "seeds",
            self.sandbox,
            network="none",
            hosts=(),
            caps=Caps(**caps),
            timeout_s=timeout_s,
            read_only=(),
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

    def plant(self, workspace: Path, recipe: Recipe, lock: str = "same", **more: Any) -> bool:
        seeds = more.pop("seeds", self.seeds)
        log = workspace.with_name("setup.log")
        return bool(seeds.plant(workspace, recipe, lock_hash=lock, log=log, **more))

    def inside(self, workspace: Path, recipe: Recipe, line: str) -> str:
        """What a line prints in a workspace, as verify and agents would see it."""
        place = self.sandbox.inside(workspace)
        self.sandbox.hand_to_agent(workspace)
        given = Confinement(workspace=workspace, env=environment(recipe, place))
        argv = with_path(recipe, place, ("sh", "-c", line))
        done = run(self.sandbox.confine(argv, given), timeout_s=120)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def left(self) -> list[str]:
        """What the folder of seeds holds beside whole seeds."""
        return sorted(p.name for p in (self.folder / "seeds").iterdir() if p.name.startswith("."))

    def whole(self) -> int:
        return sum(1 for path in (self.folder / "seeds").glob("*/seed.json") if path.is_file())


def found(files: dict[str, str]) -> Recipe:
    return detect(files, files.__getitem__)
