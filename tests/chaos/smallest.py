"""The smallest sprint that has every effect: two tasks, one fix round, one conflict."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.chaos.world import World, new_world
from tests.support.git import git

PLAN = [
    {"id": "a", "title": "A", "agent_prompt": "write a", "depends_on": []},
    {"id": "b", "title": "B", "agent_prompt": "write b", "depends_on": ["a"]},
]
_READING = "reading b"
_PUSHED = "pushed"


def smallest_sprint(folder: Path) -> World:
    """A planner, a → b; a is rejected once, and main moves under b while b is reviewed."""
    world = new_world(folder)
    world.person = _push_once
    world.work = {"a": {"a.txt": "more a"}, "b": {"b.txt": "b and theirs"}}
    world.script(*_responses(world.gates))
    return world


def _responses(shown: Path) -> list[dict[str, Any]]:
    return [
        {"when": {"role": "po"}, "output": f"The plan:\n{json.dumps(PLAN)}"},
        {"when": {"role": "implement", "task": "a"}, "files": {"a.txt": "a\n"}, "output": "done"},
        {"when": {"role": "review", "task": "a", "round": 1}, "output": "CHANGES_NEEDED: more"},
        {"when": {"role": "fix", "task": "a"}, "files": {"a.txt": "more a\n"}, "output": "done"},
        {"when": {"role": "implement", "task": "b"}, "files": {"b.txt": "b\n"}, "output": "done"},
        {
            "when": {"role": "review", "task": "b", "round": 1},
            "run": f"echo {_READING}; while [ ! -e {shown}/{_PUSHED} ]; do sleep 0.02; done",
            "output": "APPROVED",
        },
        {"when": {"role": "resolve"}, "files": {"b.txt": "b and theirs\n"}, "output": "done"},
        {"when": {"role": "review"}, "output": "fine\nAPPROVED"},
    ]


def _push_once(world: World) -> None:
    """A person pushes to main, in conflict with b, while b is read by its reviewer."""
    done = world.gates / _PUSHED
    if done.exists() or not world.count_printed(_READING):
        return
    with tempfile.TemporaryDirectory(dir=world.root, prefix="clone-") as folder:
        clone = Path(folder, "c")
        if "b.txt" not in git(world.forge_git, "ls-tree", "--name-only", "main").split():
            git(world.root, "clone", "--quiet", "--branch", "main", world.forge_git, clone)
            (clone / "b.txt").write_text("theirs\n", "utf-8")
            git(clone, "add", "b.txt")
            git(clone, "commit", "--quiet", "-m", "Ada writes b too")
            git(clone, "push", "--quiet", "origin", "HEAD:main")
    done.touch()
