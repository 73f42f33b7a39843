"""A plan that waits for a person's yes as an issue on the forge: approved, edited or closed there.

The tasks stand in the issue twice: as a table to read, and as one block of JSON to edit. Only the
block is read back. Who may edit an issue of ours may write to the repository, so edits are trusted.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

import msgspec

from caloron.domain.compat.plan_forms import Plan, parse_plan_file
from caloron.domain.model.effects import CloseIssue, CreateIssue, EditIssue, PostComment
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
_BLOCK = re.compile(r"^```[a-z]*[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^\| task \| title \|.*\n(?:\|.*\n)*", re.MULTILINE)
_replace = msgspec.structs.replace


def plan_key(sprint: str) -> str:
    return f"plan/{sprint}"


def advance(evaluation: Evaluation) -> None:
    """Show the plan, and follow what people did to its issue: edit, approve, close."""
    sprint = evaluation.sprint
    if sprint.phase != "approval" or not sprint.settings.plan_on_forge:
        return
    if sprint.planning.approval is None:
        _show(evaluation)
    issue = _issue(evaluation)
    if issue is None:
        return
    _take_in_edit(evaluation, issue)
    _rewrite(evaluation, issue)
    who = issue.closed_by or "a person" if issue.state == "closed" else ""
    _change(evaluation, declined=who)
    _obey(evaluation, issue)


def conclude(evaluation: Evaluation) -> None:
    """The plan runs: name the tasks' issues on the one that held it, and close it."""
    held = evaluation.sprint.planning.approval
    if held is None or held.concluded or evaluation.sprint.phase in ("planning", "approval"):
        return
    issue, tasks = _issue(evaluation), evaluation.state.tasks.values()
    if issue is None or any(t.links.issue is None and t.status not in SETTLED for t in tasks):
        return
    _change(evaluation, concluded=True)
    named = "\n".join(f"- {f'#{t.links.issue} ' if t.links.issue else ''}`{t.id}`" for t in tasks)
    _say(evaluation, issue.number, "approved", f"Approved. The tasks of this plan:\n\n{named}")
    key = f"close/{plan_key(evaluation.sprint.id)}"
    evaluation.do(CloseIssue(key=key, task="", issue=issue.number))


def _change(evaluation: Evaluation, **changes: Any) -> None:
    evaluation.sprint.planning.approval = _replace(
        evaluation.sprint.planning.approval or PlanApproval(), **changes
    )


def _issue(evaluation: Evaluation) -> IssueSnapshot | None:
    """The plan's issue: found by its marker once, and by its number from then on."""
    held = evaluation.sprint.planning.approval or PlanApproval()
    if held.number is None:
        issue = evaluation.marked(IssueSnapshot, plan_key(evaluation.sprint.id))
        _change(evaluation, number=issue.number if issue else None)
    held = evaluation.sprint.planning.approval or held
    seen = evaluation.state.objects.get(f"issue:{held.number}")
    return seen if isinstance(seen, IssueSnapshot) else None


def _plan(evaluation: Evaluation) -> tuple[PlannedTask, ...]:
    return tuple(task.plan for task in evaluation.state.tasks.values())


def _show(evaluation: Evaluation) -> None:
    sprint, plan = evaluation.sprint, _plan(evaluation)
    _change(evaluation, written=_digest(block_of(plan)))
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


def _take_in_edit(evaluation: Evaluation, issue: IssueSnapshot) -> None:
    """A block that nobody has judged yet replaces the plan, or is answered with all its errors."""
    held = evaluation.sprint.planning.approval
    found = _BLOCK.search(issue.body.replace("\r\n", "\n"))
    block = found[1] if found else ""
    digest = _digest(block)
    too_long = not block and len(block_of(_plan(evaluation))) > MAX_BODY
    if held is None or digest == held.block or too_long:
        return
    _change(evaluation, block=digest, edits=held.edits + 1, faulty=False)
    if digest == held.written:
        return
    try:
        plan = parse_block(block, evaluation.sprint.settings.frameworks)
    except PlanProblem as problem:
        _change(evaluation, faulty=True)
        errors = "\n".join(f"- {error}" for error in problem.errors)
        text = f"This plan cannot be run; the one before still stands:\n\n{errors}"
        _say(evaluation, issue.number, f"refused/{held.edits}", text)
        return
    planning.replace_plan(evaluation, plan.tasks)
    _change(evaluation, written=_digest(block_of(plan.tasks)))
    notes = "".join(f"\n- {warning}" for warning in plan.warnings)
    _retable(evaluation, issue, held.edits)
    text = f"The plan is now:\n\n{table_of(plan.tasks)}\n{notes}"
    _say(evaluation, issue.number, f"edited/{held.edits}", text)


def _retable(evaluation: Evaluation, issue: IssueSnapshot, number: int) -> None:
    """The table in the issue says what its block says; what people wrote around it stays."""
    body = issue.body.replace("\r\n", "\n")
    table = forge_texts.unmarked(table_of(_plan(evaluation))) + "\n"
    new = _TABLE.sub(lambda _: table, body, count=1)
    if new != body:
        key = f"edit/{plan_key(evaluation.sprint.id)}/table-{number}"
        evaluation.do(EditIssue(key=key, task="", issue=issue.number, old=issue.body, body=new))


def _rewrite(evaluation: Evaluation, issue: IssueSnapshot) -> None:
    """A plan that was changed elsewhere, such as at the terminal, is shown here too."""
    held, plan = evaluation.sprint.planning.approval, _plan(evaluation)
    digest = _digest(block_of(plan))
    if held is None or digest == held.written:
        return
    _change(evaluation, written=digest, edits=held.edits + 1, faulty=False)
    evaluation.do(
        EditIssue(
            key=f"edit/{plan_key(evaluation.sprint.id)}/{held.edits}",
            task="",
            issue=issue.number,
            old=issue.body,
            body=body_of(evaluation.sprint, plan),
        )
    )


def _obey(evaluation: Evaluation, issue: IssueSnapshot) -> None:
    for comment in evaluation.comments_on(issue.number):
        held, said = evaluation.sprint.planning.approval, command_of(comment)
        if held is None or not said or comment.object in held.handled:
            continue
        _change(evaluation, handled=(*held.handled, comment.object))
        if said == APPROVE and not held.faulty:
            _change(evaluation, declined="")
            planning.run_plan(evaluation)
            return
        why = (
            "the block above cannot be run; correct it first"
            if said == APPROVE
            else f"a plan is approved with `{APPROVE}`, changed by editing it, or closed"
        )
        _say(evaluation, issue.number, f"answer/{comment.id}", f"`{said}` changes nothing: {why}.")


def _say(evaluation: Evaluation, issue: int, cause: str, text: str) -> None:
    key = f"comment/{plan_key(evaluation.sprint.id)}/{cause}"
    evaluation.do(
        PostComment(key=key, task="", issue=issue, body=forge_texts.comment_body(text, key))
    )


def _digest(block: str) -> str:
    """One block whatever a forge does to the ends of its lines."""
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
    """The tasks to read; of a plan with very many the first ones."""
    rows = [
        f"| `{task.id}` | {_cell(task.title)} | {', '.join(task.depends_on) or '-'} |"
        f" {task.kind} | {task.framework or '-'} |"
        for task in plan[:100]
    ]
    more = [f"| … | and {len(plan) - 100} more | | | |"] if len(plan) > 100 else []
    head = ["| task | title | depends on | kind | framework |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, *more])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def block_of(plan: tuple[PlannedTask, ...]) -> str:
    """The plan as JSON that people can edit: texts of several lines are lists of lines."""
    shown = []
    for task in plan:
        fields = msgspec.to_builtins(task)
        prompt = fields.pop("agent_prompt")
        kept = {k: v for k, v in fields.items() if v or k in ("id", "title", "depends_on")}
        kept["agent_prompt"] = prompt.split("\n") if "\n" in prompt else prompt
        shown.append(kept)
    return json.dumps(shown, indent=2, ensure_ascii=False)


def parse_block(block: str, frameworks: tuple[str, ...]) -> Plan:
    """The plan in a block, checked as one from a file is; `PlanProblem` names every error."""
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
