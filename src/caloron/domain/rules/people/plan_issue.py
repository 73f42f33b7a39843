"""A plan that waits for approval, shown as an issue: approved, edited or closed there.

The tasks stand in the issue twice: as a table to read, and as one block of JSON to edit. Only the
block is read back. Editing an issue of ours needs write access, so edits are trusted.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

import msgspec

from caloron.domain.compat.plan_forms import Plan, parse_plan_file
from caloron.domain.model.effects import CloseIssue, CreateIssue, EditIssue
from caloron.domain.model.plan import PlannedTask, PlanProblem
from caloron.domain.model.snapshots import IssueSnapshot, marker
from caloron.domain.model.sprint import PlanApproval, Sprint
from caloron.domain.model.status import SETTLED
from caloron.domain.reporting import forge_texts
from caloron.domain.rules import planning
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.people.commands import APPROVE, command_of

LABEL = "caloron:plan"
#: Forges refuse longer bodies; such a plan is edited on the command line.
MAX_BODY = 60_000
_MAX_ROWS = 100
_BLOCK = re.compile(r"^```[a-z]*[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^\| task \| title \|.*\n(?:\|.*\n)*", re.MULTILINE)


def plan_key(sprint: str) -> str:
    return f"plan/{sprint}"


def advance(evaluation: Evaluation) -> None:
    """Show the plan, and follow what people did to its issue: edit, approve, close."""
    sprint = evaluation.sprint
    if sprint.phase != "approval":
        return
    if sprint.planning.approval is None:
        _show(evaluation)
    issue = _issue(evaluation)
    if issue is None:
        return
    _read_edit(evaluation, issue)
    _rewrite(evaluation, issue)
    declined = (issue.closed_by or "a person") if issue.state == "closed" else ""
    _update(evaluation, declined=declined)
    _obey(evaluation, issue)


def conclude(evaluation: Evaluation) -> None:
    """List the issues of the tasks on the issue of a plan that runs, and close it."""
    sprint, tasks = evaluation.sprint, evaluation.state.tasks.values()
    approval = sprint.planning.approval
    if approval is None or approval.concluded or sprint.phase in ("planning", "approval"):
        return
    issue = _issue(evaluation)
    if issue is None or any(t.links.issue is None and t.status not in SETTLED for t in tasks):
        return
    _update(evaluation, concluded=True)
    listed = "\n".join(f"- {f'#{t.links.issue} ' if t.links.issue else ''}`{t.id}`" for t in tasks)
    _post(evaluation, issue, "approved", f"Approved. The tasks of this plan:\n\n{listed}")
    key = f"close/{plan_key(sprint.id)}"
    evaluation.do(CloseIssue(key=key, task="", issue=issue.number))


def _approval(evaluation: Evaluation) -> PlanApproval:
    return evaluation.sprint.planning.approval or PlanApproval()


def _update(evaluation: Evaluation, **changes: Any) -> None:
    approval = msgspec.structs.replace(_approval(evaluation), **changes)
    evaluation.sprint.planning.approval = approval


def _issue(evaluation: Evaluation) -> IssueSnapshot | None:
    """Find the issue of the plan by its marker the first time, then by its number."""
    if _approval(evaluation).number is None:
        issue = evaluation.marked(IssueSnapshot, plan_key(evaluation.sprint.id))
        _update(evaluation, number=issue.number if issue else None)
    return evaluation.state.issue(_approval(evaluation).number)


def _plan(evaluation: Evaluation) -> tuple[PlannedTask, ...]:
    return tuple(task.plan for task in evaluation.state.tasks.values())


def _show(evaluation: Evaluation) -> None:
    sprint, plan = evaluation.sprint, _plan(evaluation)
    _update(evaluation, written=_digest(block_of(plan)))
    title = f"Plan of sprint {sprint.id}: {' '.join(sprint.goal.split())}"
    evaluation.do(
        CreateIssue(
            key=plan_key(sprint.id),
            task="",
            title=title if len(title) <= 200 else f"{title[:199]}…",
            body=body_of(sprint, plan),
            labels=(LABEL,),
        )
    )


def _read_edit(evaluation: Evaluation, issue: IssueSnapshot) -> None:
    """Replace the plan with an edited block, or answer with all errors of the block."""
    approval = _approval(evaluation)
    body = issue.body.replace("\r\n", "\n")
    match = _BLOCK.search(body)
    block = match[1] if match else ""
    digest = _digest(block)
    too_long = not block and len(block_of(_plan(evaluation))) > MAX_BODY
    if digest == approval.block or too_long:
        return
    _update(evaluation, block=digest, edits=approval.edits + 1, faulty=False)
    if digest == approval.written:
        return
    try:
        plan = parse_block(block, evaluation.sprint.settings.frameworks)
    except PlanProblem as problem:
        _update(evaluation, faulty=True)
        errors = "\n".join(f"- {error}" for error in problem.errors)
        text = f"This plan cannot be run; the one before still stands:\n\n{errors}"
        _post(evaluation, issue, f"refused/{approval.edits}", text)
        return
    planning.replace_plan(evaluation, plan.tasks)
    _update(evaluation, written=_digest(block_of(plan.tasks)))
    # The text that people wrote around the table stays.
    table = forge_texts.unmarked(table_of(plan.tasks)) + "\n"
    new = _TABLE.sub(lambda _: table, body, count=1)
    if new != body:
        _edit(evaluation, issue, f"table-{approval.edits}", new)
    notes = "".join(f"\n- {warning}" for warning in plan.warnings)
    text = f"The plan is now:\n\n{table_of(plan.tasks)}\n{notes}"
    _post(evaluation, issue, f"edited/{approval.edits}", text)


def _rewrite(evaluation: Evaluation, issue: IssueSnapshot) -> None:
    """Show a plan that was changed elsewhere, such as at the terminal."""
    approval, plan = _approval(evaluation), _plan(evaluation)
    digest = _digest(block_of(plan))
    if digest != approval.written:
        _update(evaluation, written=digest, edits=approval.edits + 1, faulty=False)
        _edit(evaluation, issue, str(approval.edits), body_of(evaluation.sprint, plan))


def _edit(evaluation: Evaluation, issue: IssueSnapshot, cause: str, body: str) -> None:
    key = f"edit/{plan_key(evaluation.sprint.id)}/{cause}"
    evaluation.do(EditIssue(key=key, task="", issue=issue.number, old=issue.body, body=body))


def _obey(evaluation: Evaluation, issue: IssueSnapshot) -> None:
    for comment in evaluation.comments_on(issue.number):
        approval, command = _approval(evaluation), command_of(comment)
        if not command or comment.object in approval.handled:
            continue
        _update(evaluation, handled=(*approval.handled, comment.object))
        if command == APPROVE and not approval.faulty:
            _update(evaluation, declined="")
            planning.run_plan(evaluation)
            return
        why = f"a plan is approved with `{APPROVE}`, changed by editing it, or closed"
        if command == APPROVE:
            why = "the block above cannot be run; correct it first"
        text = f"`{command}` changes nothing: {why}."
        _post(evaluation, issue, f"answer/{comment.id}", text)


def _post(evaluation: Evaluation, issue: IssueSnapshot, cause: str, text: str) -> None:
    key = f"comment/{plan_key(evaluation.sprint.id)}/{cause}"
    evaluation.post_comment(issue.number, key, text)


def _digest(block: str) -> str:
    """Return a digest that does not depend on the line ends of a forge."""
    lines = (line.rstrip() for line in block.strip().splitlines())
    return sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()[:16]


def body_of(sprint: Sprint, plan: tuple[PlannedTask, ...]) -> str:
    block = block_of(plan)
    editable = (
        "To change it, edit this block in this issue; it is checked before it counts.\n\n"
        f"```json\n{block}\n```"
        if len(block) <= MAX_BODY
        else f"It is too long to be edited here: `caloron resume {sprint.id} --edit`."
    )
    return "\n\n".join(
        (
            f"Sprint `{sprint.id}`: {forge_texts.unmarked(sprint.goal)}",
            forge_texts.unmarked(table_of(plan)),
            f"**To run it, comment `{APPROVE}`.** To decline it, close this issue.",
            forge_texts.unmarked(editable),
            marker(plan_key(sprint.id)),
        )
    )


def table_of(plan: tuple[PlannedTask, ...]) -> str:
    """Return the tasks as a table; of a very long plan the first ones."""
    lines = ["| task | title | depends on | kind | framework |", "|---|---|---|---|---|"]
    for task in plan[:_MAX_ROWS]:
        title = " ".join(task.title.replace("|", "\\|").split())
        depends = ", ".join(task.depends_on) or "-"
        lines.append(
            f"| `{task.id}` | {title} | {depends} | {task.kind} | {task.framework or '-'} |"
        )
    if len(plan) > _MAX_ROWS:
        lines.append(f"| … | and {len(plan) - _MAX_ROWS} more | | | |")
    return "\n".join(lines)


def block_of(plan: tuple[PlannedTask, ...]) -> str:
    """Return the plan as JSON that people can edit: texts of several lines are lists of lines."""
    tasks = []
    for task in plan:
        fields = msgspec.to_builtins(task)
        prompt = fields.pop("agent_prompt")
        kept = {k: v for k, v in fields.items() if v or k in ("id", "title", "depends_on")}
        kept["agent_prompt"] = prompt.split("\n") if "\n" in prompt else prompt
        tasks.append(kept)
    return json.dumps(tasks, indent=2, ensure_ascii=False)


def parse_block(block: str, frameworks: tuple[str, ...]) -> Plan:
    """Read the plan in a block like one in a file; `PlanProblem` names every error."""
    if not block.strip():
        raise PlanProblem(["there is no block of JSON between ``` lines any more"])
    try:
        raw = json.loads(block)
    except (ValueError, RecursionError) as error:
        raise PlanProblem([f"the block is not JSON: {error}"]) from error
    for task in raw if isinstance(raw, list) else ():
        lines = task.get("agent_prompt") if isinstance(task, dict) else None
        if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
            task["agent_prompt"] = "\n".join(lines)
    return parse_plan_file(raw, frameworks=frameworks)
