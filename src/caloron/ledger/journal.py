"""The journal of effects: each is planned, intended, done, and recorded."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from caloron.domain.model.effects import Effect, Probe
from caloron.domain.model.facts import EffectFailed, Fact
from caloron.ledger.ledger import SQL, Ledger, append_facts, plan_effect
from caloron.store import queue
from caloron.store.database import with_prefix

_effect_of = msgspec.json.Decoder(Effect | Probe).decode

#: The key that is set for each sprint of a restored ledger.
LOOK_FIRST = "look_first/{}"


class Entry(msgspec.Struct, frozen=True):
    """One effect and its progress."""

    id: int
    effect: Effect | Probe
    kind: str
    #: It may have been done before a crash: check that before doing it.
    intended: bool
    not_before: float


class Journal:
    """The journal of one sprint, as the executor uses it."""

    def __init__(self, ledger: Ledger, sprint: str) -> None:
        self.ledger = ledger
        self.sprint = sprint
        self.sql = SQL
        #: The ledger was restored: the forge may have effects that the ledger does not know.
        self.looks_first = bool(ledger.get(LOOK_FIRST.format(sprint)))

    def due(self) -> list[Entry]:
        """Return the next open effect of each task, in the order of planning."""
        rows = self.ledger.db.rows(self.sql["due_actions"], {"sprint": self.sprint})
        return [
            Entry(r["id"], _effect_of(r["data"]), r["kind"], bool(r["intended"]), r["not_before"])
            for r in rows
        ]

    def intend(self, entry: Entry) -> bool:
        """Record that an effect is about to be done; False if a newer one replaced it."""
        with self.ledger.db.transaction("effect.intend") as connection:
            return connection.execute(self.sql["intend_action"], {"id": entry.id}).rowcount > 0

    def record(self, entry: Entry, facts: Iterable[Fact], note: str = "") -> None:
        """Record that an effect is done, and append the facts that were observed."""
        self._end(entry, "done", facts, note)

    def refuse(self, entry: Entry, failure: EffectFailed, seen: Iterable[Fact] = ()) -> None:
        """Record that the forge refused an effect, after the facts that were observed."""
        # A merge that waits for CI is tried every few seconds: no event for that.
        quiet = failure.refusal == "waiting"
        self._end(entry, "failed", [*seen, failure], failure.message, quiet=quiet)

    def drop(self, entry: Entry, note: str) -> None:
        self._end(entry, "dropped", (), note)

    def _end(
        self, entry: Entry, state: str, facts: Iterable[Fact], note: str, *, quiet: bool = False
    ) -> None:
        with self.ledger.db.transaction("effect.record") as connection:
            values = {"id": entry.id, "state": state, "note": note[:500]}
            if connection.execute(self.sql["end_action"], values).rowcount == 0:
                return
            append_facts(connection, self.sprint, facts)
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
        """Try an effect again later: the forge did not answer, and may have acted."""
        with self.ledger.db.transaction("effect.postpone") as connection:
            values = {"id": entry.id, "not_before": not_before, "note": note[:500]}
            connection.execute(self.sql["postpone_action"], values)

    def waiting(self) -> list[tuple[str, str]]:
        """Return the tasks whose next effect waits for the forge, with the reason."""
        rows = self.ledger.db.rows(self.sql["waiting_actions"], {"sprint": self.sprint})
        return [(row["task"], row["note"]) for row in rows]


class CycleJournal(Journal):
    """The journal of an agent outside of a sprint: no tick consumes the observed facts."""

    def __init__(self, ledger: Ledger, agent: str) -> None:
        super().__init__(ledger, f"cycle/{agent}")
        self.sql = with_prefix(SQL, ("actions",), "cycle_")
        self.seen: list[Fact] = []

    def plan(self, effects: Iterable[Effect]) -> None:
        """Plan effects, except those that are planned or done already."""
        with self.ledger.db.transaction("breadcrumb") as connection:
            for effect in effects:
                plan_effect(connection, self.sql, self.sprint, effect)

    def record(self, entry: Entry, facts: Iterable[Fact], note: str = "") -> None:
        self.seen += facts
        super().record(entry, (), note)

    def fail(self, entry: Entry, reason: str) -> None:
        """Record that the forge refused an effect."""
        self._end(entry, "failed", (), reason)
