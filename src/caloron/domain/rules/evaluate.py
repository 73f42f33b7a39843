"""The decision of a tick: from the state and the new facts to the next state and the actions.

Pure: the same state, facts and time give the same result, in whatever order and how often the
facts are delivered.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from caloron.domain.model.sprint import State, branch_name, enter
from caloron.domain.model.status import SETTLED, Status
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
from caloron.domain.rules.pull_requests import bind, pull_closed
from caloron.domain.rules.results import publish, work_ended
from caloron.domain.rules.scheduling import needs_person


def evaluate(state: State, facts: Sequence[Fact], now: float) -> Decision:
    """Take in the facts and decide everything that can be decided now."""

    def rules(evaluation: Evaluation) -> None:
        evaluation.apply("", _take_in, facts)
        if evaluation.sprint.discard.by:
            from caloron.domain.rules import discard

            evaluation.apply("", progress_page.report)
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
    ended = [f for f in facts if isinstance(f, WorkEnded)]
    interrupted = [f for f in facts if isinstance(f, RunInterrupted)]
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
        evaluation.apply(end.task, _work_ended, end)
    for interruption in sorted(interrupted, key=lambda f: (f.item, f.token)):
        evaluation.apply(interruption.task, _run_interrupted, interruption)
    for refusal in sorted(failed, key=lambda f: f.id):
        evaluation.apply(refusal.task, _effect_failed, refusal)
    for fact in facts:
        if isinstance(fact, Halt):
            _halted(evaluation, fact)
    for fact in facts:
        if isinstance(fact, SprintDiscarded):
            from caloron.domain.rules import discard

            evaluation.apply("", discard.discard, fact)


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
    """Replace a plan that waits for approval with the last edit, then run an approved plan."""
    if evaluation.sprint.phase != "approval":
        return
    if edits := [f for f in facts if isinstance(f, PlanEdited)]:
        planning.replace_plan(evaluation, max(edits, key=lambda f: f.at).tasks)
    if any(isinstance(f, PlanApproved) for f in facts):
        planning.run_plan(evaluation)


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


def _effect_failed(evaluation: Evaluation, fact: EffectFailed) -> None:
    """Retry after a stale answer; any other refusal of the forge needs a person."""
    task = evaluation.state.tasks.get(fact.task)
    if task is None:
        return
    if fact.kind == "see_branch":
        commands.handed_back(evaluation, task, "")
    if task.merge.unverified:
        post_merge_check.failed(evaluation, task, fact)
    elif fact.refusal == "elsewhere" and task.status not in SETTLED:
        # Only a person knows what is to become of a change that was merged into another branch.
        work = task.work
        evaluation.stop_work(task, fact.message)
        evaluation.escalate(task, fact.message, work)
    elif not _is_wanted(evaluation, task, fact.key):
        merge = f"merge/{task.links.pull}/{task.merge.merging}/"
        if task.merge.merging and fact.key.startswith(merge):
            # A person closed or merged the pull request first.
            task.merge.merging = ""
    elif not (
        (fact.refusal == "gone" and _branch_gone(evaluation, task))
        or (fact.kind == "merge" and merge_queue.merge_failed(evaluation, task, fact))
    ):
        _refused(evaluation, task, fact)


def _refused(evaluation: Evaluation, task: Task, fact: EffectFailed) -> None:
    if fact.kind == "push" and fact.refusal == "stale_head":
        # A person moved the branch while our agent worked: that commit is the change now.
        pull = evaluation.state.pull_of(task)
        task.change.adopt(pull.head if pull else "")
    elif task.status is Status.ESCALATED:
        task.escalation.retry_effects = tuple(sorted({*task.escalation.retry_effects, fact.key}))
    elif fact.kind == "open_pull" and not task.change.head:
        # Its branch was deleted, so a retry could not open it either.
        again = evaluation.new_work(task, "implement")
        evaluation.escalate(task, f"the forge refused: {fact.message}", again)
    else:
        evaluation.stop_work(task, "the forge refused")
        waits = fact.refusal == "waiting"
        reason = fact.message if waits else f"the forge refused: {fact.message}"
        evaluation.escalate(task, reason, retry=(fact.key,))


def _branch_gone(evaluation: Evaluation, task: Task) -> bool:
    """Handle a branch that a person deleted; False if a person has to decide.

    It counts as closing its pull request, which most forges do by themselves a moment later.
    Without a pull request the change is pushed to a new branch at once.
    """
    if task.status is Status.ESCALATED or not task.change.head:
        return False
    pull = evaluation.state.pull_of(task)
    task.merge.merging = ""
    if pull is None or pull.state != "open":
        publish(evaluation, task, task.change.head, again=True)
        return True
    evaluation.close_pull(task, pull.number, "gone")
    reason = f"the branch {task.change.branch} was deleted by a person"
    pull_closed(evaluation, task, pull, reason)
    # Until a snapshot shows it closed, it must not count as opened again.
    task.conversation.closing_pulls = (*task.conversation.closing_pulls, pull.number)
    return True


def _is_wanted(evaluation: Evaluation, task: Task, key: str) -> bool:
    """True if the task cannot go on without this effect."""
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
    seen = evaluation.state.pull_of(task)
    if seen is not None and seen.state != "open":
        # A person closed or merged the pull request, which decides what follows.
        return False
    if key.startswith(f"merge/{pull}/{head}/"):
        return task.merge.merging == head
    in_review = task.status in (Status.IN_REVIEW, Status.ESCALATED)
    return in_review and key.startswith(f"review/{pull}/{head}/")


def _end_or_go_on(evaluation: Evaluation) -> None:
    """End a sprint when no task can move without a person and no effect is left."""
    phase = evaluation.sprint.phase
    settled = all(needs_person(evaluation, t) for t in evaluation.state.tasks.values())
    left = [action for action in evaluation.actions if not retro_phase.is_cancelled(action)]
    if settled and not left and not evaluation.state.open_effects:
        if phase != "ended":
            retro_phase.begin_or_end(evaluation)
    elif phase in ("retro", "ended") and not settled:
        retro_phase.go_back(evaluation)
    elif phase == "ended":
        # A person commented after the end: the sprint ends again after the answer.
        enter(evaluation.sprint, "running")
