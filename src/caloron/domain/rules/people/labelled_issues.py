"""Issues with our label become tasks; edits of an issue's text become edits of its task.

The author of an issue can change its text, close it and open it again, also after others gave it
the label. If that author may not command here, none of that decides what is worked on: a comment
of a person who may command does.
"""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

from caloron.domain.model.effects import Moved
from caloron.domain.model.plan import MAX_PROMPT, MAX_TITLE, PlannedTask, find_cycle
from caloron.domain.model.snapshots import IssueSnapshot, moment, without_markers, without_sections
from caloron.domain.model.sprint import UntrustedIssue, branch_name, is_ours
from caloron.domain.model.status import Status, Step
from caloron.domain.model.task import Change, Conversation, ForgeLinks, Task, Times
from caloron.domain.reporting import forge_texts
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.people.commands import APPROVE, RETRY, command_of
from caloron.domain.rules.verdicts import take_back

LABEL = "caloron:task"
_replace = msgspec.structs.replace
_NEW = UntrustedIssue(text="", since=0)

# Labelled issues


def add_tasks(evaluation: Evaluation) -> None:
    """Add a task for every open issue that carries the label and has no task yet."""
    known = {task.links.issue for task in evaluation.state.tasks.values()}
    labelled = [
        seen
        for seen in evaluation.state.objects.values()
        if isinstance(seen, IssueSnapshot)
        and LABEL in seen.labels
        and seen.number not in known
        and not is_ours(evaluation.sprint, seen)
    ]
    for issue in labelled:
        if issue.state == "closed":
            _forget_approval(evaluation, issue)
    new = [issue for issue in labelled if issue.state == "open" and _may_join(evaluation, issue)]
    new.sort(key=lambda issue: issue.number)
    for task in [_add(evaluation, issue) for issue in new]:
        _link_dependencies(evaluation, task)


def _add(evaluation: Evaluation, issue: IssueSnapshot) -> Task:
    text = read_text(issue.title, issue.body)
    name = f"issue-{issue.number}"
    while name in evaluation.state.tasks:
        name += "x"
    task = evaluation.state.tasks[name] = Task(
        plan=PlannedTask(
            id=name, title=text.title, agent_prompt=text.prompt, acceptance=text.acceptance
        ),
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
    return task


_DEPENDS = re.compile(r"^\s*depends on:\s*(.+?)[\s.]*$", re.IGNORECASE | re.MULTILINE)
_NAMES = re.compile(r"[\s,;`]+")


def _link_dependencies(evaluation: Evaluation, task: Task) -> None:
    """Read `Depends on:` lines, and comment on names that are unknown or would form a cycle."""
    tasks = evaluation.state.tasks
    by_issue = {f"#{t.links.issue}": t.id for t in tasks.values() if t.links.issue is not None}
    issue = evaluation.state.issue(task.links.issue)
    body = without_sections(issue.body) if issue else ""
    names = [name for line in _DEPENDS.findall(body) for name in _NAMES.split(line) if name]
    ignored = []
    for name in names:
        needed, plan = by_issue.get(name, name), task.plan
        if needed in plan.depends_on:
            continue
        if needed in tasks:
            task.plan = _replace(plan, depends_on=(*plan.depends_on, needed))
            if not find_cycle([t.plan for t in tasks.values()]):
                continue
            task.plan = plan
        ignored.append(name)
    needs = ", ".join(f"`{d}`" for d in task.plan.depends_on) or "nothing"
    text = (
        f"This is task `{task.id}` of sprint `{evaluation.sprint.id}` now; it depends on {needs}."
    )
    if ignored:
        listed = ", ".join(f"`{name}`" for name in ignored)
        text += f" Ignored in `Depends on`: {listed} (not a task here, or it waits for this)."
    evaluation.comment(task, "joined", "label", forge_texts.unmarked(text))


def _has_label(evaluation: Evaluation, task: Task) -> bool | None:
    """True if the open issue of a labelled task has its label; None: the issue does not count."""
    issue, pull = evaluation.state.issue(task.links.issue), evaluation.state.pull_of(task)
    merged = pull is not None and pull.state == "merged"
    if not task.conversation.by_label or issue is None or issue.state != "open" or merged:
        return None
    return LABEL in issue.labels


def label_removed(evaluation: Evaluation, task: Task) -> bool:
    """The label was removed from the issue before the task started."""
    return _has_label(evaluation, task) is False and task.times.started_at is None


def remove_task(evaluation: Evaluation, task: Task, _matched: bool) -> None:
    """Cancel the task."""
    reason = f"issue #{task.links.issue} lost the label {LABEL}"
    evaluation.cancel(task, reason, closed_by_person=False)
    task.conversation.unlabelled = True


def label_restored(evaluation: Evaluation, task: Task) -> bool:
    """The label is back on the issue."""
    return bool(_has_label(evaluation, task)) and task.conversation.unlabelled


def restore_task(evaluation: Evaluation, task: Task, _matched: bool) -> None:
    """Restore the task."""
    task.conversation.unlabelled = False
    evaluation.move(task, Step.WAITING, f"issue #{task.links.issue} has the label {LABEL} again")


# The text of an issue

_HEADER = re.compile(
    r"^Task `[^`\n]*` of sprint `[^`\n]*` \(\w+\), depends on [^\n]*\n", re.MULTILINE
)
_HEADING = re.compile(r"#{1,6}\s*acceptance\s*:?\s*", re.IGNORECASE)
_ITEM = re.compile(r"\s*[-*] \[[ xX]\]\s+(\S.*)")


class IssueText(msgspec.Struct, frozen=True, kw_only=True):
    """The task that an issue describes."""

    title: str
    prompt: str
    acceptance: tuple[str, ...]


def read_text(title: str, body: str) -> IssueText:
    """Return title, prompt and checklist of an issue, without the text that we wrote around."""
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
    return IssueText(title=title, prompt=prompt or title, acceptance=tuple(acceptance))


def apply_issue_edit(evaluation: Evaluation, task: Task) -> None:
    """Take over an edited text; approvals of our reviewer are voided, as they were for the old."""
    issue, conversation = evaluation.state.issue(task.links.issue), task.conversation
    # The approval of an untrusted author's text may come after the text was read.
    if issue is None or (issue.trusted and issue.version <= conversation.issue_version):
        return
    conversation.issue_version = issue.version
    text = read_text(issue.title, issue.body)
    known = read_text(task.plan.title, forge_texts.issue_body(evaluation.sprint, task))
    if task.status is Status.DONE or not _may_change(evaluation, task, issue, same=text == known):
        return
    task.plan = _replace(
        task.plan, title=text.title, agent_prompt=text.prompt, acceptance=text.acceptance
    )
    conversation.edits += 1
    evaluation.record_act(task, f"edit:{issue.version}")
    take_back(evaluation, task)
    evaluation.note(task, f"the text of issue #{issue.number} was changed")


# Authors who may not command

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
_MAY_BE_NEWER = (
    f"`{APPROVE}` changes nothing: the text may be newer than that; read it and say it again."
)


def _may_join(evaluation: Evaluation, issue: IssueSnapshot) -> bool:
    """True if the text may be worked on; otherwise comment once on what is missing."""
    if issue.trusted:
        return True
    known = evaluation.sprint.untrusted.get(issue.number)
    if known is None:
        _update(evaluation, issue, UntrustedIssue(text=_digest(issue), since=issue.version))
        _post(evaluation, issue, "asks", _ASKS)
        return False
    return _is_approved(evaluation, issue, _with_text(known, issue))


def _forget_approval(evaluation: Evaluation, issue: IssueSnapshot) -> None:
    """Handle all comments on a closed issue, so that it asks again when it is opened."""
    known = evaluation.sprint.untrusted.get(issue.number)
    comments = tuple(comment.object for comment in evaluation.comments_on(issue.number))
    if known is not None and comments != known.handled:
        _update(evaluation, issue, _replace(known, handled=comments))


def _may_change(evaluation: Evaluation, task: Task, issue: IssueSnapshot, *, same: bool) -> bool:
    """True if the text of the issue is to replace the text that is worked on.

    The text of an untrusted author needs a new approval. `same`: it asks for the same task.
    """
    if issue.trusted:
        return not same
    before = evaluation.sprint.untrusted.get(issue.number, _NEW)
    known = _with_text(before, issue)
    if same or known.text == before.approved:
        if known.text != before.text or known.text != before.approved:
            _update(evaluation, issue, _replace(known, approved=known.text))
        return False
    if known.text != before.text:
        _post(evaluation, issue, f"changed-{known.approved or 'first'}", _CHANGED)
    known = _replace(known, handled=tuple(sorted({*known.handled, *task.conversation.handled})))
    approved = _is_approved(evaluation, issue, known)
    # These comments approved the text, not a commit.
    task.conversation.handle(*evaluation.sprint.untrusted[issue.number].handled)
    return approved


def may_return(evaluation: Evaluation, task: Task, issue: IssueSnapshot) -> bool:
    """True if an issue that was opened again restores its task: not for an untrusted author."""
    if issue.trusted or task.conversation.reopen_approved:
        return True
    known = evaluation.sprint.untrusted.get(issue.number, _NEW)
    if not known.returned:
        _update(evaluation, issue, _replace(known, returned=True))
        _post(evaluation, issue, "returned", _RETURNED)
    return False


def _is_approved(evaluation: Evaluation, issue: IssueSnapshot, known: UntrustedIssue) -> bool:
    """Handle the new approvals; True if one is newer than the text.

    The text may have been changed and changed back between two polls, so the approval must be
    newer than the latest snapshot.
    """
    approvals = [
        comment
        for comment in evaluation.comments_on(issue.number)
        if comment.object not in known.handled and command_of(comment) == APPROVE
    ]
    known = _replace(known, handled=(*known.handled, *(comment.object for comment in approvals)))
    first, newest = moment(known.since), moment(issue.version)
    approved = any(first < moment(comment.version) >= newest for comment in approvals)
    _update(evaluation, issue, _replace(known, approved=known.text) if approved else known)
    for comment in approvals if not approved else ():
        _post(evaluation, issue, f"answer-{comment.id}", _MAY_BE_NEWER)
    return approved


def _with_text(known: UntrustedIssue, issue: IssueSnapshot) -> UntrustedIssue:
    """Return the record with the current text of the issue."""
    text = _digest(issue)
    return known if known.text == text else _replace(known, text=text, since=issue.version)


def _update(evaluation: Evaluation, issue: IssueSnapshot, known: UntrustedIssue) -> None:
    evaluation.sprint.untrusted = evaluation.sprint.untrusted | {issue.number: known}


def _post(evaluation: Evaluation, issue: IssueSnapshot, cause: str, text: str) -> None:
    key = f"comment/{evaluation.sprint.id}/stranger/{issue.number}/{cause}"
    evaluation.post_comment(issue.number, key, text.format(author=issue.author))


def _digest(issue: IssueSnapshot) -> str:
    text = f"{issue.title}\n{without_sections(issue.body)}"
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
