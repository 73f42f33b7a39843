"""The report for an agent that wakes, its breadcrumb, and the list of its past cycles. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from caloron.cycles.state import CycleState, Entry, apply, summary
from caloron.slicing import SLICE_AFTER, cut_smaller, to_slice


class Report(NamedTuple):
    """The last cycle, as the next one needs to know it."""

    agent: str
    #: The cycle that reads the report; 0: none is open.
    cycle_number: int
    #: `first` (none before), `ended`, `crashed`, `open`, or `unknown` (only its number is left).
    outcome: str
    last_cycle: int = 0
    last_step: str = ""
    last_step_result: str = ""
    last_result: str = ""
    reason: str = ""
    artefacts: tuple[str, ...] = ()
    ended_at: str = ""
    work_in_progress: str = ""
    work_cycles: int = 0
    slice_it: bool = False
    next_target: str = ""
    stop: str = ""

    def as_data(self) -> dict[str, Any]:
        return self._asdict() | {"artefacts": list(self.artefacts), "text": self.text()}

    def text(self) -> str:
        """The report as text for a prompt."""
        opening = f"No cycle of {self.agent} is open."
        if self.cycle_number:
            opening = f"This is cycle {self.cycle_number} of {self.agent}."
        lines = [opening, self._how_it_ended()]
        if self.work_in_progress:
            cycles = f", for {self.work_cycles} cycles now" if self.work_cycles > 1 else ""
            lines.append(f"In progress: {self.work_in_progress}{cycles}.")
        if self.slice_it:
            lines.append(
                f"That is more than {SLICE_AFTER} cycles: slice it. Finish a part that can stand "
                "alone, commit it, and name the rest as the next target."
            )
        if self.next_target:
            lines.append(f"To do next: {self.next_target}.")
        if self.stop:
            lines.append(f"Stop was requested: {self.stop}. End this cycle and begin no other.")
        return "\n".join(filter(None, lines))

    def _how_it_ended(self) -> str:
        number, step = self.last_cycle, self.last_step
        if self.outcome == "first":
            return "There was none before."
        if self.outcome == "unknown":
            return f"Cycle {number} was the last; nothing more is known of it."
        if self.outcome == "crashed":
            known = (
                f"its last known step was: {step} ({self.last_step_result})"
                if step
                else "no step of it is known"
            )
            why = f" ({self.reason})" if self.reason else ""
            return f"Cycle {number} crashed{why}; {known}. Look how that was left before you go on."
        if self.outcome == "open":
            return f"Cycle {number} is still open; its last step: {step or 'none yet'}."
        left = f" It left: {', '.join(self.artefacts).rstrip('.')}." if self.artefacts else ""
        why = f" Reason: {self.reason}." if self.reason else ""
        last = f"; its last step: {step} ({self.last_step_result})" if step else ""
        return f"Cycle {number} ended as {self.last_result}{last}.{left}{why}"


def report_of(state: CycleState, *, stop: str = "") -> Report:
    """Report the cycle before an open one, else the last one."""
    at_work = state.status == "open"
    last = state.previous if at_work else summary(state) if state.cycle_number else None
    report = Report(
        state.agent,
        state.cycle_number if at_work else 0,
        "first",
        work_in_progress=state.work_in_progress,
        work_cycles=state.work_cycles,
        slice_it=to_slice(state.work_cycles),
        next_target=state.next_target,
        stop=stop,
    )
    if last is None:
        return report
    status = str(last.get("status", "ended"))
    return report._replace(
        outcome="unknown" if status == "none" else status,
        last_cycle=int(last.get("cycle_number", 0)),
        last_step=str(last.get("last_action", "")),
        last_step_result=str(last.get("last_action_result", "")),
        last_result=str(last.get("result", "")),
        reason=str(last.get("reason", "")),
        artefacts=tuple(map(str, last.get("artefacts", ()))),
        ended_at=str(last.get("ended_at", "")),
    )


class Breadcrumb(NamedTuple):
    """The text that a cycle leaves at its task; the key is the same for the same cycle."""

    task: str
    key: str
    text: str


def breadcrumb(state: CycleState) -> Breadcrumb | None:
    """The breadcrumb of the last cycle for readers of the task; None without work in progress."""
    if not state.work_in_progress:
        return None
    lines = [
        f"**{state.agent}, cycle {state.cycle_number}** ({state.work_cycles} on this so far)",
        f"- last step: {state.last_action or 'none'} ({state.last_action_result or 'no result'})",
        *(f"- left: {artefact}" for artefact in state.artefacts),
    ]
    if state.next_target:
        lines.append(f"- next: {state.next_target}")
    if flag := cut_smaller(state.work_cycles):
        lines.append(f"- {flag}")
    if state.status == "crashed":
        lines.append("- this cycle crashed; the next one looks how it was left")
    key = f"{state.agent}/{state.work_in_progress}/{state.cycle_number}"
    # One line each: a heading or a fence in an agent's text would swallow the text below it.
    text = "\n".join(" ".join(line.split()) for line in lines)
    return Breadcrumb(state.work_in_progress, key, text)


class PastCycle(NamedTuple):
    """One cycle; `result` is empty while the cycle is open and if it crashed."""

    number: int
    status: str
    result: str
    started_at: str
    ended_at: str
    work: str
    steps: int
    last_action: str
    reason: str


def past_cycles(entries: Iterable[Entry], count: int) -> list[PastCycle]:
    """The last cycles that begin in these log entries, the newest first."""
    cycles: dict[int, PastCycle] = {}
    state = CycleState("")
    for entry in entries:
        state = apply(state, entry)
        number = state.cycle_number
        if entry["event"] == "begin" or number in cycles:
            work = cycles[number].work if number in cycles else ""
            cycles[number] = PastCycle(
                number=number,
                status=state.status,
                result=state.result,
                started_at=state.started_at,
                ended_at=state.ended_at,
                work=state.work_in_progress or work,
                steps=state.steps,
                last_action=state.last_action if state.steps else "",
                reason=state.reason,
            )
    return list(reversed(cycles.values()))[:count]
