"""The trail of an agent without a sprint, on the local forge with a real ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from caloron.cycles.report import breadcrumb
from caloron.cycles.state import CycleState
from caloron.domain.model.effects import Describe, ReportProgress
from caloron.domain.model.snapshots import has_section
from caloron.engine import cycle_breadcrumbs
from caloron.engine.cycle_breadcrumbs import Left, Place, Trail, effects_for, leave
from caloron.errors import ForgeError, ForgeUnavailable, NotFound
from caloron.forge.local.forge import LocalForge, create_local_forge
from caloron.ledger.ledger import Ledger
from caloron.ledger.projects import Project, create_project
from caloron.ledger.settings import ProjectConfig


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("CALORON_HOME", str(tmp_path / "home"))
    made = create_project(ProjectConfig(name="demo"))
    create_local_forge(made.path, name="demo").close()
    return made


@pytest.fixture
def forge(project: Project) -> Iterator[LocalForge]:
    forge = LocalForge(project.path, actor="ada")
    yield forge
    forge.close()


def state(cycle: int, step: str = "wrote a test", *, agent: str = "allegro") -> CycleState:
    return CycleState(
        agent=agent,
        cycle_number=cycle,
        last_action=step,
        last_action_result="success",
        work_in_progress="issue 1",
        work_cycles=cycle,
        seq=10 * cycle,
    )


def leave_breadcrumb(project: Project, now: CycleState, number: int, *, pull: bool = False) -> Left:
    entry = breadcrumb(now)
    assert entry is not None
    return leave(project, now, entry, Place(number=number, is_pull=pull))


def rows(project: Project) -> list[tuple[str, str]]:
    ledger = Ledger(project.ledger)
    actions = ledger.db.rows("SELECT kind, state FROM cycle_actions ORDER BY id")
    waiting = ledger.db.rows("SELECT 1 FROM inbox")
    ledger.close()
    assert not waiting
    return [(row["kind"], row["state"]) for row in actions]


def test_the_first_cycle_leaves_a_comment_and_the_next_ones_a_section_too() -> None:
    def kinds(cycle: int, trail: Trail) -> list[type]:
        now = state(cycle)
        entry = breadcrumb(now)
        assert entry is not None
        effects = effects_for(now, entry, Place(number=1, is_pull=False), trail)
        return [type(effect) for effect in effects]

    assert kinds(1, Trail()) == [ReportProgress]
    assert kinds(2, Trail()) == [ReportProgress, Describe]
    assert kinds(1, Trail(section=True)) == [ReportProgress, Describe]


def test_a_repeated_step_after_another_step_is_reported_again(
    project: Project, forge: LocalForge
) -> None:
    number = forge.create_issue("Broken", "").number
    for seq, step in enumerate(("test", "write", "test")):
        assert leave_breadcrumb(project, state(2, step)._replace(seq=seq), number).done == 2
    (comment,) = forge.comments(number)
    assert "last step: test" in comment.body
    assert leave_breadcrumb(project, state(2, "test")._replace(seq=2), number).done == 0


def test_two_agents_at_one_issue_have_a_comment_and_a_section_each(
    project: Project, forge: LocalForge
) -> None:
    number = forge.create_issue("Broken", "It is broken.").number
    for cycle in (2, 3):
        for agent in ("allegro", "adagio"):
            leave_breadcrumb(project, state(cycle, agent=agent), number)
    assert len(forge.comments(number)) == 2
    body = forge.issue(number).body
    assert has_section(body, "cycle/allegro")
    assert has_section(body, "cycle/adagio")
    assert body.count("cycle 3") == 2


def test_a_breadcrumb_contains_no_secret(
    project: Project, forge: LocalForge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "very-secret-value-1234")
    number = forge.create_issue("Broken", "very-secret-value-1234 is her own secret").number
    leave_breadcrumb(project, state(2, "used very-secret-value-1234"), number)
    assert "very-secret" not in forge.comments(number)[0].body
    assert forge.issue(number).body.count("very-secret-value-1234") == 1


def test_a_missing_issue_is_named_and_leaves_no_actions(project: Project) -> None:
    with pytest.raises(NotFound, match="#7"):
        leave_breadcrumb(project, state(2), 7)
    assert rows(project) == []


class _Refusing(LocalForge):
    """A forge whose descriptions cannot be edited, or that is unreachable."""

    error: Exception = ForgeError("not here")

    def edit_issue(self, number: int, body: str, title: str = "") -> object:  # type: ignore[override]
        raise self.error


@pytest.mark.parametrize("error", [ForgeError("locked"), ForgeUnavailable("unreachable")])
def test_a_refused_effect_is_reported_and_repeated_by_the_next_call(
    project: Project, forge: LocalForge, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    number = forge.create_issue("Broken", "It is broken.").number
    monkeypatch.setattr(_Refusing, "error", error)
    with monkeypatch.context() as patched:
        patched.setattr(
            cycle_breadcrumbs, "open_forge", lambda p: _Refusing(p.path, actor="caloron")
        )
        with pytest.raises(type(error)):
            leave_breadcrumb(project, state(2), number)
    description_state = "intended" if isinstance(error, ForgeUnavailable) else "failed"
    assert rows(project) == [("progress", "done"), ("describe", description_state)]
    assert leave_breadcrumb(project, state(2), number).trail.section
    assert [kind for kind, how in rows(project) if how == "done"] == ["progress", "describe"]
    assert len(forge.comments(number)) == 1
