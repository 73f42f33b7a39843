"""The feedback of an agent about its task, and its form on the forge."""

from __future__ import annotations

import json
import re
from typing import Literal, get_args

import msgspec

Assessment = Literal["completed", "partial", "blocked", "failed", "crashed"]
ASSESSMENTS: tuple[Assessment, ...] = get_args(Assessment)

#: Characters that JSON keeps and YAML cannot read, and `<`, which could begin a marker of ours.
_TO_ESCAPE = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|<"
)

#: Rounds repeat themselves; a task keeps this many.
_MOST_BLOCKERS = 20
_LONGEST_NOTES = 8000


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's own judgement of an attempt, with the numbers that Caloron measured."""

    task_id: str = ""
    agent_role: str = ""
    #: From 1 to 10; 0: not rated.
    task_clarity: int = 0
    blockers: tuple[str, ...] = ()
    tools_used: tuple[str, ...] = ()
    tokens_consumed: int = 0
    time_to_complete_min: int = 0
    #: `crashed` is written for an agent that gave no feedback.
    self_assessment: Assessment = "partial"
    notes: str = ""


def joined(before: Feedback | None, now: Feedback) -> Feedback:
    """Join the feedback of all rounds of a task: the lowest clarity, all blockers and notes.

    The last assessment counts, because the others are about work that was done again.
    """
    if before is None:
        return now
    clarities = [f.task_clarity for f in (before, now) if f.task_clarity]
    notes = dict.fromkeys((*before.notes.splitlines(), *now.notes.splitlines()))
    return msgspec.structs.replace(
        now,
        task_clarity=min(clarities, default=0),
        notes="\n".join(notes)[:_LONGEST_NOTES],
        blockers=tuple(dict.fromkeys((*before.blockers, *now.blockers)))[:_MOST_BLOCKERS],
        tools_used=tuple(dict.fromkeys((*before.tools_used, *now.tools_used)))[:_MOST_BLOCKERS],
        tokens_consumed=before.tokens_consumed + now.tokens_consumed,
        time_to_complete_min=before.time_to_complete_min + now.time_to_complete_min,
    )


def feedback_yaml(feedback: Feedback) -> str:
    """Return the block of a feedback comment: YAML between two lines `---`."""
    lines = (
        f"  {name}: {_scalar(value)}" for name, value in msgspec.structs.asdict(feedback).items()
    )
    return "\n".join(("---", "caloron_feedback:", *lines, "---"))


def _scalar(value: str | int | tuple[str, ...]) -> str:
    """Return a value as YAML on one line: JSON is YAML, but for a few characters."""
    text = json.dumps(value, ensure_ascii=False)
    return _TO_ESCAPE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
