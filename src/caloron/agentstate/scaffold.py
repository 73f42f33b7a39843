"""The folder of one agent: laid down once, repaired when called again, never written over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from caloron.agentstate.dashboard import NOT_YET
from caloron.agentstate.file import MIGRATION_NAMES, MIGRATIONS, open_file
from caloron.errors import CaloronError, StoreError
from caloron.store.files import write_atomic

NAME = re.compile(r"[A-Za-z0-9_-]+")

_DASHBOARD = """# AgentState dashboard

{not_yet} for agent {agent} on {host}: `caloron agent-state dashboard regen`._
"""
_BRIDGE = """# {agent} on {host}

This folder is your home: it outlives every run of you.

- `state.sqlite`: your queue and your diary. Never open it by hand; use the commands below.
- `dashboard.md`: how you stand. Made from the queue; edits are lost.
- `retros/`: what each week came to.
- `context/repos.md`, `context/channels.md`: what your operator tells you about your surroundings.
- `persona.md`: who you are, put here by your host.

```sh
export MF_INSTANCE_DIR={place}
caloron agent-state errands replay              # after a start: what to take up again
caloron agent-state errands next --owner {agent}
caloron agent-state errands resolve --id ID --status done --notes 'what came of it'
caloron agent-state events append --type note --payload '{{"text":"…"}}' --actor {agent}
caloron agent-state dashboard regen
```

Every command explains itself with `--help`.
"""
_REPOS = """# Repositories

What {agent} should know about each repository: where it is, how it is tested, who decides.
"""
_CHANNELS = """# Channels

Where {agent} is spoken to and where it answers.
"""


class StrictFailure(CaloronError):
    """A migration is missing or empty: this installation is damaged."""

    agent_state_exit = 3


class Action(NamedTuple):
    """One step of the scaffold, as its line tells it."""

    kind: str
    what: str
    reason: str = ""

    def __str__(self) -> str:
        return f"scaffold: {self.kind} {self.what}" + (f" ({self.reason})" if self.reason else "")


def agent_directory(host: str, agent: str) -> Path:
    """Where an agent of a host lives unless somebody says otherwise."""
    return Path("~/.config").expanduser() / _name(host, "host") / "agents" / _name(agent, "agent")


def scaffold(where: Path, host: str, agent: str, *, strict: bool = False) -> list[Action]:
    """Lay down what is missing in an agent's folder, and say what was done."""
    _name(host, "host")
    _name(agent, "agent")
    if strict:
        _require_migrations()
    words = {"not_yet": NOT_YET, "host": host, "agent": agent, "place": quote(str(where))}
    return [
        _state(where / "state.sqlite"),
        _file(where, "dashboard.md", _DASHBOARD, words),
        _file(where, "CLAUDE.md", _BRIDGE, words),
        _folder(where, "context"),
        _file(where, "context/repos.md", _REPOS, words),
        _file(where, "context/channels.md", _CHANNELS, words),
        _folder(where, "retros"),
    ]


def _name(value: str, what: str) -> str:
    if not NAME.fullmatch(value):
        raise CaloronError(
            f"{what} {value[:60]!r} cannot be used", hint="take letters, digits, '_' and '-'"
        )
    return value


def _require_migrations() -> None:
    problems = list(_migration_problems())
    if problems:
        raise StrictFailure("; ".join(problems), hint="install Caloron anew; nothing was changed")


def _migration_problems() -> Iterator[str]:
    there = {migration.name: migration for migration in MIGRATIONS}
    for name in MIGRATION_NAMES:
        if name not in there:
            yield f"migration {name} is missing"
        elif problem := there[name].problem():
            yield f"migration {name} {problem}"


def _state(path: Path) -> Action:
    there = path.exists()
    db = open_file(path)
    applied = db.migrated
    db.close()
    if not there:
        return Action("created", path.name)
    if not applied:
        return Action("skipped", path.name, "exists")
    named = ", ".join(applied)
    return Action(
        "skipped", path.name, f"present, applied {len(applied)} new migration(s): {named}"
    )


def _file(where: Path, name: str, text: str, words: dict[str, str]) -> Action:
    path = where / name
    if path.exists():
        return Action("skipped", name, "exists")
    write_atomic(path, text.format(**words).encode())
    return Action("created", name)


def _folder(where: Path, name: str) -> Action:
    path = where / name
    if path.is_dir():
        return Action("skipped", f"{name}/", "exists")
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise StoreError(
            f"cannot make {path}: {error.strerror}", hint="make its folder writable for you"
        ) from error
    return Action("created", f"{name}/")
