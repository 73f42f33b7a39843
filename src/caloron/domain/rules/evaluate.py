"""The decision of a tick: from the state and the new facts to the next state and the actions.

Pure: the same state, facts and time give the same result, in whatever order and how often the
facts are delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from caloron.domain.model.effects import CloseIssue
from caloron.domain.model.facts import (
    EffectDone,
    EffectFailed,
    Fact,
    Halt,
    PlanApproved,
    PlanEdited,
    PlanSentBack,
    RevertRequested,
    RunInterrupted,
    SprintDiscarded,
    WorkEnded,
)
from caloron.domain.model.roles import WorkId
from caloron.domain.model.snapshots import Snapshot, merge_observations
from caloron.domain.model.sprint import State, branch_name, enter
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting import forge_texts, progress_page
from caloron.domain.rules import (
    merge_queue,
    planning,
    post_merge_check,
    retro_phase,
    verification,
    workflow,
)
from caloron.domain.rules.evaluation import Decision, Evaluation, decide
from caloron.domain.rules.people import commands
from caloron.domain.rules.people.labelled_issues import add_tasks
from caloron.domain.rules.pull_requests import bind
from caloron.domain.rules.refusals import effect_failed
from caloron.domain.rules.results import work_ended
from caloron.domain.rules.scheduling import needs_person

_F = TypeVar("_F")


def evaluate(state: State, facts: Sequence[Fact], now: float) -> Decision:
    """Take in the facts and decide everything that can be decided now."""

    def rules(evaluation: Evaluation) -> None:
        evaluation.apply("", _take_in, facts)
        if evaluation.sprint.discard.by:
            from caloron.domain.rules import discard

            evaluation.apply("", progress_page.report)
            # A person may revert what was merged before.
            evaluation.apply("", post_merge_check.advance)
            evaluation.apply("", discard.advance)
            return
        if evaluation.sprint.phase in ("planning", "approval"):
            evaluation.apply("", planning.advance)
            evaluation.apply("", _follow_plan_issue)
        if evaluation.sprint.phase in ("running", "retro", "ended") and evaluation.state.tasks:
            evaluation.apply("", _advance)
            evaluation.apply("", progress_page.report)
            evaluation.apply("", _conclude_plan_issue)
            evaluation.apply("", _end_or_go_on)

    return decide(state, now, rules)


def _follow_plan_issue(evaluation: Evaluation) -> None:
    if evaluation.sprint.settings.plan_on_forge:
        from caloron.domain.rules.people import plan_issue

        plan_issue.advance(evaluation)


def _conclude_plan_issue(evaluation: Evaluation) -> None:
    if evaluation.sprint.planning.approval is not None:
        from caloron.domain.rules.people import plan_issue

        plan_issue.conclude(evaluation)


def _advance(evaluation: Evaluation) -> None:
    """Follow every consequence to its end, so that one call decides all that can be decided."""
    evaluation.apply("", add_tasks)
    # A rule may have failed for a task that was added just now.
    evaluation.contain_failed()
    workflow.run(evaluation)


def _take_in(evaluation: Evaluation, facts: Sequence[Fact]) -> None:
    """Take in snapshots and people's acts, then ends of work, then refusals, in a fixed order."""
    seen = tuple(f for f in facts if isinstance(f, Snapshot))
    evaluation.state.objects = merge_observations(evaluation.state.objects, seen)
    for effect in sorted(_of_kind(EffectDone, facts), key=lambda f: f.id):
        evaluation.apply(effect.task, _effect_done, effect)
    evaluation.apply("", bind)
    evaluation.apply("", _plan_judged, facts)
    if not evaluation.sprint.discard.by:
        workflow.follow(evaluation, workflow.PEOPLE)
    for end in sorted(_of_kind(WorkEnded, facts), key=lambda f: (f.item, f.token)):
        evaluation.apply("", _account, end)
        evaluation.apply(end.task, _work_ended, end)
    for interruption in sorted(_of_kind(RunInterrupted, facts), key=lambda f: (f.item, f.token)):
        evaluation.apply(interruption.task, _run_interrupted, interruption)
    for refusal in sorted(_of_kind(EffectFailed, facts), key=lambda f: f.id):
        evaluation.apply(refusal.task, effect_failed, refusal)
    for halt in _of_kind(Halt, facts):
        _halted(evaluation, halt)
    for discarded in _of_kind(SprintDiscarded, facts):
        from caloron.domain.rules import discard

        evaluation.apply("", discard.discard, discarded)
    for request in _of_kind(RevertRequested, facts):
        evaluation.apply("", post_merge_check.request_revert, request)


def _of_kind(kind: type[_F], facts: Sequence[Fact]) -> list[_F]:
    return [fact for fact in facts if isinstance(fact, kind)]


def _work_ended(evaluation: Evaluation, end: WorkEnded) -> None:
    if not end.task and end.role == "verify":
        verification.baseline_ended(evaluation, end)
    elif end.role == "po":
        planning.planner_ended(evaluation, end)
    elif end.role == "retro":
        retro_phase.ended(evaluation, end)
    else:
        work_ended(evaluation, end)


def _halted(evaluation: Evaluation, halt: Halt) -> None:
    if evaluation.sprint.phase == "retro":
        retro_phase.do_without(evaluation, halt.reason)
    else:
        evaluation.sprint.availability.pause_reason = halt.reason


def _plan_judged(evaluation: Evaluation, facts: Sequence[Fact]) -> None:
    """Replace a plan that waits for approval with the last edit; then run it, or send it back."""
    if evaluation.sprint.phase != "approval":
        return
    if edits := _of_kind(PlanEdited, facts):
        planning.replace_plan(evaluation, max(edits, key=lambda f: f.at).tasks)
    if _of_kind(PlanApproved, facts):
        planning.run_plan(evaluation)
    elif sent_back := _of_kind(PlanSentBack, facts):
        planning.send_back(evaluation, max(sent_back, key=lambda f: f.at).remark)


def _account(evaluation: Evaluation, run: WorkEnded | RunInterrupted) -> None:
    """Add the cost of a run once, also if its result is not needed any more."""
    task, usage = evaluation.state.tasks.get(run.task), evaluation.sprint.usage
    account = task.usage if task else usage
    if run.usage is None or account.accounted.get(run.item, 0) >= run.token:
        return
    account.accounted = account.accounted | {run.item: run.token}
    usage.spent = usage.spent.plus(run.usage)
    if task:
        task.usage.spent = task.usage.spent.plus(run.usage)
    elif WorkId.parse(run.item).role == "retro":
        usage.retro_spent = usage.retro_spent.plus(run.usage)


def _run_interrupted(evaluation: Evaluation, fact: RunInterrupted) -> None:
    _account(evaluation, fact)
    task = evaluation.state.tasks.get(fact.task)
    if task and task.work and task.work.item == fact.item and fact.session:
        task.attempts.session = fact.session


def _effect_done(evaluation: Evaluation, fact: EffectDone) -> None:
    task = evaluation.state.tasks.get(fact.task)
    if task is None:
        return
    match fact.kind:
        case "merge":
            merge_queue.merge_done(evaluation, task, fact)
        case "revert":
            post_merge_check.revert_made(evaluation, task, fact)
        case "reopen_issue":
            post_merge_check.issue_reopened(task)
            if task.status is Status.CANCELLED:
                task.conversation.closed_by_person = task.conversation.reopen_approved = True
        case "see_branch":
            commands.handed_back(evaluation, task, fact.commit)
        case "push":
            _pushed(evaluation, task, fact)


def _pushed(evaluation: Evaluation, task: Task, fact: EffectDone) -> None:
    change = task.change
    if fact.key.startswith(f"push/{branch_name(task.id, evaluation.sprint.id)}/"):
        change.own_commit = fact.commit
    if fact.key.startswith(f"push/{change.branch}/") and change.pushed != change.head:
        change.pushed = fact.commit


def _answer_source_issues(evaluation: Evaluation) -> bool:
    """Post the result on the issues of the goal; True if there was anything to post.

    They are closed only if the user asked for it: a plan may cover a part of an issue.
    """
    sprint, source = evaluation.sprint, evaluation.sprint.planning.source
    done = sum(task.status is Status.DONE for task in evaluation.state.tasks.values())
    key = f"result/{sprint.id}/{done}"
    if source is None or key in source.answered:
        return False
    sprint.planning.source = msgspec.structs.replace(source, answered=(*source.answered, key))
    for number in source.numbers:
        text = forge_texts.source_result(evaluation.state)
        evaluation.post_comment(number, f"comment/{number}/{key}", text)
        if source.close and done == len(evaluation.state.tasks):
            evaluation.do(CloseIssue(key=f"close/{number}/{key}", task="", issue=number))
    return True


def _end_or_go_on(evaluation: Evaluation) -> None:
    """End a sprint when no task can move without a person and no effect is left."""
    phase = evaluation.sprint.phase
    settled = all(needs_person(evaluation, t) for t in evaluation.state.tasks.values())
    left = [action for action in evaluation.actions if not retro_phase.is_cancelled(action)]
    if settled and not left and not evaluation.state.open_effects:
        if phase != "ended" and not _answer_source_issues(evaluation):
            retro_phase.begin_or_end(evaluation)
    elif phase in ("retro", "ended") and not settled:
        retro_phase.go_back(evaluation)
    elif phase == "ended":
        # A person commented after the end: the sprint ends again after the answer.
        enter(evaluation.sprint, "running")
