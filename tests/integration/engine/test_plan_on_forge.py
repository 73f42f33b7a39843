"""A sprint whose plan waits on the forge continues after the approval of a person."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from caloron.domain.model.effects import Moved
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.snapshots import IssueSnapshot
from caloron.domain.model.sprint import State
from caloron.engine.loop import Engine
from caloron.engine.session import Choices, Session, exclusive
from caloron.engine.signals import APPROVED, ON_FORGE, Approval
from caloron.forge.local.forge import LocalForge
from caloron.ledger.projects import load_project
from tests.support.home import Home, writes

T = TypeVar("T")


class ScriptedListener:
    """Records the messages and answers for the plan with a function of the test."""

    def __init__(self, decide: Callable[[Callable[[], bool]], Approval]) -> None:
        self._decide = decide
        self.lines: list[str] = []

    def transitions(self, state: State, moves: tuple[Moved, ...]) -> None: ...
    def state(self, state: State) -> None: ...

    def message(self, line: str) -> None:
        self.lines.append(line)

    def approve_plan(self, state: State, poll: Callable[[], bool]) -> Approval:
        return self._decide(poll)


def no_terminal(_: Callable[[], bool]) -> Approval:
    return ON_FORGE


def waits_for_the_forge(poll: Callable[[], bool]) -> Approval:
    """Wait as the prompt of a terminal without input waits."""
    while not poll():
        time.sleep(0.05)
    return ON_FORGE


class Running:
    """A sprint in a thread of its own, and the forge as a person sees it."""

    def __init__(self, session: Session, engine: Engine, listener: ScriptedListener) -> None:
        self.engine, self.listener, self.session = engine, listener, session
        self.person = LocalForge(session.project.path, actor="anna")
        self.result: State | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.result = self.engine.run()

    def wait_for(self, read: Callable[[], T | None]) -> T:
        for _ in range(1200):
            if value := read():
                return value
            time.sleep(0.05)
        raise AssertionError("the expected state never comes")

    def plan_issue(self) -> IssueSnapshot:
        def read() -> IssueSnapshot | None:
            return next((i for i in self.person.issues() if "caloron:plan" in i.labels), None)

        return self.wait_for(read)

    def comments(self, number: int) -> list[str]:
        return [c.body for c in self.person.comments(number) if c.author == "caloron"]

    def end(self) -> State:
        self._thread.join(timeout=120)
        assert self.result is not None
        return self.result

    def close(self) -> None:
        self.engine.request_stop()
        self._thread.join(timeout=120)
        self.person.close()


@pytest.fixture
def home(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    # A person can read the plan only on a forge that has pages.
    monkeypatch.setattr(LocalForge, "url", lambda _self, number, **_: f"page:{number}")
    return home.script(writes("a"), writes("b"))


@contextmanager
def running(listener: ScriptedListener) -> Iterator[Running]:
    plan = (PlannedTask(id="a", title="First", agent_prompt="Do it"),)
    with exclusive(load_project("demo")) as session:
        choices = Choices(unsandboxed=True)
        name = session.begin("a goal", plan, choices, parallel=2, ask=True, plan_on_forge=True)
        made = Running(session, session.engine(name, listener), listener)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("decide", [no_terminal, waits_for_the_forge])
def test_a_plan_is_edited_and_approved_on_the_forge_and_then_runs(
    home: Home, decide: Callable[[Callable[[], bool]], Approval]
) -> None:
    with running(ScriptedListener(decide)) as sprint:
        issue = sprint.plan_issue()
        sprint.person.edit_issue(issue.number, issue.body.replace('"id": "a"', '"id": "b"'))
        comments = sprint.wait_for(lambda: sprint.comments(issue.number))
        assert "| `b` | First |" in comments[0]
        sprint.person.comment(issue.number, "caloron:approve")
        state = sprint.end()
        assert {i: str(t.status) for i, t in state.tasks.items()} == {"b": "Done"}
        assert sprint.person.issue(issue.number).state == "closed"
        assert f"#{state.tasks['b'].links.issue} `b`" in sprint.comments(issue.number)[-1]


@pytest.mark.parametrize("decide", [no_terminal, waits_for_the_forge])
def test_closing_the_plan_issue_declines_the_plan(
    home: Home, decide: Callable[[Callable[[], bool]], Approval]
) -> None:
    with running(ScriptedListener(decide)) as sprint:
        issue = sprint.plan_issue()
        sprint.person.close_issue(issue.number)
        state = sprint.end()
        assert state.sprint.phase == "approval"
        assert "the plan was declined: anna closed its issue" in sprint.listener.lines
        assert [i.number for i in sprint.person.issues()] == [issue.number]


def test_an_approval_at_the_terminal_starts_the_sprint(home: Home) -> None:
    with running(ScriptedListener(lambda _: APPROVED)) as sprint:
        state = sprint.end()
        assert {i: str(t.status) for i, t in state.tasks.items()} == {"a": "Done"}
        issue = sprint.plan_issue()
        assert issue.state == "closed"
