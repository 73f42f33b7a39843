"""Issues that people label `caloron:task`: they join the sprint that is running."""

from __future__ import annotations

import re

import msgspec

from caloron.domain import texts
from caloron.domain.actions import Moved
from caloron.domain.editing import read_text
from caloron.domain.observations import IssueSeen
from caloron.domain.ours import is_ours
from caloron.domain.plan import PlannedTask, chain_lengths, find_cycle
from caloron.domain.sections import without_sections
from caloron.domain.sprint import Task, branch_name
from caloron.domain.status import Status
from caloron.domain.strangers import may_join, was_closed
from caloron.domain.turn import Turn

LABEL = "caloron:task"
_DEPENDS = re.compile(r"^\s*depends on:\s*(.+?)[\s.]*$", re.IGNORECASE | re.MULTILINE)
_NAMES = re.compile(r"[\s,;`]+")


def join(turn: Turn) -> None:
    """Make a task of every open issue that carries the label and is nobody's task yet."""
    taken = {task.issue for task in turn.state.tasks.values()}
    labelled = [
        seen
        for seen in turn.state.objects.values()
        if isinstance(seen, IssueSeen)
        and LABEL in seen.labels
        and seen.number not in taken
        and not is_ours(turn.sprint, seen)
    ]
    for issue in labelled:
        if issue.state == "closed":
            was_closed(turn, issue)
    new = [issue for issue in labelled if issue.state == "open" and may_join(turn, issue)]
    if not new:
        return
    new.sort(key=lambda issue: issue.number)
    for issue in new:
        _add(turn, issue)
    for issue in new:
        _tie(turn, issue)
    chains = chain_lengths(tuple(task.plan for task in turn.state.tasks.values()))
    for task in turn.state.tasks.values():
        task.chain = chains[task.id]


def _add(turn: Turn, issue: IssueSeen) -> None:
    text = read_text(issue.title, issue.body)
    name = f"issue-{issue.number}"
    while name in turn.state.tasks:
        name += "x"
    plan = PlannedTask(
        id=name, title=text.title, agent_prompt=text.prompt, acceptance=text.acceptance
    )
    turn.state.tasks[name] = Task(
        plan=plan,
        issue=issue.number,
        branch=branch_name(name, turn.sprint.id),
        changed_at=turn.now,
        by_label=True,
        read=issue.version,
        # What was said before it was a task was not said to us.
        heard=tuple(comment.object for comment in turn.comments_on(issue.number)),
        listens_from=issue.version,
    )
    reason = f"issue #{issue.number} has the label {LABEL}"
    turn.moves.append(Moved(task=name, old="", new=Status.PENDING, reason=reason))


def _tie(turn: Turn, issue: IssueSeen) -> None:
    """What it depends on; a name that is not known, or would make a circle, is told and ignored."""
    by_issue = {f"#{t.issue}": t.id for t in turn.state.tasks.values() if t.issue is not None}
    task = turn.state.tasks[by_issue[f"#{issue.number}"]]
    ignored: list[str] = []
    for line in _DEPENDS.findall(without_sections(issue.body)):
        for name in filter(None, _NAMES.split(line)):
            needed = by_issue.get(name, name)
            if needed in task.plan.depends_on:
                continue
            if needed not in turn.state.tasks or not _try(turn, task, needed):
                ignored.append(name)
    needs = ", ".join(f"`{d}`" for d in task.plan.depends_on) or "nothing"
    parts = [f"This is task `{task.id}` of sprint `{turn.sprint.id}` now; it depends on {needs}."]
    if ignored:
        names = ", ".join(f"`{name}`" for name in ignored)
        parts.append(f"Ignored in `Depends on`: {names} (not a task here, or it waits for this).")
    turn.comment(task, "joined", "label", texts.unmarked(" ".join(parts)))


def _try(turn: Turn, task: Task, needed: str) -> bool:
    before = task.plan
    task.plan = _depending(before, needed)
    if find_cycle([t.plan for t in turn.state.tasks.values()]):
        task.plan = before
        return False
    return True


def _depending(plan: PlannedTask, needed: str) -> PlannedTask:
    return msgspec.structs.replace(plan, depends_on=(*plan.depends_on, needed))


def leave_or_return(turn: Turn, task: Task) -> None:
    """Without its label a task that nobody began is out; with it, it is back."""
    issue = turn.state.objects.get(f"issue:{task.issue}")
    if not task.by_label or not isinstance(issue, IssueSeen) or issue.state != "open":
        return
    labelled = LABEL in issue.labels
    waits = task.status in (Status.PENDING, Status.READY, Status.BLOCKED)
    if not labelled and waits and task.started_at is None:
        turn.cancel(task, f"issue #{issue.number} lost the label {LABEL}", closed_by_person=False)
        task.unlabelled = True
    elif labelled and task.unlabelled and task.status is Status.CANCELLED:
        task.unlabelled = False
        turn.move(task, Status.PENDING, f"issue #{issue.number} has the label {LABEL} again")
