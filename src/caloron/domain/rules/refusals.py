"""Rules for an effect that the forge refused: retry it, follow a person's act, or escalate.

A deleted branch is one of these refusals.
"""

from __future__ import annotations

from caloron.domain.model.facts import EffectFailed
from caloron.domain.model.status import SETTLED, Status
from caloron.domain.model.task import Task
from caloron.domain.reporting import forge_texts
from caloron.domain.rules import merge_queue, post_merge_check
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.people import commands
from caloron.domain.rules.pull_requests import pull_closed
from caloron.domain.rules.results import publish


def effect_failed(evaluation: Evaluation, fact: EffectFailed) -> None:
    """Follow a person's act, try again, send the change back, or escalate."""
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
        # No head is left (the branch was deleted), so a retry could not open it either.
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
