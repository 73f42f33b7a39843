"""The agent of a sprint in memory: it ends its work as a test scripted it."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any


class FakeAgent:
    """Ends work as scripted; otherwise authors commit a change and reviewers approve."""

    def __init__(self) -> None:
        #: Role and task of all work that was done, the oldest first.
        self.calls: list[tuple[str, str]] = []
        self._script: dict[tuple[str, str], deque[dict[str, Any]]] = defaultdict(deque)

    def on(self, role: str, task: str = "", **end: Any) -> FakeAgent:
        """Script the next end of work in this role, of one task or of any.

        `end` holds arguments of `SprintDriver.end`, such as `answer="CHANGES_NEEDED: add a test"`.
        """
        self._script[role, task].append(end)
        return self

    def respond(self, role: str, task: str) -> dict[str, Any]:
        """Return how this work ends; a scripted end is used once."""
        self.calls.append((role, task))
        for key in ((role, task), (role, "")):
            if self._script[key]:
                return self._script[key].popleft()
        return {}
