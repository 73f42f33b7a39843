"""The skills that a project starts with, until a person edits `skill_store.json`."""

from __future__ import annotations

from typing import Any, NamedTuple


class _Skill(NamedTuple):
    description: str
    tags: tuple[str, ...]


#: Only skills that an agent can use in its workspace, without an account or a server.
_SKILLS = {
    "git-operations": _Skill("Commit work in small steps with messages that say why", ("git",)),
    "python-development": _Skill("Write typed Python and manage its packages", ("python", "code")),
    "pytest-testing": _Skill("Write and run tests with pytest", ("python", "testing")),
    "typescript-development": _Skill(
        "Write TypeScript or JavaScript and manage its packages", ("javascript", "code")
    ),
    "rust-development": _Skill("Write Rust and build it with cargo", ("rust", "code")),
    "go-development": _Skill("Write Go and build it with its own tools", ("go", "code")),
    "shell-scripting": _Skill("Write scripts that fail loudly and quote well", ("shell", "code")),
    "rest-api-development": _Skill("Design and build HTTP interfaces", ("api", "code")),
    "sql-database": _Skill("Design tables, write queries and migrations", ("sql", "data")),
    "documentation": _Skill("Write and correct documents for users and developers", ("docs",)),
    "code-review": _Skill("Read a change and say what is wrong with it", ("review",)),
}


def default_skills(frameworks: tuple[str, ...]) -> dict[str, Any]:
    """Return the store in the form of the seeds."""
    return {
        name: {
            "type": "skill",
            "description": skill.description,
            "frameworks": list(frameworks),
            "mcp_url": "",
            "credentials": [],
            "tags": list(skill.tags),
            "dependencies": {},
            "nix_packages": [],
        }
        for name, skill in _SKILLS.items()
    }
