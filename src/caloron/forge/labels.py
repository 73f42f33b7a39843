"""The labels of the git protocol: made once on a forge that would make them twice."""

from __future__ import annotations

import threading
from contextlib import suppress

from caloron.errors import ForgeError, NotFound
from caloron.forge import answers
from caloron.forge.dialect import Dialect
from caloron.forge.http import Http, Refused

_COLOUR = "0366d6"
_MEANINGS = {
    "caloron:task": "a task of a sprint",
    "caloron:assigned": "an agent has it",
    "caloron:in-progress": "being worked on",
    "caloron:blocked": "cannot go on",
    "caloron:review-pending": "waits for a review",
    "caloron:changes-requested": "a review asked for changes",
    "caloron:merge-ready": "may be merged",
    "caloron:done": "done",
    "caloron:escalated": "needs a person",
    "caloron:stalled": "its agent is silent",
    "caloron:plan": "a plan that waits for a person",
    "caloron:sprint-cancelled": "its sprint was given up",
}


class Labels:
    """Looks before it makes a label, one thread at a time, and then remembers them all."""

    def __init__(self, http: Http, dialect: Dialect) -> None:
        self._http = http
        self._dialect = dialect
        self._known: dict[str, answers.Label] = {}
        self._lock = threading.Lock()

    def of(self, names: tuple[str, ...]) -> list[answers.Label]:
        """The labels of these names, all of them there now."""
        with self._lock:
            if any(name not in self._known for name in names):
                self._look()
                missing = [n for n in dict.fromkeys((*_MEANINGS, *names)) if n not in self._known]
                self._keep_the_oldest([made for name in missing if (made := self._make(name))])
            return [self._known[name] for name in names]

    def forget(self) -> None:
        """Somebody removed one: look again."""
        with self._lock:
            self._known.clear()

    def _look(self) -> None:
        found = [
            label
            for _, page in self._http.pages("labels", self._dialect.page, answers.Label)
            for label in page
        ]
        # Of several with one name, the oldest.
        for label in sorted(found, key=lambda one: -one.id):
            self._known[label.name] = label

    def _keep_the_oldest(self, made: list[answers.Label]) -> None:
        """Somebody else may have made the same ones meanwhile: whoever was later takes theirs back.

        Gitea alone lets that happen; it knows labels by a number.
        """
        if not made or not isinstance(self._dialect.label_reference(made[0]), int):
            return
        self._look()
        for label in made:
            if self._known[label.name].id < label.id:
                with suppress(NotFound):
                    self._http.change("DELETE", f"labels/{label.id}")

    def _make(self, name: str) -> answers.Label | None:
        """Make one; None: somebody else was faster."""
        body = {"name": name, "color": _COLOUR, "description": _MEANINGS.get(name, "")}
        try:
            made = self._http.change("POST", "labels", body).read(answers.Label)
        except Refused as refusal:
            if refusal.status != 422:
                raise
            # GitHub refuses a second one.
            self._look()
            if name not in self._known:
                raise
            return None
        if made.name != name:
            raise ForgeError(f"{self._http.line.host} made the label {made.name}, not {name}")
        self._known[name] = made
        return made
