"""The smallest sprint that has every effect: two tasks, one fix round, one conflict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.chaos.world import World, new_world

PLAN = [
    {"id": "a", "title": "A", "agent_prompt": "write a", "depends_on": []},
    {"id": "b", "title": "B", "agent_prompt": "write b", "depends_on": ["a"]},
]


def smallest_sprint(place: Path) -> World:
    """A planner, a → b; a is rejected once, and main moves under b while b is reviewed."""
    world = new_world(place)
    world.script(*_responses(world.forge_git, place))
    return world


def _responses(forge: Path, place: Path) -> list[dict[str, Any]]:
    return [
        {"when": {"role": "po"}, "output": f"The plan:\n{json.dumps(PLAN)}"},
        {"when": {"role": "implement", "task": "a"}, "files": {"a.txt": "a\n"}, "output": "done"},
        {"when": {"role": "review", "task": "a", "round": 1}, "output": "CHANGES_NEEDED: more"},
        {"when": {"role": "fix", "task": "a"}, "files": {"a.txt": "more a\n"}, "output": "done"},
        {"when": {"role": "implement", "task": "b"}, "files": {"b.txt": "b\n"}, "output": "done"},
        {
            "when": {"role": "review", "task": "b", "round": 1},
            "run": _push_once(forge, place),
            "output": "APPROVED",
        },
        {"when": {"role": "resolve"}, "files": {"b.txt": "b and theirs\n"}, "output": "done"},
        {"when": {"role": "review"}, "output": "fine\nAPPROVED"},
    ]


def _push_once(forge: Path, place: Path) -> str:
    """A person's push to main that conflicts with b; done again, it finds itself done."""
    return f"""
set -e
git --git-dir={forge} cat-file -e main:b.txt 2>/dev/null && exit 0
clone=$(mktemp -d {place}/clone-XXXXXX)
trap 'rm -rf "$clone"' EXIT
export GIT_AUTHOR_NAME=Ada GIT_AUTHOR_EMAIL=ada@localhost
export GIT_COMMITTER_NAME=Ada GIT_COMMITTER_EMAIL=ada@localhost
git clone --quiet --branch main {forge} "$clone/c"
cd "$clone/c"
echo theirs > b.txt
git add b.txt
git commit --quiet -m "Ada writes b too"
git push --quiet origin HEAD:main
"""
