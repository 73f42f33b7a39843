"""Which files are the state of a project, and which of them are only made from others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from caloron.engine.state.archive import is_part
from caloron.engine.state.homes import homes_in, sorted_out
from caloron.ledger.projections import kv_path
from caloron.ledger.projects import Project

#: In the workspace; an older Caloron keeps much else there, that is not ours.
_IN_WORKSPACE = (
    "learnings.json*", "dag.json*", "agent_versions.json*", "skill_store.json*", "agents/*.agent*",
    "retro_report.md*", "retro/sprint-*.md*",
)  # fmt: skip
#: What nobody needs to go on: it is made again, or tells of what has ended.
LEFT_OUT = {
    "runs": "prompts and output of agents",
    "seeds": "what setup installed",
    "pool": "prepared workspaces",
    "trash": "workspaces to be deleted",
    "logs": "the log of Caloron itself",
}


class Kept(NamedTuple):
    """A file that goes into a backup as it is: its name there, and where it stands."""

    name: str
    path: Path


def kept_files(project: Project, sprints: list[str]) -> list[Kept]:
    """Settings, edits, every projection, and the homes of agents, with what was set aside."""
    found = [Kept("config.yml", project.config_file), Kept("sprints.json", project.sprints_json)]
    edits = project.path / "edits"
    found += [Kept(f"edits/{f.name}", f) for f in sorted(edits.glob("*.yml"))]
    for pattern in _IN_WORKSPACE:
        for file in sorted(project.workspace.glob(pattern)):
            found.append(Kept(f"workspace/{file.relative_to(project.workspace)}", file))
    for sprint in sprints:
        place = kv_path(sprint)
        found += [Kept(f"kv/{f.name}", f) for f in sorted(place.parent.glob(f"{place.name}*"))]
    found = [kept for kept in found if is_part(kept.name) and _is_plain(kept.path)]
    for home in homes_in(project.agents):
        found += [Kept(file.part, file.path) for file in sorted_out(home)[0]]
    return found


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


class Texts:
    """The content of files that others replace meanwhile, all of one moment."""

    def __init__(self) -> None:
        self._read: dict[Kept, tuple[tuple[int, ...], bytes]] = {}

    def read(self, files: list[Kept]) -> dict[Kept, bytes]:
        """Each file's text; one that is the same file as at the last call is not read again."""
        found = {}
        for kept in files:
            try:
                stamp = _stamp(kept.path)
                if self._read.get(kept, ((), b""))[0] != stamp:
                    self._read[kept] = (stamp, kept.path.read_bytes())
            except FileNotFoundError:
                continue
            found[kept] = self._read[kept][1]
        return found


def _stamp(path: Path) -> tuple[int, ...]:
    status = os.stat(path)  # noqa: PTH116 - one call, of which four fields are needed
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
