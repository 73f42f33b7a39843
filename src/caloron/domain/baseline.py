"""Main as the sprint finds it: verified before money is spent, so that nobody pays for old red."""

from __future__ import annotations

import msgspec

from caloron.domain.actions import StartWork
from caloron.domain.facts import WorkEnded
from caloron.domain.sprint import Work, enter
from caloron.domain.turn import Turn

_MAX_RUNS = 2


def advance(turn: Turn) -> bool:
    """Have main verified once; True while that is not decided."""
    sprint = turn.sprint
    if sprint.baseline:
        return False
    if sprint.baseline_work is None and not sprint.stopped:
        sprint.baseline_tries += 1
        item = f"{sprint.id}/baseline/{sprint.baseline_tries}-verify"
        _start(turn, Work(item=item, role="verify", since=turn.now))
    return True


def look_again(turn: Turn) -> None:
    """Have main verified by itself, as it is now: a result on top of it is red."""
    if turn.sprint.baseline_work is None:
        turn.sprint.baseline_tries += 1
        item = f"{turn.sprint.id}/baseline/{turn.sprint.baseline_tries}-verify"
        _start(turn, Work(item=item, role="verify", since=turn.now), "is main itself red?")


def _looked(turn: Turn, fact: WorkEnded, *, red: bool) -> None:
    sprint = turn.sprint
    if not red or fact.fault:
        # Where main cannot be looked at, a change is judged by its own result.
        sprint.green_main = fact.base or turn.main_commit()
        return
    last = "it ran out of time" if fact.timed_out else fact.over or fact.last_line
    by = f" by {fact.by}" if fact.by else ""
    sprint.red_main = fact.base
    sprint.red_line = (
        f"{sprint.main} itself is red since {fact.base[:12]}{by}:"
        f" {last or f'exit code {fact.exit_code}'}"
    )


def _start(turn: Turn, work: Work, reason: str = "") -> None:
    turn.sprint.baseline_work = work
    turn.do(StartWork(task="", work=work, priority=4000, reason=reason))


def ended(turn: Turn, fact: WorkEnded) -> None:
    """Green, red, or nothing to verify; a red one is looked at once more."""
    sprint, work = turn.sprint, turn.sprint.baseline_work
    if work is None or work.item != fact.item or fact.token <= work.taken_in:
        return
    work = msgspec.structs.replace(work, taken_in=fact.token)
    red = bool(fact.fault or fact.exit_code or fact.timed_out or fact.over)
    if red and work.asks < _MAX_RUNS:
        again = msgspec.structs.replace(work, asks=work.asks + 1)
        _start(turn, again, "main is red: run again")
        return
    sprint.baseline_work = None
    if sprint.baseline:
        _looked(turn, fact, red=red)
        return
    sprint.verify_line = fact.how
    if not red:
        sprint.green_main = fact.base
        sprint.baseline = fact.skipped or "green"
    elif sprint.allow_red and not fact.fault:
        sprint.baseline = "red"
    else:
        last = fact.fault or fact.over or fact.last_line or f"exit code {fact.exit_code}"
        last = "it ran out of time" if fact.timed_out else last
        what = "main could not be verified" if fact.fault else "main is red before the sprint"
        sprint.stopped, sprint.stopped_log = f"{what}: {last}", fact.log
        sprint.stopped_by = "" if fact.fault else "red main"
        enter(sprint, "ended")
        sprint.ended_at = turn.now


def tolerates(turn: Turn, ok: bool) -> bool:
    """Whether a red result may pass: only while main is red itself, as the user allowed."""
    return not ok and turn.sprint.baseline == "red"
