"""The tick's decision: from the state and what was observed to the next state and what to do.

Pure: the same state, facts and time give the same result, in whatever order and how often the
facts are told.
"""

from __future__ import annotations

from collections.abc import Sequence

from caloron.domain.model.effects import ClosePull
from caloron.domain.model.facts import (
    EffectDone,
    EffectFailed,
    Fact,
    Halt,
    PlanApproved,
    PlanEdited,
    RunInterrupted,
    SprintDiscarded,
    WorkEnded,
)
from caloron.domain.model.roles import WorkId
from caloron.domain.model.snapshots import Snapshot, merge_observations
from caloron.domain.model.sprint import State, branch_name, enter, pull_of
from caloron.domain.model.status import SETTLED, Status
from caloron.domain.model.task import Task
from caloron.domain.reporting import forge_texts, progress_page
from caloron.domain.rules import (
    discard,
    planning,
    post_merge_check,
    retro_phase,
    verification,
    workflow,
)
from caloron.domain.rules.evaluation import Decision, Evaluation, decide
from caloron.domain.rules.merge_queue import merge_failed
from caloron.domain.rules.people import commands, plan_issue
from caloron.domain.rules.people.labelled_issues import join
from caloron.domain.rules.pull_requests import bind, pull_closed
from caloron.domain.rules.results import publish, work_ended
from caloron.domain.rules.scheduling import needs_person


def evaluate(state: State, facts: Sequence[Fact], now: float) -> Decision:
    """Take in the facts and decide everything that can be decided now."""

    def rules(evaluation: Evaluation) -> None:
        evaluation.apply("", _take_in, facts)
        if evaluation.sprint.discard.by:
            evaluation.apply("", progress_page.report)
            evaluation.apply("", discard.advance)
            return
        if evaluation.sprint.phase in ("planning", "approval"):
            evaluation.apply("", planning.advance)
            evaluation.apply("", plan_issue.advance)
        if evaluation.sprint.phase in ("running", "retro", "ended") and evaluation.state.tasks:
            evaluation.apply("", _advance)
            evaluation.apply("", progress_page.report)
            evaluation.apply("", plan_issue.conclude)
            evaluation.apply("", _end_or_go_on)

    return decide(state, now, rules)


def _advance(evaluation: Evaluation) -> None:
    """Follow every consequence to its end, so that one call decides all that can be decided."""
    evaluation.apply("", join)
    # A rule may have failed for a task that has only just joined.
    evaluation.contain_failed()
    workflow.run(evaluation)


def _take_in(evaluation: Evaluation, facts: Sequence[Fact]) -> None:
    """Snapshots and what people did, then ends of work, then refusals, in one fixed order."""
    ended = [f for f in facts if isinstance(f, WorkEnded)]
    interrupted = [f for f in facts if isinstance(f, RunInterrupted)]
    halts = [f for f in facts if isinstance(f, Halt)]
    done = [f for f in facts if isinstance(f, EffectDone)]
    failed = [f for f in facts if isinstance(f, EffectFailed)]
    seen = tuple(f for f in facts if isinstance(f, Snapshot))
    evaluation.state.objects = merge_observations(evaluation.state.objects, seen)
    for effect in sorted(done, key=lambda f: f.id):
        evaluation.apply(effect.task, _effect_done, effect)
    evaluation.apply("", bind)
    evaluation.apply("", _plan_judged, facts)
    if not evaluation.sprint.discard.by:
        workflow.follow(evaluation, workflow.PEOPLE)
    for end in sorted(ended, key=lambda f: (f.item, f.token)):
        evaluation.apply("", _account, end)
        evaluation.apply(end.task, _end_taken_in, end)
    for cut in sorted(interrupted, key=lambda f: (f.item, f.token)):
        evaluation.apply(cut.task, _run_interrupted, cut)
    for refusal in sorted(failed, key=lambda f: f.id):
        evaluation.apply(refusal.task, _effect_failed, refusal)
    for halt in halts:
        _halted(evaluation, halt)
    for unwanted in [f for f in facts if isinstance(f, SprintDiscarded)]:
        evaluation.apply("", discard.discard, unwanted)


def _end_taken_in(evaluation: Evaluation, end: WorkEnded) -> None:
    if not end.task and end.role == "verify":
        verification.baseline_ended(evaluation, end)
    elif end.role == "po":
        planning.po_ended(evaluation, end)
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
    """What a person said to a plan that waits: other tasks first, then yes."""
    if evaluation.sprint.phase != "approval":
        return
    if edits := [f for f in facts if isinstance(f, PlanEdited)]:
        planning.replace_plan(evaluation, max(edits, key=lambda f: f.at).tasks)
    if any(isinstance(f, PlanApproved) for f in facts):
        planning.run_plan(evaluation)


def _account(evaluation: Evaluation, run: WorkEnded | RunInterrupted) -> None:
    """Every run costs once, whether or not its result is still wanted."""
    task = evaluation.state.tasks.get(run.task)
    payer = task or evaluation.sprint
    if run.usage is None or payer.usage.accounted.get(run.item, 0) >= run.token:
        return
    payer.usage.accounted = payer.usage.accounted | {run.item: run.token}
    evaluation.sprint.usage.spent = evaluation.sprint.usage.spent.plus(run.usage)
    if task:
        task.usage.spent = task.usage.spent.plus(run.usage)
    elif WorkId.parse(run.item).role == "retro":
        evaluation.sprint.usage.retro_spent = evaluation.sprint.usage.retro_spent.plus(run.usage)


def _run_interrupted(evaluation: Evaluation, fact: RunInterrupted) -> None:
    _account(evaluation, fact)
    task = evaluation.state.tasks.get(fact.task)
    if task and task.work and task.work.item == fact.item and fact.session:
        task.attempts.session = fact.session


def _effect_done(evaluation: Evaluation, fact: EffectDone) -> None:
    task = evaluation.state.tasks.get(fact.task)
    if task is None:
        return
    if fact.kind == "merge":
        post_merge_check.merge_done(evaluation, task, fact)
    elif fact.kind == "revert":
        post_merge_check.revert_made(evaluation, task, fact)
    elif fact.kind == "reopen_issue":
        post_merge_check.issue_reopened(task)
        if task.status is Status.CANCELLED:
            task.conversation.closed_by_person = task.conversation.reopen_approved = True
    elif fact.kind == "see_branch":
        commands.branch_was_seen(evaluation, task, fact.commit)
    elif fact.kind == "push":
        _pushed(evaluation, task, fact)


def _pushed(evaluation: Evaluation, task: Task, fact: EffectDone) -> None:
    if fact.key.startswith(f"push/{branch_name(task.id, evaluation.sprint.id)}/"):
        task.change.own_commit = fact.commit
    if (
        fact.key.startswith(f"push/{task.change.branch}/")
        and task.change.pushed != task.change.head
    ):
        task.change.pushed = fact.commit


def _effect_failed(evaluation: Evaluation, fact: EffectFailed) -> None:
    """A stale answer means look again; anything else that the forge refuses needs a person."""
    task = evaluation.state.tasks.get(fact.task)
    if task is None:
        return
    if fact.kind == "see_branch":
        commands.branch_was_seen(evaluation, task, "")
    if task.merge.unverified:
        post_merge_check.failed(evaluation, task, fact)
        return
    if fact.refusal == "elsewhere" and task.status not in SETTLED:
        # What is to become of it now, nobody but a person can know.
        held = task.work
        evaluation.stop_work(task, fact.message)
        evaluation.escalate(task, fact.message, held=held)
    elif not _still_wanted(evaluation, task, fact.key):
        _forget_merge(task, fact)
    elif (fact.refusal == "gone" and _branch_gone(evaluation, task)) or (
        fact.kind == "merge" and merge_failed(evaluation, task, fact)
    ):
        return
    elif fact.kind == "push" and fact.refusal == "stale_head":
        # A person moved the branch while our agent worked: theirs is the change now.
        pull = pull_of(evaluation.state, task)
        task.change.adopt(pull.head if pull else "")
    elif task.status is Status.ESCALATED:
        task.escalation.retry_effects = tuple(sorted({*task.escalation.retry_effects, fact.key}))
    elif fact.kind == "open_pull" and not task.change.head:
        # Its branch went away under it: there is nothing that a second try could open.
        again = evaluation.new_work(task, "implement")
        evaluation.escalate(task, f"the forge refused: {fact.message}", held=again)
    else:
        evaluation.stop_work(task, "the forge refused")
        said = fact.message if fact.refusal == "waiting" else f"the forge refused: {fact.message}"
        evaluation.escalate(task, said, held=None, effects=(fact.key,))


def _forget_merge(task: Task, fact: EffectFailed) -> None:
    """A person ended the pull request before our merge came: that is what counts."""
    if task.merge.merging and fact.key.startswith(f"merge/{task.links.pull}/{task.merge.merging}/"):
        task.merge.merging = ""


def _branch_gone(evaluation: Evaluation, task: Task) -> bool:
    """A person deleted the branch; whether that decides what follows.

    It counts as closing its pull request, which most forges do by themselves a moment later.
    Without a pull request the change is pushed to a new branch at once.
    """
    if task.status is Status.ESCALATED or not task.change.head:
        return False
    pull = pull_of(evaluation.state, task)
    task.merge.merging = ""
    if pull is None or pull.state != "open":
        publish(evaluation, task, task.change.head, again=True)
        return True
    key = f"close_pull/{evaluation.sprint.id}/{task.id}/{pull.number}-gone"
    evaluation.do(ClosePull(key=key, task=task.id, pull=pull.number))
    branch = task.change.branch
    pull_closed(evaluation, task, pull, f"the branch {branch} was deleted by a person")
    # Until it shows as closed, it is not one that was opened again.
    task.conversation.closing_pulls = (*task.conversation.closing_pulls, pull.number)
    return True


def _still_wanted(evaluation: Evaluation, task: Task, key: str) -> bool:
    """Whether the task cannot go on without this effect."""
    sprint, pull, head = evaluation.sprint.id, task.links.pull, task.change.head
    if task.status in (Status.DONE, Status.CANCELLED):
        return False
    if key == forge_texts.issue_key(sprint, task.id):
        return task.links.issue is None
    if key == forge_texts.pull_key(sprint, task.id, task.links.generation):
        started = task.status in (Status.IN_PROGRESS, Status.ESCALATED)
        return started and pull is None and task.work is None
    if key.startswith(f"push/{task.change.branch}/"):
        return key.endswith(f"/{head}") and task.change.pushed != head
    seen = pull_of(evaluation.state, task)
    if seen is not None and seen.state != "open":
        # A person ended the pull request: what follows from that is decided there.
        return False
    if key.startswith(f"merge/{pull}/{head}/"):
        return task.merge.merging == head
    in_review = task.status in (Status.IN_REVIEW, Status.ESCALATED)
    return in_review and key.startswith(f"review/{pull}/{head}/")


def _end_or_go_on(evaluation: Evaluation) -> None:
    """A sprint ends when no task can move without a person and nothing is left to tell."""
    phase = evaluation.sprint.phase
    settled = all(needs_person(evaluation, t) for t in evaluation.state.tasks.values())
    left = [action for action in evaluation.actions if not retro_phase.is_cancelled(action)]
    if settled and not left and not evaluation.state.open_effects:
        if phase != "ended":
            retro_phase.begin_or_end(evaluation)
    elif phase in ("retro", "ended") and not settled:
        retro_phase.go_back(evaluation)
    elif phase == "ended":
        # Somebody said something after the end: what follows from it is done before it ends again.
        enter(evaluation.sprint, "running")
