"""The bodies and comments that Caloron writes on the forge, the messages of its commits, and keys.

Text of agents comes last in what it is part of, or is closed: it changes nothing around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

from caloron.domain.model.snapshots import inert, marker
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Criterion, Task
from caloron.domain.reporting.waiting import verification_of

#: The prefix of the keys of effects that are still done for a discarded sprint.
DISCARD_KEY = "discard/"
_LONGEST_LINE = 500


def issue_key(sprint: str, task: str) -> str:
    return f"issue/{sprint}/{task}"


def escalation_key(sprint: str, task: str, incident: int) -> str:
    return f"escalation/{sprint}/{task}/{incident}"


def pull_key(sprint: str, task: str, generation: int) -> str:
    return f"pull/{sprint}/{task}/{generation}"


def revert_pull_key(sprint: str, task: str, number: int) -> str:
    return f"revert-pull/{sprint}/{task}/{number}"


def section_name(sprint: str, task: str) -> str:
    """Return the name of our section in the description of a task's pull request."""
    return f"{sprint}/{task}"


def unmarked(text: str) -> str:
    """Text of others that cannot be taken for a marker of ours."""
    return text.replace("<!--", "<! --")


def issue_body(sprint: Sprint, task: Task) -> str:
    plan = task.plan
    depends = ", ".join(f"`{d}`" for d in plan.depends_on) or "nothing"
    criteria = "\n".join(f"- [ ] {line}" for line in plan.acceptance)
    parts = [
        f"Task `{plan.id}` of sprint `{sprint.id}` ({plan.kind}), depends on {depends}.",
        source_line(sprint),
        unmarked(plan.agent_prompt),
        f"### Acceptance\n{unmarked(criteria)}" if criteria else "",
        marker(issue_key(sprint.id, plan.id)),
    ]
    return "\n\n".join(part for part in parts if part)


def pull_title(task: Task) -> str:
    return f"[{task.id}] {task.plan.title}"


def pull_body(sprint: Sprint, task: Task) -> str:
    key = pull_key(sprint.id, task.id, task.links.generation)
    parts = (
        f"Closes #{task.links.issue}",
        source_line(sprint),
        f"Agent: caloron-agent-{task.agent}",
        marker(key),
    )
    return "\n\n".join(filter(None, parts))


def change_text(task: Task) -> str:
    """Describe a change for people who read it: summary, acceptance, verification."""
    criteria, verification = _criteria(task), _verification(task)
    parts = (
        f"### Summary\n\n{_summary(task)}" if task.change.summaries else "",
        "### Acceptance\n\n" + "\n".join(f"- {line}" for line in criteria) if criteria else "",
        f"### Verification\n\n{verification}" if verification else "",
    )
    return "\n\n".join(filter(None, parts))


def change_digest(task: Task) -> str:
    """Return a digest of the description, to notice that it has to be updated; empty: no text."""
    text = change_text(task)
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16] if text else ""


_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_HEADING = re.compile(r"[ \t]*#{1,6}[ \t]+(.+)")
#: A tag could open a part of the page that hides the rest.
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def _summary(task: Task) -> str:
    first, *later = task.change.summaries
    rounds = (f"**Later round {n}:** {_contained(text)}" for n, text in enumerate(later, 1))
    return "\n\n".join((_contained(first), *rounds))


def _contained(text: str) -> str:
    """Return Markdown of others that has no headings and leaves nothing open."""
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        match = _FENCE.match(line)
        lines.append(line if match or fence else _HEADING.sub(r"**\1**", _without_tags(line)))
        if match and not fence:
            fence = match[1]
        elif match and match[1].startswith(fence):
            fence = ""
    return "\n".join((*lines, fence) if fence else lines)


def _without_tags(text: str) -> str:
    return _TAG.sub("<\u200b", text)


def criteria_of(task: Task) -> list[tuple[str, Criterion | None]]:
    """Return the acceptance criteria, with the answers of the reviewer about this head."""
    current = task.review.criteria_head == task.change.head
    answers = {c.number: c for c in task.review.criteria} if current else {}
    return [(text, answers.get(number)) for number, text in enumerate(task.plan.acceptance, 1)]


def _criteria(task: Task) -> list[str]:
    lines = []
    for criterion, answer in criteria_of(task):
        reason = f" ({answer.reason})" if answer and answer.reason else ""
        mark = "x" if answer and answer.met else " "
        lines.append(f"[{mark}] {_one_line(criterion + reason)}")
    return lines


def _verification(task: Task) -> str:
    """Return the command, its result and the commits that it is about; empty: none yet."""
    verified = task.merge.verified_head(task.change.head)
    if verified is None or not (result := verification_of(task)):
        return ""
    command = f"`{_one_line(verified.command).replace('`', chr(39))}`: " if verified.command else ""
    summary = f", {_one_line(verified.summary)}" if verified.summary else ""
    onto = f" merged into {verified.base[:12]}" if verified.base else ""
    return f"{command}{result}{summary} (commit {verified.head[:12]}{onto})"


def _one_line(text: str) -> str:
    text = _without_tags(" ".join(text.split()))
    return text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 1]}…"


def merge_message(sprint: Sprint, task: Task, pull: int) -> str:
    """Return the message of the commit that brings a change onto main.

    The first line has the number of the pull request, unless the forge is on this disk: people push
    main to other forges, where the number would name something else.
    """
    settings, title = sprint.settings, inert(pull_title(task))
    if settings.merge_style != "merge":
        # After a rebase the commits keep their own messages. This one is for a squash.
        title = inert(task.plan.title)
        subject = title if settings.forge_is_local else f"{title} (#{pull})"
    elif settings.forge_is_local:
        subject = f"Merge {title}"
    else:
        subject = f"Merge pull request #{pull}: {title}"
    parts = (
        " ".join(subject.split()),
        inert("\n\n".join(task.change.summaries)),
        inert("\n".join(("Acceptance:", *_criteria(task)))) if task.plan.acceptance else "",
        inert(f"Verification: {verification}") if (verification := _verification(task)) else "",
        commit_trailers(task.id),
    )
    return "\n\n".join(filter(None, parts)) + "\n"


def commit_trailers(task: str) -> str:
    """Return the last lines of the messages of commits for a task."""
    agent = f"caloron-agent-{task}"
    return f"Task: {task}\nAgent: {agent}\n{co_author(agent)}"


def co_author(agent: str) -> str:
    return f"Co-authored-by: {agent} <{agent}@localhost>"


def source_line(sprint: Sprint) -> str:
    """Name the issues that the goal was taken from; empty: there are none."""
    numbers = ", ".join(f"#{number}" for number in sprint.source_issues)
    return f"For {numbers}." if numbers else ""


def source_result(state: State) -> str:
    """The comment on the issues of the goal when the sprint has its result."""
    tasks = state.tasks.values()
    done = sum(task.status is Status.DONE for task in tasks)
    lines = [f"Sprint `{state.sprint.id}` finished {done} of {len(tasks)} tasks for this issue:\n"]
    for task in tasks:
        merged = f", merged in #{task.links.pull}" if task.links.pull else ""
        outcome = merged if task.status is Status.DONE else f": {task.status}"
        issue = f"#{task.links.issue} " if task.links.issue else ""
        lines.append(f"- {issue}{unmarked(' '.join(task.plan.title.split()))}{outcome}")
    return "\n".join(lines)


def revert_title(task: Task) -> str:
    tasks = task.merge.revert.tasks if task.merge.revert else ()
    if len(tasks) > 1:
        return f"Revert {len(tasks)} tasks: {', '.join(tasks)}"
    return f"Revert #{task.links.pull}: {pull_title(task)}"


def revert_subject(sprint: Sprint, task: Task) -> str:
    """Return the first line of the commits that revert a change."""
    if task.merge.revert and len(task.merge.revert.tasks) > 1:
        return revert_title(task)
    number = "" if sprint.settings.forge_is_local else f" #{task.links.pull}:"
    return f"Revert{number} {inert(pull_title(task))}"


def revert_merge_message(sprint: Sprint, task: Task, pull: int) -> str:
    """Return the message of the commit that merges a revert."""
    number = "" if sprint.settings.forge_is_local else f" pull request #{pull}:"
    return f"Merge{number} {revert_subject(sprint, task)}\n\nTask: {task.id}\n"


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


def unread_note(authors: Iterable[str]) -> str:
    """Return what a completed task says about comments that came too late."""
    return (
        f"No agent read the last comments of {', '.join(sorted(authors))}. For another change start"
        " a sprint, or open an issue with the label `caloron:task`."
    )


def comment_body(text: str, key: str) -> str:
    return f"{unmarked(text)}\n\n{marker(key)}"
