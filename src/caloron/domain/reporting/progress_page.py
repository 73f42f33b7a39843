"""The progress of a task: one comment on its issue, and a section in its pull request.

The section describes the change; from the second cycle on it has the history of the work, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from caloron.domain.model.effects import Describe, ReportProgress, StartWork
from caloron.domain.model.snapshots import CommentSnapshot, has_section
from caloron.domain.model.sprint import State, is_ours
from caloron.domain.model.status import SETTLED
from caloron.domain.model.task import StatusLogEntry, Task
from caloron.domain.reporting import work_log
from caloron.domain.reporting.explain import why
from caloron.domain.reporting.forge_texts import (
    DISCARD_KEY,
    change_digest,
    change_text,
    comment_body,
    section_name,
)
from caloron.domain.reporting.waiting import verification_of
from caloron.domain.rules.evaluation import Evaluation
from caloron.slicing import cut_smaller

_MAX_ENTRIES = 20
_LONGEST = 200


def progress_key(sprint: str, task: str) -> str:
    """Return the marker of the comment; all updates have the same."""
    return f"comment/{sprint}/{task}/progress"


def report(evaluation: Evaluation) -> None:
    """Record the moves of this evaluation, and report them on the issues of the tasks."""
    for move in evaluation.moves:
        if task := evaluation.state.tasks.get(move.task):
            line = move.new if move.old == move.new else f"{move.old} → {move.new}"
            text = f"{line}: {move.reason}" if move.reason else line
            entry = StatusLogEntry(at=evaluation.now, what=" ".join(text.split())[:_LONGEST])
            task.log.status = (*task.log.status, entry)[-_MAX_ENTRIES:]
            task.log.moved += 1
    started = {action.task for action in evaluation.actions if isinstance(action, StartWork)}
    for task in evaluation.state.tasks.values():
        _record_section(evaluation, task)
        moved = task.links.issue is not None and task.log.reported != task.log.moved
        if moved and task.links.issue is not None:
            cycle = work_log.cycle_of(evaluation.state, task, waking=task.id in started)
            # A cycle that was reported stays, also if its work was cancelled before it began.
            task.log.cycle = max(task.log.cycle, cycle)
            _report(evaluation, task, task.links.issue)
        if task.links.pull is not None and (moved or task.status not in SETTLED):
            _describe(evaluation, task, moved=moved)


def _record_section(evaluation: Evaluation, task: Task) -> None:
    """Remember a section that was seen: a person who removes it does not get it again."""
    pull = evaluation.state.pull_of(task)
    name = section_name(evaluation.sprint.id, task.id)
    if pull and pull.number != task.links.described_pull and has_section(pull.body, name):
        task.links.described_pull = pull.number


def _report(evaluation: Evaluation, task: Task, issue: int) -> None:
    task.log.reported = task.log.moved
    sprint = evaluation.sprint
    marker = progress_key(sprint.id, task.id)
    comment = evaluation.marked(CommentSnapshot, marker)
    prefix = DISCARD_KEY if sprint.discard.by else ""
    evaluation.do(
        ReportProgress(
            key=f"{prefix}progress/{sprint.id}/{task.id}/{task.log.moved}",
            task=task.id,
            issue=issue,
            comment=comment.id if comment and comment.issue == issue else None,
            marker=marker,
            body=comment_body(page(evaluation.state, task, evaluation.now), marker),
        )
    )


def _describe(evaluation: Evaluation, task: Task, *, moved: bool) -> None:
    """Update our section in the description of a pull request of ours."""
    sprint, pull = evaluation.sprint, evaluation.state.pull_of(task)
    digest = change_digest(task)
    outdated = digest != task.log.described or (moved and task.log.cycle > 1)
    if pull is None or not outdated or not is_ours(sprint, pull):
        return
    task.log.descriptions += 1
    task.log.described = digest
    prefix = DISCARD_KEY if sprint.discard.by else ""
    evaluation.do(
        Describe(
            key=f"{prefix}describe/{pull.number}/{task.log.moved}/{task.log.descriptions}",
            task=task.id,
            number=pull.number,
            is_pull=True,
            section=section_name(sprint.id, task.id),
            text=section_text(evaluation.state, task, evaluation.now),
            add=task.links.described_pull != pull.number,
        )
    )


def page(state: State, task: Task, now: float) -> str:
    """Return the progress of a task for people who read it on the forge."""
    lines = [f"**{task.id}** is **{task.status}**.", _table(_rows(state, task, now))]
    if task.log.work:
        lines.append(_work(state, task))
    if task.log.status:
        moves = "\n".join(f"- {_time(e.at)} {_prose(e.what)}" for e in task.log.status)
        lines.append(f"<details><summary>How it came here</summary>\n\n{moves}\n\n</details>")
    return "\n\n".join(lines)


def section_text(state: State, task: Task, now: float) -> str:
    """Describe a change, and the history of one that took several cycles."""
    if task.log.cycle <= 1:
        return change_text(task)
    rows = (*_next_rows(state, task, now), ("too large", cut_smaller(task.log.cycle)))
    lines = (
        change_text(task),
        f"### Cycle {task.log.cycle} of {task.agent}",
        f"**{task.id}** is **{task.status}**.",
        _table(rows) if any(value for _, value in rows) else "",
        _work(state, task) if task.log.work else "",
    )
    return "\n\n".join(filter(None, lines))


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = (f"| {name} | {_cell(value)} |" for name, value in rows if value)
    return "\n".join(("| | |", "|---|---|", *lines))


def _work(state: State, task: Task) -> str:
    """Return a table with a row for each piece of work."""
    heading = "| | work | agent | attempts | commit | outcome |\n|---|---|---|---|---|---|"
    rows = work_log.rows(state, task)
    return "\n".join([heading, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)])


def _next_rows(state: State, task: Task, now: float) -> tuple[tuple[str, str], ...]:
    return (
        ("waits for", why(state, task, now)),
        ("stopped at", work_log.stopped_at(task)),
        ("then follows", work_log.next_step(task)),
    )


def _rows(state: State, task: Task, now: float) -> list[tuple[str, str]]:
    framework = task.plan.framework or state.sprint.settings.framework
    pull, spent, head = state.pull_of(task), task.usage.spent, task.change.head
    number, reviews = task.links.pull, len(task.review.reviewed)
    # Verifications have no agent.
    items = f"{state.sprint.id}/{task.id}/"
    attempts = sum(
        times
        for item, times in state.attempts.items()
        if item.startswith(items) and not item.endswith("-verify")
    )
    return [
        ("status", str(task.status)),
        *_next_rows(state, task, now),
        ("agent", f"{task.agent} ({framework})" if framework else task.agent),
        ("cycle", str(task.log.cycle or "")),
        ("too large", cut_smaller(task.log.cycle)),
        ("at work", task.work.role if task.work else ""),
        ("attempts", str(attempts or "")),
        ("review round", str(reviews or "")),
        ("branch", f"`{task.change.branch}`" if task.change.branch else ""),
        ("pull request", f"#{number} {pull.state if pull else ''}".strip() if number else ""),
        ("head", f"`{head[:12]}`" if head else ""),
        ("verified", _verified(state, task)),
        ("cost", f"${spent.usd:.2f}, {spent.tokens} tokens" if spent.usd or spent.tokens else ""),
        ("depends on", ", ".join(task.plan.depends_on)),
    ]


def _verified(state: State, task: Task) -> str:
    result, line = verification_of(task), state.sprint.main_health.verify_line
    return f"{result} (`{line.replace('`', chr(39))}`)" if result and line else result


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|")


def _prose(text: str) -> str:
    """Escape Markdown so that text of others cannot mention users or create links."""
    line = " ".join(text.split())[:_LONGEST]
    return line.replace("<", "&lt;").replace("@", "@\u200b")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
