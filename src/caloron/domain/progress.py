"""How far a task is: one comment on its issue, and a section in its pull request's description.

The section comes with the second cycle: one wake needs no trail.
"""

from __future__ import annotations

from datetime import UTC, datetime

from caloron.domain import breadcrumbs
from caloron.domain.actions import Describe, ReportProgress, StartWork
from caloron.domain.discarding import KEY
from caloron.domain.observations import CommentSeen, marker_key
from caloron.domain.ours import is_ours
from caloron.domain.retro import verification_of
from caloron.domain.sections import has_section
from caloron.domain.sprint import State, Step, Task, pull_of
from caloron.domain.texts import comment_body
from caloron.domain.turn import Turn
from caloron.domain.why import why
from caloron.slicing import cut_smaller

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
    started = {action.task for action in turn.actions if isinstance(action, StartWork)}
    for task in turn.state.tasks.values():
        _see_section(turn, task)
        if task.issue is not None and task.reported != task.moved:
            cycle = breadcrumbs.cycle_of(turn.state, task, waking=task.id in started)
            # A wake that was told and then not wanted any more stays told.
            task.cycle = max(task.cycle, cycle)
            _report(turn, task, task.issue)
            _describe(turn, task)


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
            body=comment_body(page(turn.state, task, turn.now), marker),
        )
    )


def section_name(sprint: str, task: str) -> str:
    """What the section in the description of a task's pull request is called."""
    return f"{sprint}/{task}"


def _see_section(turn: Turn, task: Task) -> None:
    """Once it was seen there, it is a person who takes it out, and it stays out."""
    if task.pull is not None and task.described != task.pull:
        pull = pull_of(turn.state, task)
        if pull and has_section(pull.body, section_name(turn.sprint.id, task.id)):
            task.described = pull.number


def _describe(turn: Turn, task: Task) -> None:
    """Tell it in the description too, where the pull request is ours and took more cycles."""
    sprint, pull = turn.sprint, pull_of(turn.state, task)
    if pull is None or not is_ours(sprint, pull) or task.cycle <= 1:
        return
    prefix = KEY if sprint.discarded else ""
    turn.do(
        Describe(
            key=f"{prefix}describe/{pull.number}/{task.moved}",
            task=task.id,
            number=pull.number,
            is_pull=True,
            section=section_name(sprint.id, task.id),
            text=section_text(turn.state, task, turn.now),
            add=task.described != pull.number,
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


def page(state: State, task: Task, now: float) -> str:
    """What the ledger knows of a task, for people who read it on the forge."""
    told = _rows(state, task, now)
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in told if value)
    lines = [f"**{task.id}** is **{task.status}**.", f"| | |\n|---|---|\n{rows}"]
    if task.crumbs:
        lines.append(_work(state, task))
    if task.trail:
        moves = "\n".join(f"- {_time(step.at)} {_prose(step.what)}" for step in task.trail)
        lines.append(f"<details><summary>How it came here</summary>\n\n{moves}\n\n</details>")
    return "\n\n".join(lines)


def section_text(state: State, task: Task, now: float) -> str:
    """The trail of work that took more than one cycle, for people who read the change."""
    told = [
        ("waits for", why(state, task, now)),
        ("stopped at", breadcrumbs.stopped_at(task)),
        ("then follows", breadcrumbs.next_step(task)),
        ("too large", cut_smaller(task.cycle)),
    ]
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in told if value)
    lines = [
        f"### Cycle {task.cycle} of {task.agent}",
        f"**{task.id}** is **{task.status}**.",
        f"| | |\n|---|---|\n{rows}" if rows else "",
        _work(state, task) if task.crumbs else "",
    ]
    return "\n\n".join(line for line in lines if line)


def _work(state: State, task: Task) -> str:
    """What was done so far: a row for each piece of work."""
    heading = "| | work | agent | attempts | commit | outcome |\n|---|---|---|---|---|---|"
    found = breadcrumbs.rows(state, task)
    return "\n".join([heading, *(f"| {' | '.join(map(_cell, row))} |" for row in found)])


def _rows(state: State, task: Task, now: float) -> list[tuple[str, str]]:
    sprint, pull = state.sprint, pull_of(state, task)
    framework = task.plan.framework or sprint.framework
    spent = task.spent
    tokens = spent.tokens_in + spent.tokens_out
    return [
        ("status", str(task.status)),
        ("waits for", why(state, task, now)),
        ("stopped at", breadcrumbs.stopped_at(task)),
        ("then follows", breadcrumbs.next_step(task)),
        ("agent", f"{task.agent} ({framework})" if framework else task.agent),
        ("cycle", str(task.cycle or "")),
        ("too large", cut_smaller(task.cycle)),
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
    """Agents that were started for it, each time again; a verification is no agent."""
    prefix = f"{state.sprint.id}/{task.id}/"
    return sum(
        times
        for item, times in state.attempts.items()
        if item.startswith(prefix) and not item.endswith("-verify")
    )


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
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
