"""The folder of one agent: laid out once, never overwritten, and opened for programs."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from caloron import __version__
from caloron.agentstate.dashboard import NOT_YET, write_dashboard
from caloron.agentstate.database import MIGRATION_NAMES, MIGRATIONS, open_database
from caloron.agentstate.weekly_retro import write_weekly
from caloron.agentstate.work_items import WorkItems
from caloron.errors import AlreadyExists, CaloronError, store_errors
from caloron.store.files import read_plain, write_atomic

if TYPE_CHECKING:
    from caloron.agentstate.events import EventLog


class AgentInstance:
    """The opened folder of an agent."""

    def __init__(self, agent_dir: Path) -> None:
        self.agent_dir = agent_dir
        self.db = open_database(agent_dir / "state.sqlite")
        self.work_items = WorkItems(self.db)

    @cached_property
    def events(self) -> EventLog:
        from caloron.agentstate.events import EventLog

        return EventLog(self.db)

    @classmethod
    def scaffolded(cls, agent_dir: Path, host: str, agent: str) -> AgentInstance:
        """Create the missing files of the folder, and open it."""
        scaffold(agent_dir, host, agent)
        return cls(agent_dir)

    def regenerate_dashboard(self) -> Path:
        return write_dashboard(self.db, self.agent_dir)

    def write_retro(self, week: str | None = None) -> Path:
        return write_weekly(self.agent_dir, week)[0]

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> AgentInstance:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


NAME = re.compile(r"[A-Za-z0-9_-]+")

_DASHBOARD = """# AgentState dashboard

{not_yet} for agent {agent} on {host}: `caloron agent-state dashboard regen`._
"""
_BRIDGE = """# {agent} on {host}

This folder is yours: it outlives every run of you.

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
    """One step of a command, printed as a line."""

    kind: str
    what: str
    reason: str = ""
    command: str = "scaffold"

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.command}: {self.kind} {self.what}{reason}"


def scaffold(agent_dir: Path, host: str, agent: str, *, strict: bool = False) -> list[Action]:
    """Create the missing files of an agent's folder; return the steps."""
    for name, what in ((host, "host"), (agent, "agent")):
        if not NAME.fullmatch(name):
            raise CaloronError(
                f"{what} {name[:60]!r} cannot be used", hint="take letters, digits, '_' and '-'"
            )
    if strict:
        _require_migrations()
    words = {"not_yet": NOT_YET, "host": host, "agent": agent, "place": quote(str(agent_dir))}
    return [
        _state(agent_dir / "state.sqlite"),
        _file(agent_dir, "dashboard.md", _DASHBOARD, words),
        _file(agent_dir, "CLAUDE.md", _BRIDGE, words),
        _folder(agent_dir, "context"),
        _file(agent_dir, "context/repos.md", _REPOS, words),
        _file(agent_dir, "context/channels.md", _CHANNELS, words),
        _folder(agent_dir, "retros"),
    ]


def edited_files(agent_dir: Path) -> dict[str, str]:
    """Persona and context files of an agent that people wrote, without untouched placeholders."""
    placeholders = {"context/repos.md": _REPOS, "context/channels.md": _CHANNELS}
    texts: dict[str, str] = {}
    for path in (agent_dir / "persona.md", *sorted((agent_dir / "context").glob("*.md"))):
        name = path.relative_to(agent_dir).as_posix()
        if path.is_symlink() or not path.is_file():
            continue
        text = read_plain(path).decode("utf-8", "replace")
        if text.strip() and text != placeholders.get(name, "").format(agent=agent_dir.name):
            texts[name] = text
    return texts


def _require_migrations() -> None:
    present = {migration.name: migration.problem() for migration in MIGRATIONS}
    problems = [
        f"migration {name} {problem}"
        for name in MIGRATION_NAMES
        if (problem := present.get(name, "is missing"))
    ]
    if problems:
        raise StrictFailure("; ".join(problems), hint="install Caloron anew; nothing was changed")


def _state(path: Path) -> Action:
    existed = path.exists()
    db = open_database(path)
    applied = db.migrated
    db.close()
    if not existed:
        return Action("created", path.name)
    if not applied:
        return Action("skipped", path.name, "exists")
    named = ", ".join(applied)
    return Action(
        "skipped", path.name, f"present, applied {len(applied)} new migration(s): {named}"
    )


def _file(agent_dir: Path, name: str, text: str, words: dict[str, str]) -> Action:
    path = agent_dir / name
    if path.exists():
        return Action("skipped", name, "exists")
    write_atomic(path, text.format(**words).encode())
    return Action("created", name)


def _folder(agent_dir: Path, name: str) -> Action:
    path = agent_dir / name
    if path.is_dir():
        return Action("skipped", f"{name}/", "exists")
    with store_errors(f"cannot make {path}", hint="make its folder writable for you"):
        path.mkdir(parents=True)
    return Action("created", f"{name}/")


_BUNDLE = Path(__file__).parent / "bundle"


def bundle() -> dict[str, bytes]:
    """Every file of the skill by its place in the folder."""
    files = sorted(file for file in _BUNDLE.rglob("*") if file.suffix in (".md", ".yaml"))
    return {
        file.relative_to(_BUNDLE).as_posix(): file.read_bytes().replace(
            b"VERSION_OF_CALORON", __version__.encode()
        )
        for file in files
    }


def install(agent_dir: Path, *, force: bool = False) -> list[Action]:
    """Write the files of the skill; different files are overwritten only with `force`."""
    files = bundle()
    present = {name: _read(agent_dir / name) for name in files}
    changed = [name for name, content in present.items() if content not in (None, files[name])]
    if changed and not force:
        raise AlreadyExists(
            f"{agent_dir / changed[0]} holds something else",
            hint="choose another folder, or write over it with --force; nothing was changed",
        )
    for name, content in files.items():
        if present[name] != content:
            write_atomic(agent_dir / name, content)
    return [
        Action("skipped" if present[name] == content else "wrote", name, command="skill")
        for name, content in files.items()
    ]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
