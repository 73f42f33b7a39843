"""What the forge shows, and what follows from it: people act there, and the later act wins."""

from __future__ import annotations

import msgspec

from caloron.domain.model.effects import ClosePull
from caloron.domain.model.snapshots import IssueSnapshot, PullSnapshot, ReviewSnapshot
from caloron.domain.model.sprint import branch_name, is_ours, pull_of
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task, Work
from caloron.domain.reporting import forge_texts
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.people.labelled_issues import may_return, take_in_edit
from caloron.domain.rules.results import open_pull
from caloron.domain.rules.verdicts import by_person, details_of, last_word, reason_of
from caloron.domain.rules.verification import reject

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
            pull = evaluation.marked(
                PullSnapshot, forge_texts.pull_key(sprint, task.id, links.generation)
            )
            links.pull = pull.number if pull else None
    _forget_closed(evaluation)
    _bind_opened_again(evaluation)
    _bind_by_closing(evaluation)


def _forget_closed(evaluation: Evaluation) -> None:
    """What was being closed is closed now: if it is opened again, a person did that."""
    for task in evaluation.state.tasks.values():
        task.conversation.closing_pulls = tuple(
            n
            for n in task.conversation.closing_pulls
            if n == task.links.pull or not _has_ended(evaluation, n)
        )


def _has_ended(evaluation: Evaluation, number: int) -> bool:
    seen = evaluation.state.objects.get(f"pull:{number}")
    return isinstance(seen, PullSnapshot) and seen.state != "open"


def _bind_opened_again(evaluation: Evaluation) -> None:
    """An earlier pull request that a person opened again counts, not the one that was to follow."""
    pulls = [
        seen
        for seen in evaluation.state.objects.values()
        if isinstance(seen, PullSnapshot)
        and seen.state == "open"
        and is_ours(evaluation.sprint, seen)
    ]
    pulls.sort(key=lambda pull: -pull.number)
    by_branch = {pull.branch: pull for pull in pulls}
    for task in evaluation.state.tasks.values():
        pull = by_branch.get(branch_name(task.id, evaluation.sprint.id))
        if (
            pull is None
            or task.links.pull is not None
            or pull.number in task.conversation.closing_pulls
        ):
            continue
        if task.status in (Status.DONE, Status.CANCELLED):
            continue
        if task.work or task.status is Status.ESCALATED:
            task.change.adopt(pull.head)
        _make_theirs(evaluation, task, f"pull request #{pull.number} was opened again")
        task.links.pull, task.change.branch = pull.number, pull.branch


def _make_theirs(evaluation: Evaluation, task: Task, reason: str) -> None:
    """A person put a change in the place of what agents were to do."""
    evaluation.stop_work(task, reason)
    task.change.is_empty = False
    if task.status is Status.ESCALATED and not task.escalation.retry_effects:
        task.escalation.resume_work = None


def _bind_by_closing(evaluation: Evaluation) -> None:
    """A person's own pull request that closes the task's issue counts for the task."""
    issues = {
        t.links.issue: t for t in evaluation.state.tasks.values() if t.links.issue is not None
    }
    pulls = [o for o in evaluation.state.objects.values() if isinstance(o, PullSnapshot)]
    for pull in sorted(pulls, key=lambda p: p.number):
        if is_ours(evaluation.sprint, pull) or not pull.trusted or pull.state == "closed":
            continue
        for number in pull.closes:
            task = issues.get(number)
            if task is None or pull.number in task.conversation.closing_pulls:
                continue
            if task.links.pull is None and not _is_settling(task):
                task.escalation.retry_effects = ()
                _make_theirs(evaluation, task, f"{pull.author} opened pull request #{pull.number}")
                task.links.pull, task.change.branch = pull.number, pull.branch
                task.change.adopt(pull.head)
                # What was said there before was not said about this task.
                earlier = {comment.object for comment in evaluation.comments_on(pull.number)}
                task.conversation.handle(*earlier)
                task.conversation.since_version = max(task.conversation.since_version, pull.version)


def _is_settling(task: Task) -> bool:
    """Done, or its own pull request is just being opened."""
    publishing = task.status is Status.IN_PROGRESS and task.work is None
    return publishing or task.status is Status.DONE


def observe(evaluation: Evaluation, task: Task) -> None:
    """Record reviews of people, the first snapshot of a new head, and edits of the issue's text."""
    if pull := pull_of(evaluation.state, task):
        _count_reviews(evaluation, task, pull)
        if pull.head != task.review.seen_head:
            task.review.seen_head, task.review.seen_at = pull.head, evaluation.now
            task.review.seen_version = pull.version
    take_in_edit(evaluation, task)


def _count_reviews(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> None:
    for review in evaluation.reviews_of(pull.number):
        if (
            review.trusted
            and review.verdict != "commented"
            and not is_ours(evaluation.sprint, review)
        ):
            evaluation.acted(task, review.object)


def _pull(evaluation: Evaluation, task: Task, state: str) -> PullSnapshot | None:
    pull = pull_of(evaluation.state, task)
    return pull if pull and pull.state == state else None


def _issue(evaluation: Evaluation, task: Task) -> IssueSnapshot | None:
    """The issue of a task, unless its pull request was merged: then nothing follows from it."""
    issue = evaluation.state.objects.get(f"issue:{task.links.issue}")
    merged = _pull(evaluation, task, "merged") is not None
    return issue if isinstance(issue, IssueSnapshot) and not merged else None


# Conditions and actions of the table in `workflow`.


def pull_merged(evaluation: Evaluation, task: Task) -> bool:
    """The pull request was merged. Our own merge says itself what it put on main."""
    pull = _pull(evaluation, task, "merged")
    return pull is not None and not task.merge.unverified and task.merge.merging != pull.head


def complete(evaluation: Evaluation, task: Task) -> None:
    """Complete the task."""
    if pull := _pull(evaluation, task, "merged"):
        who = (
            ""
            if pull.ended_by in ("", evaluation.sprint.settings.author)
            else f" by {pull.ended_by}"
        )
        if who:
            evaluation.acted(task, f"merge:{pull.number}")
        text = f"Completed via PR #{pull.number}"
        evaluation.complete(task, f"merged{who} as pull request #{pull.number}", text)


def issue_closed(evaluation: Evaluation, task: Task) -> bool:
    """The issue was closed. Our merge closes it as well, so a merge that runs decides first."""
    issue = _issue(evaluation, task)
    return issue is not None and issue.state == "closed" and not task.merge.merging


def cancel(evaluation: Evaluation, task: Task) -> None:
    """Stop the work and cancel the task."""
    if issue := _issue(evaluation, task):
        evaluation.acted(task, f"close:{issue.version}")
        reason = f"issue #{issue.number} was closed by {issue.closed_by or 'a person'}"
        evaluation.cancel(task, reason, closed_by_person=True)


def remember_closed_issue(_evaluation: Evaluation, task: Task) -> None:
    """Wait for the issue to be opened again."""
    task.conversation.closed_by_person, task.conversation.reopen_approved = True, False


def issue_reopened(evaluation: Evaluation, task: Task) -> bool:
    """The issue of a cancelled task was opened again."""
    issue = _issue(evaluation, task)
    return issue is not None and issue.state == "open" and task.conversation.closed_by_person


def restore(evaluation: Evaluation, task: Task) -> None:
    """Restore the task, if a trusted person asked for it."""
    issue, said = _issue(evaluation, task), task.conversation
    if issue is None or not may_return(evaluation, task, issue):
        return
    said.closed_by_person = said.reopen_approved = False
    said.cancelled_by = task.review.posted_for = ""
    task.attempts.reset()
    # What was not pushed was not to be: the task continues with what the branch has.
    task.change.head, task.change.is_empty = task.change.pushed, False
    evaluation.acted(task, f"reopen:{issue.version}")
    evaluation.move(task, Status.PENDING, f"issue #{issue.number} was opened again")


def cancelled_with_open_pull(evaluation: Evaluation, task: Task) -> bool:
    """The task was cancelled by a command, and its own pull request is open."""
    return bool(_pulls_to_close(evaluation, task))


def close_pulls(evaluation: Evaluation, task: Task) -> None:
    """Close the pull request, once."""
    said = task.conversation
    for seen in _pulls_to_close(evaluation, task):
        said.closing_pulls = (*said.closing_pulls, seen.number)
        key = f"close_pull/{evaluation.sprint.id}/{task.id}/{seen.number}-{said.pulls_closed_by_us}"
        evaluation.do(ClosePull(key=key, task=task.id, pull=seen.number))


def _pulls_to_close(evaluation: Evaluation, task: Task) -> list[PullSnapshot]:
    own, said = branch_name(task.id, evaluation.sprint.id), task.conversation
    if not said.cancelled_by or _pull(evaluation, task, "merged"):
        return []
    return [
        seen
        for seen in evaluation.state.objects.values()
        if isinstance(seen, PullSnapshot)
        and (seen.branch, seen.state) == (own, "open")
        and seen.number not in said.closing_pulls
    ]


def pull_was_closed(evaluation: Evaluation, task: Task) -> bool:
    """The pull request was closed without merging, or given another base."""
    return _pull(evaluation, task, "closed") is not None


def rework(evaluation: Evaluation, task: Task) -> None:
    """Fix the change in a new pull request; the second time, escalate."""
    if pull := _pull(evaluation, task, "closed"):
        pull_closed(evaluation, task, pull, _why_closed(evaluation, pull))


def pull_closed(evaluation: Evaluation, task: Task, pull: PullSnapshot, reason: str) -> None:
    """Closed without merging: rework in a new pull request; the second time, a person decides."""
    task.links.pull, task.merge.merging = None, ""
    if pull.branch == branch_name(task.id, evaluation.sprint.id):
        task.links.generation += 1
    _back_to_own_branch(evaluation, task)
    if pull.number in task.conversation.closing_pulls:
        _go_on_after_return(evaluation, task, pull)
        return
    evaluation.acted(task, f"close_pull:{pull.number}")
    if task.status not in (Status.IN_PROGRESS, Status.IN_REVIEW, Status.ESCALATED):
        task.change.head = ""
        return
    evaluation.stop_work(task, reason)
    fix = evaluation.new_work(task, "fix", head=task.change.head, reason=reason)
    if task.status is Status.ESCALATED:
        if task.escalation.resume_work is None or task.escalation.resume_work.role in (
            "review",
            "verify",
        ):
            (
                task.escalation.resume_work,
                task.escalation.retry_effects,
                task.escalation.resume_as,
            ) = fix, (), Status.IN_PROGRESS
        evaluation.note(task, f"{task.reason}; then {reason}")
        return
    if task.links.generation - task.conversation.pulls_closed_by_us > _MAX_CLOSURES:
        evaluation.escalate(task, f"{reason}, for the second time", held=fix)
        task.escalation.resume_as = Status.IN_PROGRESS
    else:
        evaluation.move(task, Status.IN_PROGRESS, reason)
        evaluation.start(task, fix)


def _why_closed(evaluation: Evaluation, pull: PullSnapshot) -> str:
    main = evaluation.sprint.settings.main_branch
    if pull.base not in ("", main):
        return f"pull request #{pull.number} is for {pull.base} now, not for {main}"
    who = pull.ended_by or "a person"
    return f"pull request #{pull.number} was closed by {who} without merging"


def _go_on_after_return(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> None:
    """We closed it, because the task was cancelled; what it had is still the change."""
    task.conversation.closing_pulls = tuple(
        number for number in task.conversation.closing_pulls if number != pull.number
    )
    task.conversation.pulls_closed_by_us += 1
    if task.status in (Status.IN_PROGRESS, Status.IN_REVIEW) and task.change.pushed:
        evaluation.stop_work(task, f"pull request #{pull.number} was closed with the task")
        task.change.head = task.change.pushed
        evaluation.move(task, Status.IN_PROGRESS, "goes on with what its branch has")
        open_pull(evaluation, task)


def _back_to_own_branch(evaluation: Evaluation, task: Task) -> None:
    """A person's branch is theirs: what follows their closed pull request goes to ours."""
    own = branch_name(task.id, evaluation.sprint.id)
    if task.change.branch == own:
        return
    pulls = [
        seen
        for seen in evaluation.state.objects.values()
        if isinstance(seen, PullSnapshot) and seen.branch == own
    ]
    last = max(pulls, key=lambda p: p.number, default=None)
    task.change.branch, task.change.pushed = own, last.head if last else task.change.own_commit


def branch_pushed(evaluation: Evaluation, task: Task) -> bool:
    """A person pushed to the branch, and did not take the task over."""
    pull, change = _pull(evaluation, task, "open"), task.change
    taken_over = bool(task.escalation.taken_over_by)
    return pull is not None and not taken_over and pull.head not in (change.head, change.pushed)


def resume_with_push(evaluation: Evaluation, task: Task) -> None:
    """Release the task; the commit is the change now."""
    if pull := _pull(evaluation, task, "open"):
        task.change.adopt(pull.head)
        evaluation.acted(task, f"push:{pull.head[:12]}")
        _go_on(evaluation, task, None, f"a push to {pull.branch}")


def _answer(evaluation: Evaluation, task: Task, verdict: str) -> ReviewSnapshot | None:
    """A person's verdict on the current head that came after the escalation."""
    pull = _pull(evaluation, task, "open")
    if pull is None or pull.head != task.change.head:
        return None
    word = last_word(evaluation, task, pull)
    new = word is not None and word.object not in task.conversation.handled
    return word if word and new and by_person(evaluation, word, verdict) else None


def approved_meanwhile(evaluation: Evaluation, task: Task) -> bool:
    """A person approved the head after the escalation."""
    return _answer(evaluation, task, "approved") is not None


def resume_in_review(evaluation: Evaluation, task: Task) -> None:
    """Release the task; the head is merged once it is verified."""
    if word := _answer(evaluation, task, "approved"):
        _go_on(evaluation, task, None, word.author)


def changes_requested_meanwhile(evaluation: Evaluation, task: Task) -> bool:
    """A person requested changes after the escalation, and did not take the task over."""
    word = _answer(evaluation, task, "changes_requested")
    return word is not None and not task.escalation.taken_over_by


def resume_with_fix(evaluation: Evaluation, task: Task) -> None:
    """Release the task; an agent fixes the change."""
    if word := _answer(evaluation, task, "changes_requested"):
        fix = evaluation.new_work(task, "fix", head=word.head, reason=details_of(word))
        _go_on(evaluation, task, fix, f"{word.author}, who asked for changes")


def _go_on(evaluation: Evaluation, task: Task, fix: Work | None, who: str) -> None:
    task.escalation.resume_work, task.escalation.retry_effects = fix, ()
    task.escalation.resume_as = Status.IN_PROGRESS if fix else Status.IN_REVIEW
    evaluation.release(task, who)


def head_replaced(evaluation: Evaluation, task: Task) -> bool:
    """A person pushed another commit to the branch of the open pull request."""
    pull, change = _pull(evaluation, task, "open"), task.change
    return pull is not None and change.pushed == change.head and pull.head != change.head


def adopt_head(evaluation: Evaluation, task: Task) -> None:
    """Stop the work; the commit is the change now, and it is verified and reviewed."""
    if pull := _pull(evaluation, task, "open"):
        evaluation.acted(task, f"push:{pull.head[:12]}")
        evaluation.stop_work(task, "the branch has a newer commit")
        task.change.adopt(pull.head)
        task.merge.merging = ""


def _shown(evaluation: Evaluation, task: Task) -> PullSnapshot | None:
    """The open pull request, if it shows the head of the task."""
    pull, change = _pull(evaluation, task, "open"), task.change
    return pull if pull and pull.head == change.head == change.pushed else None


def _word(evaluation: Evaluation, task: Task, verdict: str) -> ReviewSnapshot | None:
    pull = _shown(evaluation, task)
    word = last_word(evaluation, task, pull) if pull else None
    return word if word and word.verdict == verdict else None


def approved_by_person(evaluation: Evaluation, task: Task) -> bool:
    """A person approved the head. That answers a review, and a fix that a review asked for."""
    word, work = _word(evaluation, task, "approved"), task.work
    answered = work is not None and (work.role == "review" or not work.onto_main)
    return answered and word is not None and not is_ours(evaluation.sprint, word)


def stop_answered_work(evaluation: Evaluation, task: Task) -> None:
    """Stop the agent."""
    if word := _word(evaluation, task, "approved"):
        evaluation.stop_work(task, f"{word.author} approved the pull request")


def change_made_by_person(evaluation: Evaluation, task: Task) -> bool:
    """A person opened a pull request for the task."""
    pull = _shown(evaluation, task)
    return pull is not None and not is_ours(evaluation.sprint, pull)


def stop_implementing(evaluation: Evaluation, task: Task) -> None:
    """Stop the agent; the person's change is the change."""
    if pull := _shown(evaluation, task):
        evaluation.stop_work(task, f"{pull.author} opened pull request #{pull.number}")


def more_changes_requested(evaluation: Evaluation, task: Task) -> bool:
    """A person requested changes that the agent at work does not know yet."""
    word, work = _word(evaluation, task, "changes_requested"), task.work
    if word is None or work is None or is_ours(evaluation.sprint, word):
        return False
    return details_of(word) not in work.reason


def restart_fix(evaluation: Evaluation, task: Task) -> None:
    """Start the fix again, with the new request first."""
    word, work = _word(evaluation, task, "changes_requested"), task.work
    if word is None or work is None:
        return
    reason = f"{word.author} asked for changes"
    evaluation.stop_work(task, reason)
    requests = (details_of(word), work.reason if work.role == "fix" else "")
    again = evaluation.new_work(
        task,
        "fix",
        head=work.head,
        reason="\n\n".join(filter(None, requests)),
        log=work.verify_log,
    )
    evaluation.move(task, Status.IN_PROGRESS, reason_of(word))
    evaluation.start(task, msgspec.structs.replace(again, onto_main=work.onto_main), reason)


def pull_shows_head(evaluation: Evaluation, task: Task) -> bool:
    """The pull request is open and shows the pushed head."""
    return _shown(evaluation, task) is not None and task.work is None


def enter_review(evaluation: Evaluation, task: Task) -> None:
    """Let the change be verified and reviewed."""
    if pull := _shown(evaluation, task):
        evaluation.move(task, Status.IN_REVIEW, f"pull request #{pull.number} is open")


def changes_requested(evaluation: Evaluation, task: Task) -> bool:
    """The last verdict on the head requests changes."""
    return _word(evaluation, task, "changes_requested") is not None


def send_back(evaluation: Evaluation, task: Task) -> None:
    """Start a fix round; after the last allowed round, escalate."""
    if word := _word(evaluation, task, "changes_requested"):
        evaluation.stop_work(task, "changes were requested")
        task.merge.merging = ""
        reject(evaluation, task, word.head, reason_of(word), details_of(word))
