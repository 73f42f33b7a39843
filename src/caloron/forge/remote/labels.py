"""The labels of the git protocol, created once also on a forge that allows duplicates."""

from __future__ import annotations

import threading
from contextlib import suppress

from caloron.errors import ForgeError, NotFound
from caloron.forge.api import types
from caloron.forge.api.base import ForgeApi
from caloron.forge.http import ForgeHttp, Refused

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
    """Lists the labels before it creates one, one thread at a time, and remembers them."""

    def __init__(self, http: ForgeHttp, api: ForgeApi) -> None:
        self._http = http
        self._api = api
        self._known: dict[str, types.Label] = {}
        self._lock = threading.Lock()

    def of(self, names: tuple[str, ...]) -> list[types.Label]:
        """The labels of these names; missing ones are created."""
        with self._lock:
            if any(name not in self._known for name in names):
                self._list()
                missing = [n for n in dict.fromkeys((*_MEANINGS, *names)) if n not in self._known]
                self._keep_the_oldest([made for name in missing if (made := self._create(name))])
            return [self._known[name] for name in names]

    def forget(self) -> None:
        """List the labels again: one of them was deleted."""
        with self._lock:
            self._known.clear()

    def _list(self) -> None:
        listed = [
            label
            for _, page in self._http.pages("labels", self._api.page, types.Label)
            for label in page
        ]
        # Of several labels with one name, the oldest is used.
        for label in sorted(listed, key=lambda label: -label.id):
            self._known[label.name] = label

    def _keep_the_oldest(self, made: list[types.Label]) -> None:
        """Delete our label if another client created the same one earlier.

        Only Gitea allows duplicates; it identifies labels by a number.
        """
        if not made or not isinstance(self._api.label_reference(made[0]), int):
            return
        self._list()
        for label in made:
            if self._known[label.name].id < label.id:
                with suppress(NotFound):
                    self._http.change("DELETE", f"labels/{label.id}")

    def _create(self, name: str) -> types.Label | None:
        """Create a label; None: another client was faster."""
        body = {"name": name, "color": _COLOUR, "description": _MEANINGS.get(name, "")}
        try:
            made = self._http.change("POST", "labels", body).read(types.Label)
        except Refused as refusal:
            if refusal.status != 422:
                raise
            # GitHub refuses a second one.
            self._list()
            if name not in self._known:
                raise
            return None
        if made.name != name:
            raise ForgeError(f"{self._http.breaker.host} made the label {made.name}, not {name}")
        self._known[name] = made
        return made
