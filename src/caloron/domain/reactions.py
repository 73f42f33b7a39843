"""What the forge shows, and what follows from it: people act there, and the later act wins."""

from __future__ import annotations

import msgspec

from caloron.domain import commands, joining, texts
from caloron.domain.actions import ClosePull
from caloron.domain.editing import take_in_edit
from caloron.domain.observations import IssueSeen, PullSeen, ReviewSeen, marker_key
from caloron.domain.ours import is_ours
from caloron.domain.sprint import Task, Work, branch_name, pull_of
from caloron.domain.status import Status
from caloron.domain.strangers import may_return
from caloron.domain.turn import Turn
from caloron.domain.verdicts import by_person, details_of, last_word, reason_of
from caloron.domain.verifying import reject
from caloron.domain.workflow import open_pull

_MAX_CLOSURES = 2


def bind(turn: Turn) -> None:
    """Tie issues and pull requests to their tasks: by marker, never by position."""
    sprint = turn.sprint
    ours = [
        seen
        for seen in turn.state.objects.values()
        if isinstance(seen, IssueSeen | PullSeen) and is_ours(sprint, seen)
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
    _forget_closed(turn)
    _bind_opened_again(turn, [seen for seen in ours if isinstance(seen, PullSeen)])
    _bind_by_closing(turn)


def _forget_closed(turn: Turn) -> None:
    """What was being closed is closed now: if it is opened again, a person did that."""
    for task in turn.state.tasks.values():
        task.let_go = tuple(n for n in task.let_go if n == task.pull or not _has_ended(turn, n))


def _has_ended(turn: Turn, number: int) -> bool:
    seen = turn.state.objects.get(f"pull:{number}")
    return isinstance(seen, PullSeen) and seen.state != "open"


def _bind_opened_again(turn: Turn, ours: list[PullSeen]) -> None:
    """An earlier pull request that a person opened again counts, not the one that was to follow."""
    by_branch = {pull.branch: pull for pull in ours if pull.state == "open"}
    for task in turn.state.tasks.values():
        pull = by_branch.get(branch_name(task.id, turn.sprint.id))
        if pull is None or task.pull is not None or pull.number in task.let_go:
            continue
        if task.status in (Status.DONE, Status.CANCELLED):
            continue
        if task.work or task.status is Status.ESCALATED:
            task.head = task.pushed = pull.head
        _make_theirs(turn, task, f"pull request #{pull.number} was opened again")
        task.pull, task.branch = pull.number, pull.branch


def _make_theirs(turn: Turn, task: Task, reason: str) -> None:
    """A person put a change in the place of what agents were to do."""
    turn.stop_work(task, reason)
    task.empty = False
    if task.status is Status.ESCALATED and not task.held_effects:
        task.held = None


def _bind_by_closing(turn: Turn) -> None:
    """A person's own pull request that closes the task's issue counts for the task."""
    issues = {t.issue: t for t in turn.state.tasks.values() if t.issue is not None}
    pulls = [o for o in turn.state.objects.values() if isinstance(o, PullSeen)]
    for pull in sorted(pulls, key=lambda p: p.number):
        if is_ours(turn.sprint, pull) or not pull.trusted or pull.state == "closed":
            continue
        for number in pull.closes:
            task = issues.get(number)
            if task is None or pull.number in task.let_go:
                continue
            if task.pull is None and not _is_settling(task):
                task.held_effects = ()
                _make_theirs(turn, task, f"{pull.author} opened pull request #{pull.number}")
                task.pull, task.branch = pull.number, pull.branch
                task.head = task.pushed = pull.head
                # What was said there before was not said about this task.
                earlier = {comment.object for comment in turn.comments_on(pull.number)}
                task.heard = tuple(sorted({*task.heard, *earlier}))
                task.listens_from = max(task.listens_from, pull.version)


def _is_settling(task: Task) -> bool:
    """Done, or its own pull request is just being opened."""
    publishing = task.status is Status.IN_PROGRESS and task.work is None
    return publishing or task.status is Status.DONE


def react(turn: Turn, task: Task) -> None:
    """Bring one task in line with what its issue and pull request show.

    Our own merge says itself what it put on main; until then, and while that has to be looked at,
    the task is not done.
    """
    pull = pull_of(turn.state, task)
    merged = pull is not None and pull.state == "merged"
    ours = bool(task.landed) or (pull is not None and task.merging == pull.head)
    if pull:
        _count_reviews(turn, task, pull)
    if pull and merged and not ours and task.status is not Status.DONE:
        _merged(turn, task, pull)
    if pull and pull.head != task.seen_head:
        task.seen_head, task.seen_from, task.seen_at = pull.head, pull.version, turn.now
    take_in_edit(turn, task)
    commands.obey(turn, task)
    if task.status is Status.DONE or merged:
        return
    joining.leave_or_return(turn, task)
    if _cancelled_by_person(turn, task):
        _withdraw(turn, task)
        return
    if pull and pull.state == "closed":
        pull_closed(turn, task, pull, _why_closed(turn, pull))
    if task.status is Status.ESCALATED and pull and pull.state == "open":
        _answered_by_person(turn, task, pull)
    if pull and pull.state == "open" and task.status is not Status.ESCALATED:
        _pull_open(turn, task, pull)


def _count_reviews(turn: Turn, task: Task, pull: PullSeen) -> None:
    for review in turn.reviews_of(pull.number):
        if review.trusted and review.verdict != "commented" and not is_ours(turn.sprint, review):
            turn.acted(task, review.object)


def _merged(turn: Turn, task: Task, pull: PullSeen) -> None:
    if pull.ended_by not in ("", turn.sprint.author):
        turn.acted(task, f"merge:{pull.number}")
    who = "" if pull.ended_by in ("", turn.sprint.author) else f" by {pull.ended_by}"
    text = f"Completed via PR #{pull.number}"
    turn.complete(task, f"merged{who} as pull request #{pull.number}", text)


def _cancelled_by_person(turn: Turn, task: Task) -> bool:
    """A closed issue cancels its task; an issue opened again brings it back."""
    issue = turn.state.objects.get(f"issue:{task.issue}")
    if not isinstance(issue, IssueSeen):
        return False
    closed = issue.state == "closed"
    if closed and task.status is Status.CANCELLED:
        task.closed_by_person, task.wanted_back = True, False
    elif closed and task.merging:
        # A merge closes it too: the answer to ours tells which it was.
        return False
    elif closed:
        turn.acted(task, f"close:{issue.version}")
        reason = f"issue #{issue.number} was closed by {issue.closed_by or 'a person'}"
        turn.cancel(task, reason, closed_by_person=True)
    elif task.closed_by_person and may_return(turn, task, issue):
        task.judged, task.failures, task.closed_by_person = "", 0, False
        task.wanted_back = False
        task.cancelled_by = ""
        # What was not pushed was not to be: it goes on with what the branch has.
        task.head, task.empty = task.pushed, False
        turn.acted(task, f"reopen:{issue.version}")
        turn.move(task, Status.PENDING, f"issue #{issue.number} was opened again")
    return task.status is Status.CANCELLED


def _withdraw(turn: Turn, task: Task) -> None:
    """Close what is open of a task that was cancelled with a word, each once."""
    own = branch_name(task.id, turn.sprint.id)
    for seen in turn.state.objects.values() if task.cancelled_by else ():
        if not isinstance(seen, PullSeen) or (seen.branch, seen.state) != (own, "open"):
            continue
        if seen.number not in task.let_go:
            task.let_go = (*task.let_go, seen.number)
            key = f"close_pull/{turn.sprint.id}/{task.id}/{seen.number}-{task.withdrawn}"
            turn.do(ClosePull(key=key, task=task.id, pull=seen.number))


def pull_closed(turn: Turn, task: Task, pull: PullSeen, reason: str) -> None:
    """Closed without merging: rework in a new pull request; the second time, a person decides."""
    task.pull, task.merging = None, ""
    if pull.branch == branch_name(task.id, turn.sprint.id):
        task.generation += 1
    _back_to_own_branch(turn, task)
    if pull.number in task.let_go:
        _go_on_after_return(turn, task, pull)
        return
    turn.acted(task, f"close_pull:{pull.number}")
    if task.status not in (Status.IN_PROGRESS, Status.IN_REVIEW, Status.ESCALATED):
        task.head = ""
        return
    turn.stop_work(task, reason)
    fix = turn.new_work(task, "fix", head=task.head, reason=reason)
    if task.status is Status.ESCALATED:
        if task.held is None or task.held.role in ("review", "verify"):
            task.held, task.held_effects, task.held_from = fix, (), Status.IN_PROGRESS
        turn.note(task, f"{task.reason}; then {reason}")
        return
    if task.generation - task.withdrawn > _MAX_CLOSURES:
        turn.escalate(task, f"{reason}, for the second time", held=fix)
        task.held_from = Status.IN_PROGRESS
    else:
        turn.move(task, Status.IN_PROGRESS, reason)
        turn.start(task, fix)


def _why_closed(turn: Turn, pull: PullSeen) -> str:
    if pull.base not in ("", turn.sprint.main):
        return f"pull request #{pull.number} is for {pull.base} now, not for {turn.sprint.main}"
    who = pull.ended_by or "a person"
    return f"pull request #{pull.number} was closed by {who} without merging"


def _go_on_after_return(turn: Turn, task: Task, pull: PullSeen) -> None:
    """We closed it, because the task was cancelled; what it had is still the change."""
    task.let_go = tuple(number for number in task.let_go if number != pull.number)
    task.withdrawn += 1
    if task.status in (Status.IN_PROGRESS, Status.IN_REVIEW) and task.pushed:
        turn.stop_work(task, f"pull request #{pull.number} was closed with the task")
        task.head = task.pushed
        turn.move(task, Status.IN_PROGRESS, "goes on with what its branch has")
        open_pull(turn, task)


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


def _answered_by_person(turn: Turn, task: Task, pull: PullSeen) -> None:
    """What a person does to the change of a task that waits for one is the answer.

    Who took it over says themselves when it goes on; an approval says that, too.
    """
    if not task.taken_over and pull.head not in (task.head, task.pushed):
        task.head = task.pushed = pull.head
        turn.acted(task, f"push:{pull.head[:12]}")
        _go_on(turn, task, None, f"a push to {pull.branch}")
        return
    word = last_word(turn, task, pull) if pull.head == task.head else None
    if word is None or word.object in task.heard:
        return
    if by_person(turn, word, "approved"):
        _go_on(turn, task, None, word.author)
    elif by_person(turn, word, "changes_requested") and not task.taken_over:
        fix = turn.new_work(task, "fix", head=pull.head, reason=details_of(word))
        _go_on(turn, task, fix, f"{word.author}, who asked for changes")


def _go_on(turn: Turn, task: Task, fix: Work | None, who: str) -> None:
    task.held, task.held_effects = fix, ()
    task.held_from = Status.IN_PROGRESS if fix else Status.IN_REVIEW
    turn.release(task, who)


def _pull_open(turn: Turn, task: Task, pull: PullSeen) -> None:
    if task.pushed == task.head and pull.head != task.head:
        _adopt_head(turn, task, pull)
    if pull.head != task.head or task.pushed != task.head:
        return
    word = last_word(turn, task, pull)
    _prefer_person(turn, task, pull, word)
    if task.work and task.work.role in ("fix", "resolve"):
        _pass_on_words(turn, task, word)
        return
    if task.status is Status.IN_PROGRESS and task.work is None:
        turn.move(task, Status.IN_REVIEW, f"pull request #{pull.number} is open")
    if task.status is not Status.IN_REVIEW or word is None:
        return
    if word.verdict == "changes_requested":
        turn.stop_work(task, "changes were requested")
        task.merging = ""
        reject(turn, task, pull.head, reason_of(word), details_of(word))


def _pass_on_words(turn: Turn, task: Task, word: ReviewSeen | None) -> None:
    """What a person asks for while an agent fixes the same head: it begins again with that too."""
    work = task.work
    if work is None or word is None or not by_person(turn, word, "changes_requested"):
        return
    words = details_of(word)
    if words in work.reason:
        return
    reason = f"{word.author} asked for changes"
    turn.stop_work(task, reason)
    told = "\n\n".join(filter(None, (words, work.reason if work.role == "fix" else "")))
    again = turn.new_work(task, "fix", head=work.head, reason=told, log=work.log)
    turn.move(task, Status.IN_PROGRESS, reason_of(word))
    turn.start(task, msgspec.structs.replace(again, onto_main=work.onto_main), reason)


def _prefer_person(turn: Turn, task: Task, pull: PullSeen, word: ReviewSeen | None) -> None:
    """An agent's work ends when a person has done it: approved the head, or made the change.

    An approval answers a review and what a review asked for; it does not make a conflict or a
    failed verification go away.
    """
    if task.work is None:
        return
    answered = task.work.role == "review" or (task.work.role == "fix" and not task.work.onto_main)
    if answered and word and by_person(turn, word, "approved"):
        turn.stop_work(task, f"{word.author} approved the pull request")
    elif task.work.role == "implement" and not is_ours(turn.sprint, pull):
        turn.stop_work(task, f"{pull.author} opened pull request #{pull.number}")


def _adopt_head(turn: Turn, task: Task, pull: PullSeen) -> None:
    """Somebody pushed to the branch: that is the change now, and it is reviewed as such."""
    turn.acted(task, f"push:{pull.head[:12]}")
    turn.stop_work(task, "the branch has a newer commit")
    task.head = task.pushed = pull.head
    task.merging = ""
