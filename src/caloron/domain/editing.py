"""The text of a task as its issue has it: read back, so that a person's edit is what counts."""

from __future__ import annotations

import re

import msgspec

from caloron.domain import texts
from caloron.domain.observations import IssueSeen, without_markers
from caloron.domain.plan import MAX_PROMPT, MAX_TITLE
from caloron.domain.sections import without_sections
from caloron.domain.sprint import Task
from caloron.domain.status import Status
from caloron.domain.strangers import may_change
from caloron.domain.turn import Turn
from caloron.domain.verdicts import take_back

_HEADER = re.compile(
    r"^Task `[^`\n]*` of sprint `[^`\n]*` \(\w+\), depends on [^\n]*\n", re.MULTILINE
)
_HEADING = re.compile(r"#{1,6}\s*acceptance\s*:?\s*", re.IGNORECASE)
_ITEM = re.compile(r"\s*[-*] \[[ xX]\]\s+(\S.*)")


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """What an issue asks for."""

    title: str
    prompt: str
    acceptance: tuple[str, ...]


def read_text(title: str, body: str) -> Text:
    """Title, prompt and checklist of an issue, without what Caloron itself wrote around them."""
    body = without_sections(body.replace("\r\n", "\n").replace("\0", ""))
    body = without_markers(body) + "\n"
    body = _HEADER.sub("", texts.unmarked(body), count=1)
    kept: list[str] = []
    acceptance: list[str] = []
    for line in body.splitlines():
        if item := _ITEM.fullmatch(line):
            acceptance.append(item[1].strip())
        elif not _HEADING.fullmatch(line):
            kept.append(line.rstrip())
    title = " ".join(title.replace("\0", "").split())[:MAX_TITLE] or "(no title)"
    prompt = "\n".join(kept).strip()[:MAX_PROMPT].rstrip()
    return Text(title=title, prompt=prompt or title, acceptance=tuple(acceptance))


def take_in_edit(turn: Turn, task: Task) -> None:
    """A person's text replaces the old one; what our reviewer approved on that is read again."""
    issue = turn.state.objects.get(f"issue:{task.issue}")
    # A word on a stranger's text may come after the text was read.
    if not isinstance(issue, IssueSeen) or (issue.trusted and issue.version <= task.read):
        return
    task.read = issue.version
    found = read_text(issue.title, issue.body)
    known = read_text(task.plan.title, texts.issue_body(turn.sprint, task))
    if task.status is Status.DONE or not may_change(turn, task, issue, same=found == known):
        return
    task.plan = msgspec.structs.replace(
        task.plan,
        title=found.title,
        agent_prompt=found.prompt,
        acceptance=found.acceptance,
    )
    task.edits += 1
    turn.acted(task, f"edit:{issue.version}")
    take_back(turn, task)
    turn.note(task, f"the text of issue #{issue.number} was changed")
