"""What an agent says about its task, and the text it becomes on the forge."""

from __future__ import annotations

import json
import re
from typing import Literal, get_args

import msgspec

Assessment = Literal["completed", "partial", "blocked", "failed", "crashed"]
ASSESSMENTS: tuple[Assessment, ...] = get_args(Assessment)

#: What JSON leaves as it is and YAML does not read back, and what would open an HTML comment:
#: our own comments are known by a marker in one.
_TO_ESCAPE = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|<"
)

#: Rounds repeat themselves; a task keeps this many.
_MOST_BLOCKERS = 20
_LONGEST_NOTES = 8000


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt in the agent's own judgement; numbers that Caloron measured are its own."""

    task_id: str = ""
    agent_role: str = ""
    #: From 1 to 10; 0: it did not say.
    task_clarity: int = 0
    blockers: tuple[str, ...] = ()
    tools_used: tuple[str, ...] = ()
    tokens_consumed: int = 0
    time_to_complete_min: int = 0
    #: `crashed` is never an agent's own word: there was none.
    self_assessment: Assessment = "partial"
    notes: str = ""


def joined(before: Feedback | None, now: Feedback) -> Feedback:
    """The feedback of all rounds of a task: the lowest clarity, each blocker and each note.

    The assessment is that of the last round: the others are about work that was done again.
    """
    if before is None:
        return now
    clarities = [said.task_clarity for said in (before, now) if said.task_clarity]
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
    """The block of a feedback comment: YAML between two lines `---`."""
    lines = (
        f"  {name}: {_scalar(value)}" for name, value in msgspec.structs.asdict(feedback).items()
    )
    return "\n".join(("---", "caloron_feedback:", *lines, "---"))


def _scalar(value: str | int | tuple[str, ...]) -> str:
    """A value as YAML on one line: JSON is YAML, but for a few characters."""
    text = json.dumps(value, ensure_ascii=False)
    return _TO_ESCAPE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
