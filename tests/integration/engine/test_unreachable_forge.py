"""The engine waits for a forge that does not answer and counts no failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caloron.domain.model.roles import Role
from caloron.domain.model.sprint import Sprint
from caloron.engine.session import Session, refuse_if_unreachable
from caloron.errors import ForgeUnavailable
from caloron.forge.local.forge import LocalForge, create_local_forge
from caloron.git.command import GitError
from caloron.ledger.ledger import Ledger
from caloron.ledger.reading import read_outage
from caloron.ports import Forge, Remote, RepositoryInfo
from caloron.store.database import open_read_only
from tests.integration.engine.conftest import Engine

#: No server listens on this port.
AWAY = Remote("http://127.0.0.1:9/owner/name.git")


@pytest.mark.parametrize("role", ["implement", "verify"])
def test_work_that_needs_an_unreachable_forge_returns_to_the_queue(
    engine: Engine, role: Role
) -> None:
    workers = engine.workers()
    engine.mirror.remote = AWAY
    engine.work(workers, role)
    assert workers.idle
    assert engine.facts() == ()
    assert engine.signal.errors == []
    assert engine.queue.in_flight() == []
    # The item has a later start time in the queue.
    assert engine.queue.has_pending((role,))
    assert engine.queue.claim((role,), 4) is None
    (event,) = engine.events("work_item_reopened")
    assert "did not answer git fetch" in event["reason"]


def test_a_runtime_starts_without_the_forge_and_reports_the_outage(
    engine: Engine,
) -> None:
    engine.mirror.remote = AWAY
    runtime = engine.runtime()
    with pytest.raises(ForgeUnavailable, match="did not answer git fetch"):
        runtime.context.open()


def test_network_errors_of_git_differ_from_its_refusals(
    engine: Engine,
) -> None:
    engine.mirror.remote = AWAY
    with pytest.raises(ForgeUnavailable, match="did not answer git fetch"):
        engine.mirror.fetch_main()
    engine.mirror.remote = Remote(str(engine.home / "not-there.git"))
    with pytest.raises(GitError):
        engine.mirror.fetch_main()


class ForgeThatComesBack:
    """A forge that answers after an outage, first the API and then git."""

    def __init__(self, forge: LocalForge) -> None:
        self._forge = forge
        self.pauses: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forge, name)

    def about(self) -> RepositoryInfo:
        if not self.pauses:
            raise ForgeUnavailable("connection refused")
        return self._forge.about()

    def remote(self) -> Remote:
        return self._forge.remote() if len(self.pauses) > 2 else AWAY


@contextmanager
def begun(
    folder: Path, forge: object = None, *, remote: bool = True, phase: Any = "running"
) -> Iterator[tuple[Session, str]]:
    """A session, without its lock, whose sprint was begun."""
    session = Session.__new__(Session)
    session.project = cast(Any, SimpleNamespace(mirror=folder / "mirror.git", is_remote=remote))
    session.forge = cast(Forge, forge)
    session.ledger = Ledger(folder / "ledger.sqlite")
    sprint = Sprint(id="demo", number=0, goal="g", phase=phase)
    yield session, session.ledger.create_sprint(sprint, {}).id
    session.ledger.close()


def test_a_started_sprint_waits_until_the_forge_and_its_git_answer(tmp_path: Path) -> None:
    forge = ForgeThatComesBack(create_local_forge(tmp_path / "project", name="demo"))
    messages: list[str] = []
    shown: list[str] = []

    def outage() -> str:
        with closing(open_read_only(tmp_path / "ledger.sqlite")) as connection:
            return str(read_outage(connection, "demo-1") or "")

    def sleep(seconds: float) -> None:
        forge.pauses.append(seconds)
        shown.append(outage())

    with begun(tmp_path, forge) as (session, sprint):
        session.wait_for_forge(sprint, messages.append, sleep)
    assert forge.pauses == sorted(forge.pauses)
    assert len(forge.pauses) == 3
    assert messages[0].startswith("forge does not answer since ")
    assert "(connection refused); waiting, and going on when it answers" in messages[0]
    assert messages[1:] == ["the forge answers again"]
    assert all("does not answer" in line for line in shown)
    assert outage() == ""
    forge.close()


@pytest.mark.parametrize(("remote", "phase"), [(False, "running"), (True, "ended")])
def test_a_local_forge_and_an_ended_sprint_do_not_wait(
    tmp_path: Path, remote: bool, phase: Any
) -> None:
    with begun(tmp_path, remote=remote, phase=phase) as (session, sprint):
        session.wait_for_forge(sprint, pytest.fail)


def test_a_new_sprint_is_refused_with_a_message() -> None:
    away = pytest.raises(ForgeUnavailable, match="no sprint was begun: no route")
    with away as refused, refuse_if_unreachable():
        raise ForgeUnavailable("no route")
    assert "when the forge answers" in refused.value.hint
