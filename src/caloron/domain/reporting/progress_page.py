"""How far a task is: one comment on its issue, and a section in its pull request's description.

The section comes with the second cycle: one wake needs no trail.
"""

from __future__ import annotations

from datetime import UTC, datetime

from caloron.domain.model.effects import Describe, ReportProgress, StartWork
from caloron.domain.model.snapshots import CommentSnapshot, has_section
from caloron.domain.model.sprint import State, is_ours
from caloron.domain.model.task import StatusLogEntry, Task
from caloron.domain.reporting import work_log
from caloron.domain.reporting.explain import why
from caloron.domain.reporting.forge_texts import comment_body
from caloron.domain.reporting.kpis import verification_of
from caloron.domain.rules.discard import KEY
from caloron.domain.rules.evaluation import Evaluation
from caloron.slicing import cut_smaller

_KEPT = 20
_LONGEST = 200


def progress_key(sprint: str, task: str) -> str:
    """The marker of the comment; all updates have the same."""
    return f"comment/{sprint}/{task}/progress"


def report(evaluation: Evaluation) -> None:
    """Record the moves of this evaluation, and report them on the issues of the tasks."""
    for move in evaluation.moves:
        task = evaluation.state.tasks.get(move.task)
        if task is not None:
            line = move.new if move.old == move.new else f"{move.old} → {move.new}"
            text = f"{line}: {move.reason}" if move.reason else line
            step = StatusLogEntry(at=evaluation.now, what=" ".join(text.split())[:_LONGEST])
            task.log.status, task.log.moved = (*task.log.status, step)[-_KEPT:], task.log.moved + 1
    started = {action.task for action in evaluation.actions if isinstance(action, StartWork)}
    for task in evaluation.state.tasks.values():
        _see_section(evaluation, task)
        if task.links.issue is not None and task.log.reported != task.log.moved:
            cycle = work_log.cycle_of(evaluation.state, task, waking=task.id in started)
            # A wake that was told and then not wanted any more stays told.
            task.log.cycle = max(task.log.cycle, cycle)
            _report(evaluation, task, task.links.issue)
            _describe(evaluation, task)


def _report(evaluation: Evaluation, task: Task, issue: int) -> None:
    task.log.reported = task.log.moved
    sprint = evaluation.sprint
    marker = progress_key(sprint.id, task.id)
    prefix = KEY if sprint.discard.by else ""
    evaluation.do(
        ReportProgress(
            key=f"{prefix}progress/{sprint.id}/{task.id}/{task.log.moved}",
            task=task.id,
            issue=issue,
            comment=_comment_of(evaluation, task, issue),
            marker=marker,
            body=comment_body(page(evaluation.state, task, evaluation.now), marker),
        )
    )


def section_name(sprint: str, task: str) -> str:
    """What the section in the description of a task's pull request is called."""
    return f"{sprint}/{task}"


def _see_section(evaluation: Evaluation, task: Task) -> None:
    """Once it was seen there, it is a person who takes it out, and it stays out."""
    if task.links.pull is not None and task.links.described_pull != task.links.pull:
        pull = evaluation.state.pull_of(task)
        if pull and has_section(pull.body, section_name(evaluation.sprint.id, task.id)):
            task.links.described_pull = pull.number


def _describe(evaluation: Evaluation, task: Task) -> None:
    """Tell it in the description too, where the pull request is ours and took more cycles."""
    sprint, pull = evaluation.sprint, evaluation.state.pull_of(task)
    if pull is None or not is_ours(sprint, pull) or task.log.cycle <= 1:
        return
    prefix = KEY if sprint.discard.by else ""
    evaluation.do(
        Describe(
            key=f"{prefix}describe/{pull.number}/{task.log.moved}",
            task=task.id,
            number=pull.number,
            is_pull=True,
            section=section_name(sprint.id, task.id),
            text=section_text(evaluation.state, task, evaluation.now),
            add=task.links.described_pull != pull.number,
        )
    )


def _comment_of(evaluation: Evaluation, task: Task, issue: int) -> int | None:
    """The comment as it was seen: it need not be looked for."""
    seen = evaluation.marked(CommentSnapshot, progress_key(evaluation.sprint.id, task.id))
    return seen.id if seen and seen.issue == issue else None


def page(state: State, task: Task, now: float) -> str:
    """What the ledger knows of a task, for people who read it on the forge."""
    told = _rows(state, task, now)
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in told if value)
    lines = [f"**{task.id}** is **{task.status}**.", f"| | |\n|---|---|\n{rows}"]
    if task.log.work:
        lines.append(_work(state, task))
    if task.log.status:
        moves = "\n".join(f"- {_time(step.at)} {_prose(step.what)}" for step in task.log.status)
        lines.append(f"<details><summary>How it came here</summary>\n\n{moves}\n\n</details>")
    return "\n\n".join(lines)


def section_text(state: State, task: Task, now: float) -> str:
    """The trail of work that took more than one cycle, for people who read the change."""
    told = [
        ("waits for", why(state, task, now)),
        ("stopped at", work_log.stopped_at(task)),
        ("then follows", work_log.next_step(task)),
        ("too large", cut_smaller(task.log.cycle)),
    ]
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in told if value)
    lines = [
        f"### Cycle {task.log.cycle} of {task.agent}",
        f"**{task.id}** is **{task.status}**.",
        f"| | |\n|---|---|\n{rows}" if rows else "",
        _work(state, task) if task.log.work else "",
    ]
    return "\n\n".join(line for line in lines if line)


def _work(state: State, task: Task) -> str:
    """What was done so far: a row for each piece of work."""
    heading = "| | work | agent | attempts | commit | outcome |\n|---|---|---|---|---|---|"
    found = work_log.rows(state, task)
    return "\n".join([heading, *(f"| {' | '.join(map(_cell, row))} |" for row in found)])


def _rows(state: State, task: Task, now: float) -> list[tuple[str, str]]:
    sprint, pull = state.sprint, state.pull_of(task)
    framework = task.plan.framework or sprint.settings.framework
    spent = task.usage.spent
    tokens = spent.tokens_in + spent.tokens_out
    return [
        ("status", str(task.status)),
        ("waits for", why(state, task, now)),
        ("stopped at", work_log.stopped_at(task)),
        ("then follows", work_log.next_step(task)),
        ("agent", f"{task.agent} ({framework})" if framework else task.agent),
        ("cycle", str(task.log.cycle or "")),
        ("too large", cut_smaller(task.log.cycle)),
        ("at work", task.work.role if task.work else ""),
        ("attempts", str(_attempts(state, task) or "")),
        ("review round", str(len(task.review.reviewed)) if task.review.reviewed else ""),
        ("branch", f"`{task.change.branch}`" if task.change.branch else ""),
        (
            "pull request",
            f"#{task.links.pull} {pull.state if pull else ''}".strip() if task.links.pull else "",
        ),
        ("head", f"`{task.change.head[:12]}`" if task.change.head else ""),
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
    line = state.sprint.main_health.verify_line
    return f"{found} (`{line.replace('`', chr(39))}`)" if found and line else found


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|")


def _prose(text: str) -> str:
    """One line that cannot be taken for anything but text; mentions and links of others do not."""
    line = " ".join(text.split())[:_LONGEST]
    return line.replace("<", "&lt;").replace("@", "@\u200b")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
