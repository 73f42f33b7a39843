"""Labelled issues of people who have no say: somebody who has one stands behind their text.

Who wrote an issue can change its text, close it and open it again, also after somebody else gave it
the label. None of that decides what is worked on: a word of somebody who has a say does.
"""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

from caloron.domain.model.effects import Moved, PostComment
from caloron.domain.model.plan import MAX_PROMPT, MAX_TITLE, PlannedTask, find_cycle
from caloron.domain.model.snapshots import IssueSnapshot, moment, without_markers, without_sections
from caloron.domain.model.sprint import UntrustedIssue, branch_name, is_ours, pull_of
from caloron.domain.model.status import Status
from caloron.domain.model.task import Change, Conversation, ForgeLinks, Task, Times
from caloron.domain.reporting import forge_texts
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.people.commands import APPROVE, RETRY, command_of
from caloron.domain.rules.verdicts import take_back

_replace = msgspec.structs.replace


def may_join(evaluation: Evaluation, issue: IssueSnapshot) -> bool:
    """Whether the text of a labelled issue may be worked on; if not, what is missing is told."""
    if issue.trusted:
        return True
    known, text = evaluation.sprint.untrusted.get(issue.number), _digest(issue)
    if known is None:
        _keep(evaluation, issue, UntrustedIssue(text=text, since=issue.version))
        _say(evaluation, issue, "asks", _ASKS.format(author=issue.author))
        return False
    if known.text != text:
        known = _replace(known, text=text, since=issue.version)
    return _is_approved(evaluation, issue, known)


def was_closed(evaluation: Evaluation, issue: IssueSnapshot) -> None:
    """Closing a labelled issue that waits takes back what was said on it: opened, it asks again."""
    known = evaluation.sprint.untrusted.get(issue.number)
    if known is None:
        return
    heard = tuple(comment.object for comment in evaluation.comments_on(issue.number))
    if heard != known.handled:
        _keep(evaluation, issue, _replace(known, handled=heard))


def may_change(evaluation: Evaluation, task: Task, issue: IssueSnapshot, *, same: bool) -> bool:
    """Whether the text of a task's issue is to replace the one that is worked on.

    Who has no say may write another text, but the one that was approved stands until somebody who
    has a say approves again. `same`: it asks for nothing else than what is worked on.
    """
    if issue.trusted:
        return not same
    text = _digest(issue)
    known = evaluation.sprint.untrusted.get(issue.number, UntrustedIssue(text="", since=0))
    if same or text == known.approved:
        if known.text != text or known.approved != text:
            since = issue.version if known.text != text else known.since
            _keep(evaluation, issue, _replace(known, text=text, since=since, approved=text))
        return False
    if known.text != text:
        known = _replace(known, text=text, since=issue.version)
        cause = f"changed-{known.approved or 'first'}"
        _say(evaluation, issue, cause, _CHANGED.format(author=issue.author))
    known = _replace(known, handled=tuple(sorted({*known.handled, *task.conversation.handled})))
    approved = _is_approved(evaluation, issue, known)
    # That word was about the text, not about a commit.
    heard = evaluation.sprint.untrusted[issue.number].handled
    task.conversation.handle(*heard)
    return approved


def may_return(evaluation: Evaluation, task: Task, issue: IssueSnapshot) -> bool:
    """Whether an issue that was opened again brings its task back: not by who has no say."""
    if issue.trusted or task.conversation.reopen_approved:
        return True
    known = evaluation.sprint.untrusted.get(issue.number, UntrustedIssue(text="", since=0))
    if not known.returned:
        _keep(evaluation, issue, _replace(known, returned=True))
        _say(evaluation, issue, "returned", _RETURNED.format(author=issue.author))
    return False


_ASKS = (
    "This issue has the label `caloron:task`, but @{author}, who wrote it, has no say here. It"
    f" joins the sprint once somebody who has comments `{APPROVE}`; what is changed in its text"
    " after that does not count."
)
_CHANGED = (
    "The text of this issue was changed, and @{author}, who wrote it, has no say here: the task"
    f" goes on with the text it had. If somebody who has a say comments `{APPROVE}` here, the text"
    " as it is then is what is asked for."
)
_RETURNED = (
    "This issue was opened again, and @{author}, who wrote it, has no say here: its task stays"
    f" cancelled until somebody who has comments `{RETRY}`."
)
_MOVED = "`{command}` changes nothing: the text may be newer than that; read it and say it again."


def _is_approved(evaluation: Evaluation, issue: IssueSnapshot, known: UntrustedIssue) -> bool:
    """Hear what was said since: whether somebody approved the text as it is.

    A newer picture with the same text may have had another one in between, while nobody looked.
    """
    said = [
        comment
        for comment in evaluation.comments_on(issue.number)
        if comment.object not in known.handled and command_of(comment) == APPROVE
    ]
    known = _replace(known, handled=(*known.handled, *(comment.object for comment in said)))
    first, newest = moment(known.since), moment(issue.version)
    approved = any(first < moment(comment.version) >= newest for comment in said)
    _keep(evaluation, issue, _replace(known, approved=known.text) if approved else known)
    for comment in said if not approved else ():
        _say(evaluation, issue, f"answer-{comment.id}", _MOVED.format(command=APPROVE))
    return approved


def _keep(evaluation: Evaluation, issue: IssueSnapshot, stranger: UntrustedIssue) -> None:
    evaluation.sprint.untrusted = evaluation.sprint.untrusted | {issue.number: stranger}


def _say(evaluation: Evaluation, issue: IssueSnapshot, cause: str, text: str) -> None:
    key = f"comment/{evaluation.sprint.id}/stranger/{issue.number}/{cause}"
    body = forge_texts.comment_body(text, key)
    evaluation.do(PostComment(key=key, task="", issue=issue.number, body=body))


def _digest(issue: IssueSnapshot) -> str:
    text = f"{issue.title}\n{without_sections(issue.body)}"
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


_HEADER = re.compile(
    r"^Task `[^`\n]*` of sprint `[^`\n]*` \(\w+\), depends on [^\n]*\n", re.MULTILINE
)
_HEADING = re.compile(r"#{1,6}\s*acceptance\s*:?\s*", re.IGNORECASE)
_ITEM = re.compile(r"\s*[-*] \[[ xX]\]\s+(\S.*)")


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """What an issue asks for."""

    title: str
    prompt: str
    acceptance: tuple[str, ...]


def read_text(title: str, body: str) -> Text:
    """Title, prompt and checklist of an issue, without what Caloron itself wrote around them."""
    body = without_sections(body.replace("\r\n", "\n").replace("\0", ""))
    body = without_markers(body) + "\n"
    body = _HEADER.sub("", forge_texts.unmarked(body), count=1)
    kept: list[str] = []
    acceptance: list[str] = []
    for line in body.splitlines():
        if item := _ITEM.fullmatch(line):
            acceptance.append(item[1].strip())
        elif not _HEADING.fullmatch(line):
            kept.append(line.rstrip())
    title = " ".join(title.replace("\0", "").split())[:MAX_TITLE] or "(no title)"
    prompt = "\n".join(kept).strip()[:MAX_PROMPT].rstrip()
    return Text(title=title, prompt=prompt or title, acceptance=tuple(acceptance))


def take_in_edit(evaluation: Evaluation, task: Task) -> None:
    """A person's text replaces the old one; what our reviewer approved on that is read again."""
    issue = evaluation.state.objects.get(f"issue:{task.links.issue}")
    # A word on a stranger's text may come after the text was read.
    if not isinstance(issue, IssueSnapshot) or (
        issue.trusted and issue.version <= task.conversation.issue_version
    ):
        return
    task.conversation.issue_version = issue.version
    found = read_text(issue.title, issue.body)
    known = read_text(task.plan.title, forge_texts.issue_body(evaluation.sprint, task))
    if task.status is Status.DONE or not may_change(evaluation, task, issue, same=found == known):
        return
    task.plan = msgspec.structs.replace(
        task.plan,
        title=found.title,
        agent_prompt=found.prompt,
        acceptance=found.acceptance,
    )
    task.conversation.edits += 1
    evaluation.acted(task, f"edit:{issue.version}")
    take_back(evaluation, task)
    evaluation.note(task, f"the text of issue #{issue.number} was changed")


LABEL = "caloron:task"
_DEPENDS = re.compile(r"^\s*depends on:\s*(.+?)[\s.]*$", re.IGNORECASE | re.MULTILINE)
_NAMES = re.compile(r"[\s,;`]+")


def join(evaluation: Evaluation) -> None:
    """Make a task of every open issue that carries the label and is nobody's task yet."""
    taken = {task.links.issue for task in evaluation.state.tasks.values()}
    labelled = [
        seen
        for seen in evaluation.state.objects.values()
        if isinstance(seen, IssueSnapshot)
        and LABEL in seen.labels
        and seen.number not in taken
        and not is_ours(evaluation.sprint, seen)
    ]
    for issue in labelled:
        if issue.state == "closed":
            was_closed(evaluation, issue)
    new = [issue for issue in labelled if issue.state == "open" and may_join(evaluation, issue)]
    if not new:
        return
    new.sort(key=lambda issue: issue.number)
    for issue in new:
        _add(evaluation, issue)
    for issue in new:
        _tie(evaluation, issue)


def _add(evaluation: Evaluation, issue: IssueSnapshot) -> None:
    text = read_text(issue.title, issue.body)
    name = f"issue-{issue.number}"
    while name in evaluation.state.tasks:
        name += "x"
    plan = PlannedTask(
        id=name, title=text.title, agent_prompt=text.prompt, acceptance=text.acceptance
    )
    evaluation.state.tasks[name] = Task(
        plan=plan,
        links=ForgeLinks(issue=issue.number),
        change=Change(branch=branch_name(name, evaluation.sprint.id)),
        times=Times(changed_at=evaluation.now),
        conversation=Conversation(
            by_label=True,
            issue_version=issue.version,
            handled=tuple(comment.object for comment in evaluation.comments_on(issue.number)),
            since_version=issue.version,
        ),
    )
    reason = f"issue #{issue.number} has the label {LABEL}"
    evaluation.moves.append(Moved(task=name, old="", new=Status.PENDING, reason=reason))


def _tie(evaluation: Evaluation, issue: IssueSnapshot) -> None:
    """What it depends on; a name that is not known, or would make a circle, is told and ignored."""
    by_issue = {
        f"#{t.links.issue}": t.id
        for t in evaluation.state.tasks.values()
        if t.links.issue is not None
    }
    task = evaluation.state.tasks[by_issue[f"#{issue.number}"]]
    ignored: list[str] = []
    for line in _DEPENDS.findall(without_sections(issue.body)):
        for name in filter(None, _NAMES.split(line)):
            needed = by_issue.get(name, name)
            if needed in task.plan.depends_on:
                continue
            if needed not in evaluation.state.tasks or not _try(evaluation, task, needed):
                ignored.append(name)
    needs = ", ".join(f"`{d}`" for d in task.plan.depends_on) or "nothing"
    parts = [
        f"This is task `{task.id}` of sprint `{evaluation.sprint.id}` now; it depends on {needs}."
    ]
    if ignored:
        names = ", ".join(f"`{name}`" for name in ignored)
        parts.append(f"Ignored in `Depends on`: {names} (not a task here, or it waits for this).")
    evaluation.comment(task, "joined", "label", forge_texts.unmarked(" ".join(parts)))


def _try(evaluation: Evaluation, task: Task, needed: str) -> bool:
    before = task.plan
    task.plan = _depending(before, needed)
    if find_cycle([t.plan for t in evaluation.state.tasks.values()]):
        task.plan = before
        return False
    return True


def _depending(plan: PlannedTask, needed: str) -> PlannedTask:
    return msgspec.structs.replace(plan, depends_on=(*plan.depends_on, needed))


def _labelled(evaluation: Evaluation, task: Task) -> bool | None:
    """Whether the open issue of a task that a label added has its label; None: not such a task."""
    issue = evaluation.state.objects.get(f"issue:{task.links.issue}")
    pull = pull_of(evaluation.state, task)
    if not task.conversation.by_label or not isinstance(issue, IssueSnapshot):
        return None
    ended = issue.state != "open" or (pull is not None and pull.state == "merged")
    return None if ended else LABEL in issue.labels


def label_removed(evaluation: Evaluation, task: Task) -> bool:
    """The label was removed from the issue before the task started."""
    return _labelled(evaluation, task) is False and task.times.started_at is None


def remove_task(evaluation: Evaluation, task: Task) -> None:
    """Cancel the task."""
    reason = f"issue #{task.links.issue} lost the label {LABEL}"
    evaluation.cancel(task, reason, closed_by_person=False)
    task.conversation.unlabelled = True


def label_restored(evaluation: Evaluation, task: Task) -> bool:
    """The label is back on the issue."""
    return bool(_labelled(evaluation, task)) and task.conversation.unlabelled


def restore_task(evaluation: Evaluation, task: Task) -> None:
    """Restore the task."""
    task.conversation.unlabelled = False
    evaluation.move(task, Status.PENDING, f"issue #{task.links.issue} has the label {LABEL} again")
