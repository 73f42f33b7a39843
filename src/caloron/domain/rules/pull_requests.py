"""Rules for issues and pull requests: merged, closed, pushed to, approved, changes requested.

People act on the forge, and the later act wins.
"""

from __future__ import annotations

from caloron.domain.model.snapshots import IssueSnapshot, PullSnapshot, ReviewSnapshot
from caloron.domain.model.sprint import branch_name, is_ours
from caloron.domain.model.status import Status, Step
from caloron.domain.model.task import Task, Work
from caloron.domain.reporting import forge_texts
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.people.labelled_issues import apply_issue_edit, may_return
from caloron.domain.rules.results import open_pull
from caloron.domain.rules.verdicts import details_of, last_word, reason_of, send_back_or_escalate

_MAX_CLOSURES = 2


def bind(evaluation: Evaluation) -> None:
    """Tie issues and pull requests to their tasks: by marker, never by position."""
    sprint = evaluation.sprint.id
    for task in evaluation.state.tasks.values():
        links, escalation = task.links, task.escalation
        if links.issue is None:
            issue = evaluation.marked(IssueSnapshot, forge_texts.issue_key(sprint, task.id))
            links.issue = issue.number if issue else None
        if escalation.issue is None:
            key = forge_texts.escalation_key(sprint, task.id, escalation.number)
            if issue := evaluation.marked(IssueSnapshot, key):
                escalation.issue = issue.number
                if task.status is not Status.ESCALATED:
                    evaluation.close_escalation(task)
        if links.pull is None:
            key = forge_texts.pull_key(sprint, task.id, links.generation)
            pull = evaluation.marked(PullSnapshot, key)
            links.pull = pull.number if pull else None
        _forget_closed(evaluation, task)
    _bind_reopened(evaluation)
    _bind_by_closing(evaluation)


def _forget_closed(evaluation: Evaluation, task: Task) -> None:
    """Forget pull requests that were closed as we asked: only a person opens them again."""
    closing = task.conversation.closing_pulls
    task.conversation.closing_pulls = tuple(
        number
        for number in closing
        if number == task.links.pull
        or not (pull := evaluation.state.pull(number))
        or pull.state == "open"
    )


def _bind_reopened(evaluation: Evaluation) -> None:
    """If a person reopened an earlier pull request, use it instead of a new one."""
    by_branch: dict[str, PullSnapshot] = {}
    for pull in evaluation.state.pulls():
        if pull.state == "open" and is_ours(evaluation.sprint, pull):
            by_branch.setdefault(pull.branch, pull)
    for task in evaluation.state.tasks.values():
        reopened = by_branch.get(branch_name(task.id, evaluation.sprint.id))
        if reopened is None or reopened.number in task.conversation.closing_pulls:
            continue
        if task.links.pull is not None or task.status in (Status.DONE, Status.CANCELLED):
            continue
        if task.work or task.status is Status.ESCALATED:
            task.change.adopt(reopened.head)
        _replace_change(evaluation, task, f"pull request #{reopened.number} was opened again")
        task.links.pull, task.change.branch = reopened.number, reopened.branch


def _replace_change(evaluation: Evaluation, task: Task, reason: str) -> None:
    """Stop the agent, because a person's change replaces its work."""
    evaluation.stop_work(task, reason)
    task.change.is_empty = False
    if task.status is Status.ESCALATED and not task.escalation.retry_effects:
        task.escalation.resume_work = None


def _bind_by_closing(evaluation: Evaluation) -> None:
    """Bind a person's own pull request that closes the issue of a task."""
    tasks = evaluation.state.tasks.values()
    by_issue = {task.links.issue: task for task in tasks if task.links.issue is not None}
    for pull in evaluation.state.pulls():
        if is_ours(evaluation.sprint, pull) or not pull.trusted or pull.state == "closed":
            continue
        for task in [by_issue[number] for number in pull.closes if number in by_issue]:
            if pull.number in task.conversation.closing_pulls:
                continue
            # A task that is being published opens its own pull request.
            publishing = task.status is Status.IN_PROGRESS and task.work is None
            if task.links.pull is None and not publishing and task.status is not Status.DONE:
                _bind_persons_pull(evaluation, task, pull)


def _bind_persons_pull(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> None:
    task.escalation.retry_effects = ()
    _replace_change(evaluation, task, f"{pull.author} opened pull request #{pull.number}")
    task.links.pull, task.change.branch = pull.number, pull.branch
    task.change.adopt(pull.head)
    # Earlier comments there were not about this task.
    conversation = task.conversation
    conversation.handle(*(comment.object for comment in evaluation.comments_on(pull.number)))
    conversation.since_version = max(conversation.since_version, pull.version)


# Conditions and actions of the table in `workflow`. A condition returns what the action needs.


def observe(evaluation: Evaluation, task: Task, _matched: bool) -> None:
    """Record reviews of people, the first snapshot of a new head, and edits of the issue's text."""
    if pull := evaluation.state.pull_of(task):
        for review in evaluation.reviews_of(pull.number):
            remark = review.verdict == "commented"
            if review.trusted and not remark and not is_ours(evaluation.sprint, review):
                evaluation.record_act(task, review.object)
        if pull.head != task.review.seen_head:
            task.review.seen_head, task.review.seen_at = pull.head, evaluation.now
            task.review.seen_version = pull.version
    apply_issue_edit(evaluation, task)


def _pull(evaluation: Evaluation, task: Task, state: str) -> PullSnapshot | None:
    pull = evaluation.state.pull_of(task)
    return pull if pull and pull.state == state else None


def _issue(evaluation: Evaluation, task: Task, state: str) -> IssueSnapshot | None:
    """Return the issue, unless the pull request was merged: then the issue decides nothing."""
    issue = evaluation.state.issue(task.links.issue)
    relevant = issue and issue.state == state and not _pull(evaluation, task, "merged")
    return issue if relevant else None


def pull_merged(evaluation: Evaluation, task: Task) -> PullSnapshot | None:
    """The pull request was merged. Our own merge reports what it put on main."""
    pull = _pull(evaluation, task, "merged")
    by_us = pull and (task.merge.unverified or task.merge.merging == pull.head)
    return None if by_us else pull


def complete(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> None:
    """Complete the task."""
    by_us = pull.ended_by in ("", evaluation.sprint.settings.author)
    who = "" if by_us else f" by {pull.ended_by}"
    if who:
        evaluation.record_act(task, f"merge:{pull.number}")
    text = f"Completed via PR #{pull.number}"
    evaluation.complete(task, f"merged{who} as pull request #{pull.number}", text)


def issue_closed(evaluation: Evaluation, task: Task) -> IssueSnapshot | None:
    """The issue was closed. Our merge closes it as well, so a merge that runs decides first."""
    return None if task.merge.merging else _issue(evaluation, task, "closed")


def cancel(evaluation: Evaluation, task: Task, issue: IssueSnapshot) -> None:
    """Stop the work and cancel the task."""
    evaluation.record_act(task, f"close:{issue.version}")
    reason = f"issue #{issue.number} was closed by {issue.closed_by or 'a person'}"
    evaluation.cancel(task, reason, closed_by_person=True)


def remember_closed_issue(_evaluation: Evaluation, task: Task, _issue: IssueSnapshot) -> None:
    """Wait for the issue to be opened again."""
    task.conversation.closed_by_person, task.conversation.reopen_approved = True, False


def issue_reopened(evaluation: Evaluation, task: Task) -> IssueSnapshot | None:
    """The issue of a cancelled task was opened again."""
    closed = task.conversation.closed_by_person
    return _issue(evaluation, task, "open") if closed else None


def restore(evaluation: Evaluation, task: Task, issue: IssueSnapshot) -> None:
    """Restore the task, if a trusted person asked for it."""
    if not may_return(evaluation, task, issue):
        return
    conversation = task.conversation
    conversation.closed_by_person = conversation.reopen_approved = False
    conversation.cancelled_by = task.review.posted_for = ""
    task.attempts.reset()
    # A commit that was not pushed is dropped: the task continues with the commits on its branch.
    task.change.head, task.change.is_empty = task.change.pushed, False
    evaluation.record_act(task, f"reopen:{issue.version}")
    evaluation.move(task, Step.WAITING, f"issue #{issue.number} was opened again")


def cancelled_with_open_pull(evaluation: Evaluation, task: Task) -> list[PullSnapshot]:
    """The task was cancelled by a command, and its own pull request is open."""
    own, conversation = branch_name(task.id, evaluation.sprint.id), task.conversation
    if not conversation.cancelled_by or _pull(evaluation, task, "merged"):
        return []
    return [
        pull
        for pull in evaluation.state.pulls()
        if (pull.branch, pull.state) == (own, "open")
        and pull.number not in conversation.closing_pulls
    ]


def close_pulls(evaluation: Evaluation, task: Task, pulls: list[PullSnapshot]) -> None:
    """Close the pull request, once."""
    conversation = task.conversation
    for pull in pulls:
        conversation.closing_pulls = (*conversation.closing_pulls, pull.number)
        evaluation.close_pull(task, pull.number, str(conversation.pulls_closed_by_us))


def pull_was_closed(evaluation: Evaluation, task: Task) -> PullSnapshot | None:
    """The pull request was closed without merging, or given another base."""
    return _pull(evaluation, task, "closed")


def rework(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> None:
    """Fix the change in a new pull request; the second time, escalate."""
    main = evaluation.sprint.settings.main_branch
    if pull.base in ("", main):
        who = pull.ended_by or "a person"
        reason = f"pull request #{pull.number} was closed by {who} without merging"
    else:
        reason = f"pull request #{pull.number} is for {pull.base} now, not for {main}"
    pull_closed(evaluation, task, pull, reason)


def pull_closed(evaluation: Evaluation, task: Task, pull: PullSnapshot, reason: str) -> None:
    """Rework a change whose pull request was closed; the second time, escalate."""
    task.links.pull, task.merge.merging = None, ""
    if pull.branch == branch_name(task.id, evaluation.sprint.id):
        task.links.generation += 1
    _return_to_own_branch(evaluation, task)
    if pull.number in task.conversation.closing_pulls:
        _continue_after_return(evaluation, task, pull)
        return
    evaluation.record_act(task, f"close_pull:{pull.number}")
    if task.status not in (Status.IN_PROGRESS, Status.IN_REVIEW, Status.ESCALATED):
        task.change.head = ""
        return
    evaluation.stop_work(task, reason)
    fix = evaluation.new_work(task, "fix", head=task.change.head, reason=reason)
    if task.status is Status.ESCALATED:
        work = task.escalation.resume_work
        if work is None or work.role in ("review", "verify"):
            task.escalation.resume(fix, Step.FIXING)
        evaluation.note(task, f"{task.reason}; then {reason}")
    elif task.links.generation - task.conversation.pulls_closed_by_us > _MAX_CLOSURES:
        again = f"{reason}, for the second time"
        evaluation.escalate(task, again, fix, resume_as=Step.FIXING)
    else:
        evaluation.move(task, Step.FIXING, reason)
        evaluation.start(task, fix)


def _continue_after_return(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> None:
    """Open a new pull request for a task that returned after we had closed its pull request."""
    conversation, change = task.conversation, task.change
    conversation.closing_pulls = tuple(n for n in conversation.closing_pulls if n != pull.number)
    conversation.pulls_closed_by_us += 1
    if task.status in (Status.IN_PROGRESS, Status.IN_REVIEW) and change.pushed:
        evaluation.stop_work(task, f"pull request #{pull.number} was closed with the task")
        change.head = change.pushed
        evaluation.move(task, Step.PUBLISHING, "goes on with what its branch has")
        open_pull(evaluation, task)


def _return_to_own_branch(evaluation: Evaluation, task: Task) -> None:
    """Leave a person's branch: the work after its closed pull request goes to our own branch."""
    own = branch_name(task.id, evaluation.sprint.id)
    if task.change.branch != own:
        pulls = [pull for pull in evaluation.state.pulls() if pull.branch == own]
        pushed = pulls[-1].head if pulls else task.change.own_commit
        task.change.branch, task.change.pushed = own, pushed


def branch_pushed(evaluation: Evaluation, task: Task) -> PullSnapshot | None:
    """A person pushed to the branch, and did not take the task over."""
    pull, change = _pull(evaluation, task, "open"), task.change
    pushed = pull and pull.head not in (change.head, change.pushed)
    return pull if pushed and not task.escalation.taken_over_by else None


def resume_with_push(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> None:
    """Release the task; the commit is the change now."""
    task.change.adopt(pull.head)
    evaluation.record_act(task, f"push:{pull.head[:12]}")
    _release(evaluation, task, None, f"a push to {pull.branch}")


def _new_verdict(evaluation: Evaluation, task: Task, verdict: str) -> ReviewSnapshot | None:
    """Return a person's verdict on the current head that came after the escalation."""
    pull = _pull(evaluation, task, "open")
    if pull is None or pull.head != task.change.head:
        return None
    review = last_word(evaluation, task, pull)
    if review is None or review.object in task.conversation.handled:
        return None
    by_person = review.verdict == verdict and not is_ours(evaluation.sprint, review)
    return review if by_person else None


def approved_meanwhile(evaluation: Evaluation, task: Task) -> ReviewSnapshot | None:
    """A person approved the head after the escalation."""
    return _new_verdict(evaluation, task, "approved")


def resume_in_review(evaluation: Evaluation, task: Task, review: ReviewSnapshot) -> None:
    """Release the task; the head is merged once it is verified."""
    _release(evaluation, task, None, review.author)


def changes_requested_meanwhile(evaluation: Evaluation, task: Task) -> ReviewSnapshot | None:
    """A person requested changes after the escalation, and did not take the task over."""
    taken_over = task.escalation.taken_over_by
    return None if taken_over else _new_verdict(evaluation, task, "changes_requested")


def resume_with_fix(evaluation: Evaluation, task: Task, review: ReviewSnapshot) -> None:
    """Release the task; an agent fixes the change."""
    fix = evaluation.new_work(task, "fix", head=review.head, reason=details_of(review))
    _release(evaluation, task, fix, f"{review.author}, who asked for changes")


def _release(evaluation: Evaluation, task: Task, fix: Work | None, who: str) -> None:
    task.escalation.resume(fix, Step.FIXING if fix else Step.REVIEW_QUEUED)
    evaluation.release(task, who)


def head_replaced(evaluation: Evaluation, task: Task) -> PullSnapshot | None:
    """A person pushed another commit to the branch of the open pull request."""
    pull, change = _pull(evaluation, task, "open"), task.change
    return pull if pull and change.pushed == change.head != pull.head else None


def adopt_head(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> None:
    """Stop the work; the commit is the change now, and it is verified and reviewed."""
    evaluation.record_act(task, f"push:{pull.head[:12]}")
    evaluation.stop_work(task, "the branch has a newer commit")
    task.change.adopt(pull.head)
    task.merge.merging = ""


def _pull_with_head(evaluation: Evaluation, task: Task) -> PullSnapshot | None:
    """Return the open pull request, if it shows the head of the task."""
    pull, change = _pull(evaluation, task, "open"), task.change
    return pull if pull and pull.head == change.head == change.pushed else None


def _verdict(evaluation: Evaluation, task: Task, verdict: str) -> ReviewSnapshot | None:
    pull = _pull_with_head(evaluation, task)
    review = last_word(evaluation, task, pull) if pull else None
    return review if review and review.verdict == verdict else None


def approved_by_person(evaluation: Evaluation, task: Task) -> ReviewSnapshot | None:
    """A person approved the head. That answers a review, and a fix that a review asked for."""
    review, work = _verdict(evaluation, task, "approved"), task.work
    answered = work is not None and (work.role == "review" or not work.onto_main)
    return review if answered and review and not is_ours(evaluation.sprint, review) else None


def stop_answered_work(evaluation: Evaluation, task: Task, review: ReviewSnapshot) -> None:
    """Stop the agent."""
    evaluation.stop_work(task, f"{review.author} approved the pull request")


def change_made_by_person(evaluation: Evaluation, task: Task) -> PullSnapshot | None:
    """A person opened a pull request for the task."""
    pull = _pull_with_head(evaluation, task)
    return pull if pull and not is_ours(evaluation.sprint, pull) else None


def stop_implementing(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> None:
    """Stop the agent; the person's change is the change."""
    evaluation.stop_work(task, f"{pull.author} opened pull request #{pull.number}")


def more_changes_requested(evaluation: Evaluation, task: Task) -> ReviewSnapshot | None:
    """A person requested changes that the agent at work does not know yet."""
    review, work = _verdict(evaluation, task, "changes_requested"), task.work
    if review is None or work is None or is_ours(evaluation.sprint, review):
        return None
    return None if details_of(review) in work.reason else review


def restart_fix(evaluation: Evaluation, task: Task, review: ReviewSnapshot) -> None:
    """Start the fix again, with the new request first."""
    work = task.work
    if work is None:
        return
    reason = f"{review.author} asked for changes"
    evaluation.stop_work(task, reason)
    requests = (details_of(review), work.reason if work.role == "fix" else "")
    evaluation.move(task, Step.FIXING, reason_of(review))
    request = "\n\n".join(filter(None, requests))
    evaluation.start_again(task, work, reason, role="fix", reason=request)


def pull_shows_head(evaluation: Evaluation, task: Task) -> PullSnapshot | None:
    """The pull request is open and shows the pushed head."""
    return None if task.work else _pull_with_head(evaluation, task)


def enter_review(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> None:
    """Let the change be verified and reviewed."""
    evaluation.move(task, Step.REVIEW_QUEUED, f"pull request #{pull.number} is open")


def changes_requested(evaluation: Evaluation, task: Task) -> ReviewSnapshot | None:
    """The last verdict on the head requests changes."""
    return _verdict(evaluation, task, "changes_requested")


def send_back(evaluation: Evaluation, task: Task, review: ReviewSnapshot) -> None:
    """Start a fix round; after the last allowed round, escalate."""
    evaluation.stop_work(task, "changes were requested")
    task.merge.merging = ""
    send_back_or_escalate(evaluation, task, review.head, reason_of(review), details_of(review))
