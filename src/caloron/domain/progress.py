"""The one comment on a task's issue that says how far it is: a table, and its last moves."""

from __future__ import annotations

from datetime import UTC, datetime

from caloron.domain import breadcrumbs
from caloron.domain.actions import ReportProgress
from caloron.domain.discarding import KEY
from caloron.domain.observations import CommentSeen, marker_key
from caloron.domain.retro import verification_of
from caloron.domain.sprint import State, Step, Task, pull_of
from caloron.domain.texts import comment_body
from caloron.domain.turn import Turn
from caloron.domain.why import why

_KEPT = 20
_LONGEST = 200


def progress_key(sprint: str, task: str) -> str:
    """The marker of the comment; all updates have the same."""
    return f"comment/{sprint}/{task}/progress"


def report(turn: Turn) -> None:
    """Keep the moves of this turn, and tell them where the task has its issue."""
    for move in turn.moves:
        task = turn.state.tasks.get(move.task)
        if task is not None:
            line = move.new if move.old == move.new else f"{move.old} → {move.new}"
            text = f"{line}: {move.reason}" if move.reason else line
            step = Step(at=turn.now, what=" ".join(text.split())[:_LONGEST])
            task.trail, task.moved = (*task.trail, step)[-_KEPT:], task.moved + 1
    for task in turn.state.tasks.values():
        if task.issue is not None and task.reported != task.moved:
            _report(turn, task, task.issue)


def _report(turn: Turn, task: Task, issue: int) -> None:
    task.reported = task.moved
    sprint = turn.sprint
    marker = progress_key(sprint.id, task.id)
    prefix = KEY if sprint.discarded else ""
    turn.do(
        ReportProgress(
            key=f"{prefix}progress/{sprint.id}/{task.id}/{task.moved}",
            task=task.id,
            issue=issue,
            comment=_comment_of(turn, task, issue),
            marker=marker,
            body=comment_body(page(turn.state, task), marker),
        )
    )


def _comment_of(turn: Turn, task: Task, issue: int) -> int | None:
    """The comment as it was seen: it need not be looked for."""
    key = progress_key(turn.sprint.id, task.id)
    found = [
        seen.id
        for seen in turn.state.objects.values()
        if isinstance(seen, CommentSeen)
        and seen.issue == issue
        and seen.author == turn.sprint.author
        and marker_key(seen.body) == key
    ]
    return min(found, default=None)


def page(state: State, task: Task) -> str:
    """What the ledger knows of a task, for people who read it on the forge."""
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in _rows(state, task) if value)
    lines = [f"**{task.id}** is **{task.status}**.", f"| | |\n|---|---|\n{rows}"]
    if task.crumbs:
        lines.append(_work(state, task))
    if task.trail:
        moves = "\n".join(f"- {_time(step.at)} {_prose(step.what)}" for step in task.trail)
        lines.append(f"<details><summary>How it came here</summary>\n\n{moves}\n\n</details>")
    return "\n\n".join(lines)


def _work(state: State, task: Task) -> str:
    """What was done so far: a row for each piece of work."""
    heading = "| | work | agent | attempts | commit | outcome |\n|---|---|---|---|---|---|"
    found = breadcrumbs.rows(state, task)
    return "\n".join([heading, *(f"| {' | '.join(map(_cell, row))} |" for row in found)])


def _rows(state: State, task: Task) -> list[tuple[str, str]]:
    sprint, pull = state.sprint, pull_of(state, task)
    framework = task.plan.framework or sprint.framework
    spent = task.spent
    tokens = spent.tokens_in + spent.tokens_out
    return [
        ("status", str(task.status)),
        ("waits for", why(state, task)),
        ("stopped at", breadcrumbs.stopped_at(task)),
        ("then follows", breadcrumbs.next_step(task)),
        ("agent", f"{task.agent} ({framework})" if framework else task.agent),
        ("at work", task.work.role if task.work else ""),
        ("attempts", str(_attempts(state, task) or "")),
        ("review round", str(len(task.reviewed)) if task.reviewed else ""),
        ("branch", f"`{task.branch}`" if task.branch else ""),
        ("pull request", f"#{task.pull} {pull.state if pull else ''}".strip() if task.pull else ""),
        ("head", f"`{task.head[:12]}`" if task.head else ""),
        ("verified", _verified(state, task)),
        ("cost", f"${spent.usd:.2f}, {tokens} tokens" if spent.usd or tokens else ""),
        ("depends on", ", ".join(task.plan.depends_on)),
    ]


def _attempts(state: State, task: Task) -> int:
    """Agents and verifications that were started for it, each time again."""
    prefix = f"{state.sprint.id}/{task.id}/"
    return sum(times for item, times in state.attempts.items() if item.startswith(prefix))


def _verified(state: State, task: Task) -> str:
    found = verification_of(task)
    line = state.sprint.verify_line
    return f"{found} (`{line.replace('`', chr(39))}`)" if found and line else found


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|")


def _prose(text: str) -> str:
    """One line that cannot be taken for anything but text; mentions and links of others do not."""
    line = " ".join(text.split())[:_LONGEST]
    return line.replace("<", "&lt;").replace("@", "@\u200b")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
