"""What the forge shows, and what follows from it: people act there, and the later act wins."""

from __future__ import annotations

from caloron.domain import texts
from caloron.domain.observations import (
    CommentSeen,
    IssueSeen,
    PullSeen,
    ReviewSeen,
    marker_key,
    without_markers,
)
from caloron.domain.sprint import Task, branch_name, pull_of
from caloron.domain.status import Status
from caloron.domain.turn import Turn
from caloron.domain.verifying import reject

_MAX_CLOSURES = 2


def bind(turn: Turn) -> None:
    """Tie issues and pull requests to their tasks: by marker, never by position."""
    sprint = turn.sprint
    ours = [
        seen
        for seen in turn.state.objects.values()
        if isinstance(seen, IssueSeen | PullSeen) and seen.author == sprint.author
    ]
    # Of two with one marker, the first counts.
    ours.sort(key=lambda seen: -seen.number)
    by_key = {marker_key(seen.body): seen for seen in ours}
    for task in turn.state.tasks.values():
        issue = by_key.get(texts.issue_key(sprint.id, task.id))
        if task.issue is None and isinstance(issue, IssueSeen):
            task.issue = issue.number
        escalation = by_key.get(texts.escalation_key(sprint.id, task.id, task.incident))
        if isinstance(escalation, IssueSeen) and task.escalation_issue is None:
            task.escalation_issue = escalation.number
            if task.status is not Status.ESCALATED:
                turn.close_escalation(task)
        pull = by_key.get(texts.pull_key(sprint.id, task.id, task.generation))
        if task.pull is None and isinstance(pull, PullSeen):
            task.pull = pull.number
    _bind_by_closing(turn)


def _bind_by_closing(turn: Turn) -> None:
    """A person's own pull request that closes the task's issue counts for the task."""
    issues = {t.issue: t for t in turn.state.tasks.values() if t.issue is not None}
    pulls = [o for o in turn.state.objects.values() if isinstance(o, PullSeen)]
    for pull in sorted(pulls, key=lambda p: p.number):
        if pull.author == turn.sprint.author or pull.state == "closed":
            continue
        for number in pull.closes:
            task = issues.get(number)
            if task and task.pull is None and not _is_settling(task):
                turn.stop_work(task, f"{pull.author} opened pull request #{pull.number}")
                task.pull, task.branch, task.empty = pull.number, pull.branch, False
                task.head = task.pushed = pull.head


def _is_settling(task: Task) -> bool:
    """Done, or its own pull request is just being opened."""
    publishing = task.status is Status.IN_PROGRESS and task.work is None
    return publishing or task.status is Status.DONE


def react(turn: Turn, task: Task) -> None:
    """Bring one task in line with what its issue and pull request show.

    Our own merge says itself what it put on main; until then, and while that has to be looked at,
    the task is not done.
    """
    if task.status is Status.DONE:
        return
    pull = pull_of(turn.state, task)
    if pull and pull.state == "merged":
        if not task.landed and task.merging != pull.head:
            _merged(turn, task, pull)
        elif task.status is Status.ESCALATED:
            _released_by_person(turn, task)
        return
    if _cancelled_by_person(turn, task):
        return
    if pull and pull.state == "closed":
        _pull_closed(turn, task, pull)
    if task.status is Status.ESCALATED:
        _released_by_person(turn, task)
    if pull and pull.state == "open" and task.status is not Status.ESCALATED:
        _pull_open(turn, task, pull)


def _merged(turn: Turn, task: Task, pull: PullSeen) -> None:
    who = "" if pull.ended_by in ("", turn.sprint.author) else f" by {pull.ended_by}"
    text = f"Completed via PR #{pull.number}"
    turn.complete(task, f"merged{who} as pull request #{pull.number}", text)


def _cancelled_by_person(turn: Turn, task: Task) -> bool:
    """A closed issue cancels its task; an issue opened again brings it back."""
    issue = turn.state.objects.get(f"issue:{task.issue}")
    if not isinstance(issue, IssueSeen):
        return False
    closed = issue.state == "closed" and issue.closed_by != turn.sprint.author
    if closed and task.status is Status.CANCELLED:
        task.closed_by_person = True
    elif closed:
        reason = f"issue #{issue.number} was closed by {issue.closed_by or 'a person'}"
        turn.cancel(task, reason, closed_by_person=True)
    elif task.closed_by_person:
        task.judged, task.failures, task.closed_by_person = "", 0, False
        # What was not pushed was not to be: it goes on with what the branch has.
        task.head, task.empty = task.pushed, False
        turn.move(task, Status.PENDING, f"issue #{issue.number} was opened again")
    return task.status is Status.CANCELLED


def _pull_closed(turn: Turn, task: Task, pull: PullSeen) -> None:
    """Closed without merging: rework in a new pull request; the second time, a person decides."""
    task.pull, task.merging = None, ""
    if pull.author == turn.sprint.author:
        task.generation += 1
    _back_to_own_branch(turn, task)
    if task.status not in (Status.IN_PROGRESS, Status.IN_REVIEW, Status.ESCALATED):
        task.head = ""
        return
    who = pull.ended_by or "a person"
    reason = f"pull request #{pull.number} was closed by {who} without merging"
    turn.stop_work(task, reason)
    fix = turn.new_work(task, "fix", head=task.head, reason=reason)
    if task.status is Status.ESCALATED:
        if task.held is None or task.held.role in ("review", "verify"):
            task.held, task.held_effects, task.held_from = fix, (), Status.IN_PROGRESS
        return
    if task.generation > _MAX_CLOSURES:
        turn.escalate(task, f"{reason}, for the second time", held=fix)
        task.held_from = Status.IN_PROGRESS
    else:
        turn.move(task, Status.IN_PROGRESS, reason)
        turn.start(task, fix)


def _back_to_own_branch(turn: Turn, task: Task) -> None:
    """A person's branch is theirs: what follows their closed pull request goes to ours."""
    own = branch_name(task.id, turn.sprint.id)
    if task.branch == own:
        return
    pulls = [
        seen
        for seen in turn.state.objects.values()
        if isinstance(seen, PullSeen) and seen.branch == own
    ]
    last = max(pulls, key=lambda p: p.number, default=None)
    task.branch, task.pushed = own, last.head if last else task.own_commit


def _released_by_person(turn: Turn, task: Task) -> None:
    pull = pull_of(turn.state, task)
    verdict = _verdict(turn, pull) if pull and pull.head == task.head else None
    if verdict and verdict.object not in task.heard and _by_person(turn, verdict, "approved"):
        task.held, task.held_effects, task.held_from = None, (), Status.IN_REVIEW
        turn.release(task, verdict.author)
        return
    places = {n for n in (task.issue, task.escalation_issue) if n is not None}
    commands = [
        seen
        for seen in turn.state.objects.values()
        if isinstance(seen, CommentSeen)
        and seen.issue in places
        and seen.object not in task.heard
        and is_command(seen, "resolved", turn.sprint.author)
    ]
    if commands:
        turn.release(task, min(commands, key=lambda c: c.id).author)


def is_command(comment: CommentSeen, command: str, author: str) -> bool:
    """A command is the whole first line of a person's comment; a comment of ours is never one."""
    if comment.author == author or marker_key(comment.body):
        return False
    first = comment.body.splitlines()[0] if comment.body else ""
    return first.strip().lower() == command


def _pull_open(turn: Turn, task: Task, pull: PullSeen) -> None:
    if task.pushed == task.head and pull.head != task.head:
        _adopt_head(turn, task, pull)
    if pull.head != task.head or task.pushed != task.head:
        return
    verdict = _verdict(turn, pull)
    _prefer_person(turn, task, pull, verdict)
    if task.work and task.work.role in ("fix", "resolve"):
        return
    if task.status is Status.IN_PROGRESS and task.work is None:
        turn.move(task, Status.IN_REVIEW, f"pull request #{pull.number} is open")
    if task.status is not Status.IN_REVIEW or verdict is None:
        return
    if verdict.verdict == "changes_requested":
        turn.stop_work(task, "changes were requested")
        task.merging = ""
        reject(turn, task, pull.head, verdict_reason(verdict), verdict_details(verdict))


def _prefer_person(turn: Turn, task: Task, pull: PullSeen, verdict: ReviewSeen | None) -> None:
    """An agent's work ends when a person has done it: approved the head, or made the change.

    An approval answers a review and what a review asked for; it does not make a conflict or a
    failed verification go away.
    """
    if task.work is None:
        return
    answered = task.work.role == "review" or (task.work.role == "fix" and not task.work.onto_main)
    if answered and verdict and _by_person(turn, verdict, "approved"):
        turn.stop_work(task, f"{verdict.author} approved the pull request")
    elif task.work.role == "implement" and pull.author != turn.sprint.author:
        turn.stop_work(task, f"{pull.author} opened pull request #{pull.number}")


def _by_person(turn: Turn, review: ReviewSeen, verdict: str) -> bool:
    return review.verdict == verdict and review.author != turn.sprint.author


def _adopt_head(turn: Turn, task: Task, pull: PullSeen) -> None:
    """Somebody pushed to the branch: that is the change now, and it is reviewed as such."""
    turn.stop_work(task, "the branch has a newer commit")
    task.head = task.pushed = pull.head
    task.merging = ""


def verdict_reason(review: ReviewSeen) -> str:
    first = next((line for line in review.body.splitlines() if line.strip()), "")
    return first.removeprefix("CHANGES_NEEDED:").strip() or "changes requested"


def verdict_details(review: ReviewSeen) -> str:
    """Everything the reviewer wrote, for the agent that has to act on it."""
    text = without_markers(review.body)
    return text.removeprefix("CHANGES_NEEDED:").strip() or "changes requested"


def _verdict(turn: Turn, pull: PullSeen) -> ReviewSeen | None:
    """The last word on the current head."""
    found = [
        seen
        for seen in turn.reviews_of(pull.number)
        if seen.head == pull.head and seen.verdict != "commented"
    ]
    return max(found, key=lambda r: (r.version, r.id), default=None)


def approved_head(turn: Turn, task: Task) -> str:
    """The head that may be merged, if the last word on it is an approval."""
    pull = pull_of(turn.state, task)
    if pull is None or pull.state != "open" or pull.head != task.head:
        return ""
    verdict = _verdict(turn, pull)
    return pull.head if verdict and verdict.verdict == "approved" else ""
