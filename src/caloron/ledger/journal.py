"""The journal of effects: intend, do, record; and what is found intended after a crash."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from caloron.domain.actions import Effect, Probe
from caloron.domain.facts import EffectFailed, Fact
from caloron.ledger.ledger import SQL, Ledger, plan_effect, tell
from caloron.store import queue
from caloron.store.statements import with_prefix

_effect_of = msgspec.json.Decoder(Effect | Probe).decode

#: Set for the sprints of a ledger that was restored.
LOOK_FIRST = "look_first/{}"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One effect and how far it got."""

    id: int
    sprint: str
    effect: Effect | Probe
    kind: str
    #: It may have been done already: look for it before doing it.
    intended: bool
    tries: int
    not_before: float


class Journal:
    """The executor's side of the ledger."""

    def __init__(self, ledger: Ledger, sprint: str) -> None:
        self.ledger = ledger
        self.sprint = sprint
        self.sql = SQL
        #: The ledger came from a backup: the forge may know of effects that it does not.
        self.looks_first = bool(ledger.get(LOOK_FIRST.format(sprint)))

    def due(self) -> list[Entry]:
        """The next open effect of each task, in the order they were planned."""
        rows = self.ledger.db.rows(self.sql["due_actions"], {"sprint": self.sprint})
        return [
            Entry(
                id=row["id"],
                sprint=self.sprint,
                effect=_effect_of(row["data"]),
                kind=row["kind"],
                intended=row["state"] == "intended",
                tries=row["tries"],
                not_before=row["not_before"],
            )
            for row in rows
        ]

    def intend(self, entry: Entry) -> bool:
        """It is about to be done; False if a newer one took its place meanwhile."""
        with self.ledger.db.transaction("effect.intend") as connection:
            return connection.execute(self.sql["intend_action"], {"id": entry.id}).rowcount > 0

    def record(self, entry: Entry, facts: Iterable[Fact], note: str = "") -> None:
        """It is done: say so, and tell the tick what is seen now."""
        self._end(entry, "done", facts, note)

    def refuse(self, entry: Entry, failure: EffectFailed, seen: Iterable[Fact] = ()) -> None:
        """The forge said no, for good; what is seen there now is told before."""
        # That it still waits is asked for every few seconds: nothing for the diary.
        quiet = failure.refusal == "waiting"
        self._end(entry, "failed", [*seen, failure], failure.message, quiet=quiet)

    def drop(self, entry: Entry, note: str) -> None:
        """It was not done, and will not be."""
        self._end(entry, "dropped", (), note)

    def _end(
        self, entry: Entry, state: str, facts: Iterable[Fact], note: str, *, quiet: bool = False
    ) -> None:
        with self.ledger.db.transaction("effect.record") as connection:
            values = {"id": entry.id, "state": state, "note": note[:500]}
            if connection.execute(self.sql["end_action"], values).rowcount == 0:
                return
            tell(connection, self.sprint, facts)
            if quiet:
                return
            payload = {
                "sprint": self.sprint,
                "task": entry.effect.task,
                "key": entry.effect.key,
                "kind": entry.kind,
                "note": note[:500],
            }
            queue.append_event(connection, f"effect_{state}", payload)

    def postpone(self, entry: Entry, not_before: float, note: str) -> None:
        """The forge did not answer: look again later, whether it acted is not known."""
        with self.ledger.db.transaction("effect.postpone") as connection:
            values = {"id": entry.id, "not_before": not_before, "note": note[:500]}
            connection.execute(self.sql["postpone_action"], values)

    def waiting(self) -> list[tuple[str, str]]:
        """Tasks whose next effect waits for the forge, and why."""
        rows = self.ledger.db.rows(self.sql["waiting_actions"], {"sprint": self.sprint})
        return [(row["task"], row["note"]) for row in rows]


class CycleJournal(Journal):
    """The same for an agent that works in no sprint: no tick is told what was seen."""

    def __init__(self, ledger: Ledger, agent: str) -> None:
        super().__init__(ledger, f"cycle/{agent}")
        self.sql = with_prefix(SQL, ("actions",), "cycle_")
        self.seen: list[Fact] = []

    def plan(self, effects: Iterable[Effect]) -> None:
        """What is to be done next; what is known already is not done again."""
        with self.ledger.db.transaction("breadcrumb") as connection:
            for effect in effects:
                plan_effect(connection, self.sql, self.sprint, effect)

    def record(self, entry: Entry, facts: Iterable[Fact], note: str = "") -> None:
        self.seen += facts
        super().record(entry, (), note)

    def fail(self, entry: Entry, why: str) -> None:
        """The forge said no, for good."""
        self._end(entry, "failed", (), why)
