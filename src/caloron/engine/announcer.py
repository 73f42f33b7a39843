"""Tells whoever looks on what concerns the whole sprint, each once when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable

from caloron.domain.outages import Outage
from caloron.domain.pauses import clock_time
from caloron.domain.sprint import State

_BASELINES = {
    "green": "main is green: {line}",
    "red": "main is RED ({line}) and you allowed that: red results can be merged until it is green",
    "unverified": "NOTHING IS VERIFIED: no tests were found, so results are merged on their review"
    " alone; say how with: caloron config set verify LINE",
    "off": "verification is switched off (verify = none): results are merged on their review alone",
    "none": "main holds nothing to verify yet",
}


class Announcer:
    """Knows what was told last; the moves of tasks are told by others."""

    def __init__(
        self, tell: Callable[[str], None], state: State, *, switched_off: bool = False
    ) -> None:
        self._switched_off = switched_off
        self._tell = tell
        self._baseline = state.sprint.baseline
        self._paused: dict[str, float] = {}
        self._looks_back = False
        self._outage = ""

    def look(self, state: State, outage: Outage | None) -> None:
        self._tell_baseline(state)
        self._tell_retro(state)
        self._tell_pauses(state)
        self._tell_outage(str(outage or ""))

    def _tell_baseline(self, state: State) -> None:
        found = state.sprint.baseline
        if found != self._baseline and found in _BASELINES and state.sprint.phase != "ended":
            which = "off" if found == "unverified" and self._switched_off else found
            self._tell(_BASELINES[which].format(line=state.sprint.verify_line))
        self._baseline = found

    def _tell_retro(self, state: State) -> None:
        asked = state.sprint.phase == "retro"
        if asked and not self._looks_back:
            self._tell("every result is in; a model looks back (Ctrl-C ends without it)")
        self._looks_back = asked

    def _tell_pauses(self, state: State) -> None:
        found = {name: pause.until for name, pause in state.sprint.paused.items()}
        for name, until in found.items():
            if self._paused.get(name) != until and until > time.time():
                what = state.sprint.paused[name].what
                self._tell(
                    f"{name}: {what}; nobody asks it until {clock_time(until)}, then all goes on"
                )
        self._paused = found

    def _tell_outage(self, outage: str) -> None:
        if outage and outage != self._outage:
            self._tell(f"{outage}; everything waits and goes on by itself")
        elif self._outage and not outage:
            self._tell("the forge answers again")
        self._outage = outage
