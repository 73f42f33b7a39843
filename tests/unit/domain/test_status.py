"""The statuses of a task and the phases of a sprint, and the moves between them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

import caloron
from caloron.domain.model.sprint import enter
from caloron.domain.model.status import (
    HOLDS_DEPENDENTS,
    PHASES,
    SETTLED,
    TRANSITIONS,
    IllegalPhase,
    IllegalTransition,
    Phase,
    Status,
    Step,
    check_transition,
)
from caloron.domain.model.task import Task
from caloron.domain.rules.evaluation import Evaluation
from caloron.testing import new_state, planned

FORBIDDEN = [(old, new) for old in Status for new in Status if new not in TRANSITIONS[old]]


def test_the_statuses_have_their_public_names() -> None:
    assert [str(s) for s in Status] == [
        "Pending", "Ready", "InProgress", "InReview", "Done", "Blocked", "Escalated", "Cancelled",
    ]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), FORBIDDEN)
def test_an_unknown_move_is_refused(old: Status, new: Status) -> None:
    with pytest.raises(IllegalTransition, match="a"):
        check_transition("a", old, new)


def test_done_is_final_and_every_other_status_can_become_done() -> None:
    assert TRANSITIONS[Status.DONE] == frozenset()
    assert all(Status.DONE in TRANSITIONS[s] for s in Status if s is not Status.DONE)


def test_work_never_starts_without_ready() -> None:
    assert {s for s in Status if Status.IN_PROGRESS in TRANSITIONS[s]} == {
        Status.READY,
        Status.IN_REVIEW,
        Status.ESCALATED,
    }


def test_statuses_that_block_dependents_are_settled_and_not_done() -> None:
    assert SETTLED - {Status.DONE} == HOLDS_DEPENDENTS


def test_a_move_keeps_time_and_reason_and_the_first_start() -> None:
    evaluation, task = Evaluation(new_state(), 5.0), Task(plan=planned("a"), step=Step.READY)
    evaluation.move(task, Step.IMPLEMENTING, "go")
    assert (task.times.started_at, task.times.changed_at, task.reason) == (5.0, 5.0, "go")
    evaluation.now = 6.0
    evaluation.move(task, Step.REVIEWING)
    evaluation.move(task, Step.IMPLEMENTING)
    evaluation.now = 7.0
    evaluation.move(task, Step.DONE, "merged")
    assert (task.times.started_at, task.times.completed_at) == (5.0, 7.0)
    assert [(m.old, m.new) for m in evaluation.moves][-1] == ("InProgress", "Done")


def test_keeping_a_status_is_no_move_but_may_have_a_reason() -> None:
    evaluation, task = Evaluation(new_state(), 5.0), Task(plan=planned("a"), reason="old")
    evaluation.move(task, Step.WAITING)
    assert task.reason == "old"
    evaluation.move(task, Step.WAITING, "new")
    assert (task.reason, evaluation.moves) == ("new", [])


ALL_PHASES: tuple[Phase, ...] = get_args(Phase)
NO_WAY = [(old, new) for old in ALL_PHASES for new in ALL_PHASES if new not in (old, *PHASES[old])]


@pytest.mark.parametrize(("old", "new"), NO_WAY)
def test_an_illegal_phase_change_is_refused(old: Phase, new: Phase) -> None:
    sprint = new_state().sprint
    sprint.phase = old
    with pytest.raises(IllegalPhase, match=f"sprint shop-1: {old} → {new}"):
        enter(sprint, new)
    assert sprint.phase == old


def test_a_sprint_can_end_from_every_active_phase() -> None:
    assert {old for old in ALL_PHASES if "ended" not in PHASES[old]} == {"approval", "ended"}


def test_an_approved_plan_is_not_asked_for_again() -> None:
    """A plan that waits may be sent back; a started sprint never returns to planning."""
    assert {old for old in ALL_PHASES if "planning" in PHASES[old]} == {
        "approval",
        "ended",
    }
    assert {old for old in ALL_PHASES if "approval" in PHASES[old]} == {"planning"}


def test_only_one_function_changes_the_phase_of_a_sprint() -> None:
    writers = [
        f"{file.name}: {function.name}"
        for file in Path(caloron.__file__).parent.rglob("*.py")
        for function in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "phase"
        if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) != "self"
    ]
    assert writers == ["sprint.py: enter"]
