"""Compares the folders of a project's agents with the ledger; the repair is a new export."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from caloron.agentstate.dashboard import regenerate, wrong_in
from caloron.agentstate.database import MIGRATIONS, MIGRATIONS_TABLE
from caloron.backup.verify import Issue, Repair, Report
from caloron.engine.agent_dirs import differences, export, set_aside_database
from caloron.engine.agent_view import STATE
from caloron.errors import CaloronError
from caloron.ledger.ledger import Ledger
from caloron.store.database import open_read_only
from caloron.store.files import read_plain
from caloron.store.health import damages


def verify_agent_dirs(folder: Path, ledger: Ledger, report: Report) -> None:
    """Compare every agent's folder with the ledger; a missing or older one is no deviation."""
    for agent_dir in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not agent_dir.is_dir() or agent_dir.is_symlink() or agent_dir.name.startswith("."):
            continue
        report.checked += 1
        file = agent_dir / STATE
        if file.exists() and (damage := _damage(file)):
            repair = f"set it aside as {STATE}.corrupt-…, and export it again"
            issue = _issue(file, "a sound file", damage, repair)
            report.add(issue, _rewrite(agent_dir, ledger, damaged=True))
            continue
        rewrite = _rewrite(agent_dir, ledger)
        with ledger.db.snapshot() as connection:
            for target, expected, found in differences(agent_dir, connection):
                place = file if target == STATE else f"{file}, {target}"
                place = agent_dir / target if target.startswith("cycle") else place
                report.add(_issue(place, expected, found, "export it again"), rewrite)
        page = agent_dir / "dashboard.md"
        wrong = _wrong_page(file, page)
        if wrong.startswith("older"):
            report.add(_issue(page, "the current state of its agent", wrong, informational=True))
        elif wrong:
            issue = _issue(page, "the page made from its queue", wrong, "write it again")
            report.add(issue, lambda page=page: f"{regenerate(page.parent)} is written again")  # type: ignore[misc]


def _rewrite(agent_dir: Path, ledger: Ledger, *, damaged: bool = False) -> Repair:
    def act() -> str:
        if damaged:
            set_aside_database(agent_dir / STATE, "corrupt")
        with closing(open_read_only(ledger.db.path)) as connection:
            export(agent_dir, connection, compare=True)
        if damaged:
            regenerate(agent_dir)
        return f"{agent_dir} is exported again"

    return act


def _damage(file: Path) -> str:
    try:
        with closing(open_read_only(file)) as connection:
            # agent-state and similar programs may have added tables.
            damage = next(damages(connection, MIGRATIONS, MIGRATIONS_TABLE, shared=True), None)
            return f"{damage.what}: {damage.found}" if damage else ""
    except (CaloronError, sqlite3.Error) as error:
        return str(error)


def _wrong_page(file: Path, page: Path) -> str:
    """The fault of a dashboard; empty: none. One that was never made is right."""
    if not file.exists():
        return ""
    try:
        text = read_plain(page)
    except FileNotFoundError:
        return ""
    except CaloronError as error:
        return str(error)
    with closing(open_read_only(file)) as connection:
        return wrong_in(connection, text)


def _issue(
    target: Path | str, expected: str, found: str, repair: str = "", *, informational: bool = False
) -> Issue:
    return Issue(
        kind="agent", target=str(target), expected=expected, found=found, repair=repair,
        informational=informational,
    )  # fmt: skip
