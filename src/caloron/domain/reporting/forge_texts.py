"""The bodies and comments that Caloron writes on the forge, and their keys."""

from __future__ import annotations

from caloron.domain.model.snapshots import marker
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.task import Task

#: The prefix of the keys of effects that are still done for a discarded sprint.
DISCARD_KEY = "discard/"


def issue_key(sprint: str, task: str) -> str:
    return f"issue/{sprint}/{task}"


def escalation_key(sprint: str, task: str, incident: int) -> str:
    return f"escalation/{sprint}/{task}/{incident}"


def pull_key(sprint: str, task: str, generation: int) -> str:
    return f"pull/{sprint}/{task}/{generation}"


def revert_pull_key(sprint: str, task: str, number: int) -> str:
    return f"revert-pull/{sprint}/{task}/{number}"


def merge_message(pull: int, title: str) -> str:
    return f"Merge pull request #{pull}: {title}"


def merge_message_for(state: State, head: str) -> str:
    """The message of the commit that will merge this head, as far as its pull request is known."""
    for task in state.tasks.values():
        revert = task.merge.revert
        if task.change.head == head and task.links.pull is not None:
            return merge_message(task.links.pull, pull_title(task))
        if revert is not None and revert.head == head and revert.pull is not None:
            return merge_message(revert.pull, revert_title(task))
    return f"Merge {head[:12]}"


def unmarked(text: str) -> str:
    """Text of others that cannot be taken for a marker of ours."""
    return text.replace("<!--", "<! --")


def issue_body(sprint: Sprint, task: Task) -> str:
    plan = task.plan
    depends = ", ".join(f"`{d}`" for d in plan.depends_on) or "nothing"
    criteria = "\n".join(f"- [ ] {line}" for line in plan.acceptance)
    parts = [
        f"Task `{plan.id}` of sprint `{sprint.id}` ({plan.kind}), depends on {depends}.",
        unmarked(plan.agent_prompt),
        f"### Acceptance\n{unmarked(criteria)}" if criteria else "",
        marker(issue_key(sprint.id, plan.id)),
    ]
    return "\n\n".join(part for part in parts if part)


def pull_title(task: Task) -> str:
    return f"[{task.id}] {task.plan.title}"


def pull_body(sprint: Sprint, task: Task) -> str:
    key = pull_key(sprint.id, task.id, task.links.generation)
    return f"Closes #{task.links.issue}\n\nAgent: caloron-agent-{task.agent}\n\n{marker(key)}"


def revert_title(task: Task) -> str:
    tasks = task.merge.revert.tasks if task.merge.revert else ()
    if len(tasks) > 1:
        return f"Revert {len(tasks)} tasks: {', '.join(tasks)}"
    return f"Revert #{task.links.pull}: {pull_title(task)}"


def revert_body(sprint: Sprint, task: Task, number: int, line: str) -> str:
    key, revert = revert_pull_key(sprint.id, task.id, number), task.merge.revert
    if revert and revert.by:
        what = ", ".join(f"`{name}`" for name in revert.tasks)
        return f"Reverts {what} of sprint `{sprint.id}`, as {revert.by} asked.\n\n{marker(key)}"
    return (
        f"Takes #{task.links.pull} out again:"
        " main moved before it was merged, and is red with it.\n\n"
        f"**Verification of main:** {unmarked(line)}\n\n"
        f"The change comes back, put right, in a new pull request.\n\n{marker(key)}"
    )


def escalation_body(sprint: Sprint, task: Task, reason: str) -> str:
    key = escalation_key(sprint.id, task.id, task.escalation.number)
    number = "" if task.links.issue is None else f" (#{task.links.issue})"
    return (
        f"Task `{task.id}`{number} of sprint `{sprint.id}` needs a person.\n\n"
        f"**Reason:** {unmarked(reason)}\n\n"
        "When the cause is gone, comment `resolved` here; the task then goes on.\n\n"
        f"{marker(key)}"
    )


def comment_body(text: str, key: str) -> str:
    return f"{unmarked(text)}\n\n{marker(key)}"
