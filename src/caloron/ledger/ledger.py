"""The ledger of a project: sprints, tasks, observations, facts, and planned effects."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec

from caloron.domain.model.effects import (
    Action,
    CancelWork,
    Describe,
    Effect,
    HoldWork,
    Moved,
    Probe,
    ReportProgress,
    RetryEffect,
    StartWork,
)
from caloron.domain.model.facts import (
    Fact,
    PlanEdited,
    PlanSentBack,
    RunInterrupted,
    SprintDiscarded,
)
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.snapshots import Snapshot, observation_id
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.task import Task
from caloron.domain.reporting.waiting import Outage
from caloron.errors import CaloronError, NotFound
from caloron.ledger.reading import known_identity, outage_key, refuse_foreign
from caloron.ledger.upgrades import UPGRADES, data_migrations
from caloron.store import log, queue
from caloron.store.database import Database, load_statements, migrations_in
from caloron.store.files import write_atomic

_HERE = Path(__file__).parent
SQL = load_statements(_HERE / "sql" / "ledger.sql")
MIGRATIONS = (
    *queue.QUEUE_MIGRATIONS,
    *migrations_in(_HERE / "migrations", "ledger"),
    *data_migrations(UPGRADES),
)

#: Facts that one tick consumes; the next tick follows at once.
_FACTS_PER_TICK = 1000
#: The type of the event about an engine that was killed or crashed.
LOST_ENGINE = "engine_lost"

_encode = msgspec.json.Encoder().encode
_sprint_of = msgspec.json.Decoder(Sprint).decode
_task_of = msgspec.json.Decoder(Task).decode
_snapshot_of = msgspec.json.Decoder(Snapshot).decode
_fact_of = msgspec.json.Decoder(Fact).decode
#: Decodes the work of a queue item.
start_of = msgspec.json.Decoder(StartWork).decode


class StaleTick(CaloronError):
    """Another tick committed first: discard this one and run it again from `load`."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a tick starts from, and the facts that it consumes."""

    state: State
    version: int
    facts: tuple[Fact, ...]
    through: int
    agents: tuple[queue.InFlight, ...]


class TickCommit(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one tick changes."""

    state: State
    actions: tuple[Action, ...] = ()
    moves: tuple[Moved, ...] = ()
    #: The digest of the new state file, so that an edit is recognised.
    state_file_digest: str = ""
    #: The time in that file: with it, the same text can be written again.
    since: float = 0.0


class Ledger:
    """The database of one project. Each method that changes it is one transaction."""

    def __init__(self, path: Path) -> None:
        self.db = Database(path, MIGRATIONS)
        try:
            self._compare_identity(path)
        except BaseException:
            self.db.close()
            raise

    def _compare_identity(self, path: Path) -> None:
        """Give the ledger an identity, stored beside it too; refuse a foreign ledger."""
        known, own = known_identity(path), self.get("ledger_id")
        refuse_foreign(path, own, known)
        if not own:
            # `uuid` takes longer to import than all of this.
            own = os.urandom(16).hex()
            self.put("ledger_id", own)
        if not known:
            write_atomic(path.with_suffix(".id"), f"{own}\n".encode())

    def close(self) -> None:
        self.db.close()

    def create_sprint(self, sprint: Sprint, tasks: dict[str, Task], *, after: int = 0) -> Sprint:
        """Record a new sprint with its goal and, if there is one, its plan.

        Its number is the next one of this ledger, and higher than `after`.
        """
        with self.db.transaction("sprint") as connection:
            number = max(int(connection.execute(SQL["next_number"]).fetchone()[0]), after + 1)
            project = sprint.id
            sprint = msgspec.structs.replace(sprint, id=f"{project}-{number}", number=number)
            connection.execute(
                SQL["insert_sprint"],
                {
                    "id": sprint.id,
                    "number": number,
                    "goal": sprint.goal,
                    "phase": sprint.phase,
                    "created_at": sprint.settings.created_at,
                    "data": _encode(sprint),
                },
            )
            _put_tasks(connection, sprint.id, tasks, {})
            queue.append_event(
                connection, "sprint_created", {"sprint": sprint.id, "goal": sprint.goal}
            )
        return sprint

    def last_sprint(self) -> str:
        row = self.db.row(SQL["last_sprint"])
        if row is None:
            raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
        return str(row["id"])

    def has_sprints(self) -> bool:
        return self.db.row(SQL["last_sprint"]) is not None

    def unfinished(self) -> list[str]:
        """Return the sprints that have not ended."""
        return [str(row["id"]) for row in self.db.rows(SQL["unfinished_sprints"])]

    def load(self, sprint: str) -> Loaded:
        """Return state, waiting facts and running agents from one snapshot."""
        with self.db.snapshot() as connection:
            row = connection.execute(SQL["sprint"], {"sprint": sprint}).fetchone()
            if row is None:
                raise NotFound(f"there is no sprint {sprint}", hint="caloron history")
            facts = connection.execute(
                SQL["facts"], {"sprint": sprint, "limit": _FACTS_PER_TICK}
            ).fetchall()
            return Loaded(
                state=_state_of(connection, sprint, row["data"]),
                version=row["version"],
                facts=tuple(_fact_of(f["data"]) for f in facts),
                through=facts[-1]["id"] if facts else 0,
                agents=tuple(queue.in_flight(connection)),
            )

    def state(self, sprint: str) -> State:
        return self.load(sprint).state

    def commit_tick(self, loaded: Loaded, tick: TickCommit) -> None:
        """Commit the new state, consumed facts, effects and work in one transaction."""
        sprint = tick.state.sprint
        with self.db.transaction("tick") as connection:
            swapped = connection.execute(
                SQL["swap_sprint"],
                {
                    "sprint": sprint.id,
                    "version": loaded.version,
                    "phase": sprint.phase,
                    "ended_at": sprint.ended_at,
                    "data": _encode(sprint),
                },
            ).rowcount
            if not swapped:
                raise StaleTick(f"sprint {sprint.id} was changed by another tick")
            _put_tasks(connection, sprint.id, tick.state.tasks, loaded.state.tasks)
            _put_observations(connection, sprint.id, tick.state, loaded.state)
            connection.execute(
                SQL["forget_facts"], {"sprint": sprint.id, "through": loaded.through}
            )
            # Work that continues when a person releases its task.
            resumable = {
                task.escalation.resume_work.item
                for task in tick.state.tasks.values()
                if task.escalation.resume_work
            }
            for action in tick.actions:
                _put_action(connection, sprint.id, action, resumable)
            for move in tick.moves:
                payload = {"sprint": sprint.id, **msgspec.to_builtins(move)}
                queue.append_event(connection, "task_moved", payload)
            if sprint.phase != loaded.state.sprint.phase:
                payload = {"sprint": sprint.id, "phase": sprint.phase}
                queue.append_event(connection, "sprint_phase", payload)
            if tick.state_file_digest:
                remember_export(connection, sprint.id, tick.state_file_digest)
                remember_since(connection, sprint.id, tick.since)
        for move in tick.moves:
            log.info("a task moved", task=move.task, old=move.old, new=move.new, reason=move.reason)

    def append_facts(self, sprint: str, facts: Iterable[Fact]) -> int:
        """Append facts for the next tick, except those that wait already."""
        facts = tuple(facts)
        if not facts:
            return 0
        with self.db.transaction("inbox") as connection:
            return append_facts(connection, sprint, facts)

    def edit_plan(self, sprint: str, tasks: tuple[PlannedTask, ...], at: float) -> None:
        """Append a person's edit of the waiting plan as a fact and as an event."""
        payload = {"tasks": [task.id for task in tasks]}
        self._append("edit", sprint, "plan_edited", payload, PlanEdited(tasks=tasks, at=at))

    def send_back_plan(self, sprint: str, remark: str, at: float) -> None:
        """Append a person's remark on the waiting plan, which is made again with it."""
        fact = PlanSentBack(remark=remark, at=at)
        self._append("edit", sprint, "plan_sent_back", {"remark": remark}, fact)

    def discard(self, sprint: str, by: str) -> None:
        """Append a person's request to discard the sprint as a fact and as an event."""
        fact, key = SprintDiscarded(by=by), f"discarded/{sprint}"
        self._append("discard", sprint, "sprint_discarded", {"by": by}, fact, key=key)

    def note_lost_engine(self, sprint: str, since: str) -> None:
        """Append an event about an engine that was killed or crashed."""
        key = f"{LOST_ENGINE}/{sprint}/{since}"
        self._append("engine", sprint, LOST_ENGINE, {"since": since}, key=key)

    def _append(
        self,
        transaction: str,
        sprint: str,
        event: str,
        payload: dict[str, Any],
        *facts: Fact,
        key: str = "",
    ) -> None:
        """Append facts and an event about them in one transaction."""
        with self.db.transaction(transaction) as connection:
            append_facts(connection, sprint, facts)
            queue.append_event(connection, event, {"sprint": sprint} | payload, key=key)

    def store_outage(self, sprint: str, outage: Outage) -> None:
        """Store an outage of the forge, and append an event when it begins."""
        with self.db.transaction("outage") as connection:
            value = json.dumps(outage)
            connection.execute(SQL["put_kv"], {"key": outage_key(sprint), "value": value})
            payload = {"sprint": sprint, "what": str(outage), "detail": outage.detail}
            kind = "forge_quota" if outage.until is not None else "forge_silent"
            key = f"{kind}/{sprint}/{outage.since}"
            queue.append_event(connection, kind, payload, key=key)

    def end_outage(self, sprint: str) -> None:
        """Record that the forge answers again."""
        with self.db.transaction("outage") as connection:
            connection.execute(SQL["put_kv"], {"key": outage_key(sprint), "value": ""})
            queue.append_event(connection, "forge_answers", {"sprint": sprint})

    def get(self, key: str) -> str:
        row = self.db.row(SQL["get_kv"], {"key": key})
        return str(row["value"]) if row else ""

    def put(self, key: str, value: str) -> None:
        with self.db.transaction("kv") as connection:
            connection.execute(SQL["put_kv"], {"key": key, "value": value})


def append_facts(connection: sqlite3.Connection, sprint: str, facts: Iterable[Fact]) -> int:
    """Append facts within a transaction; return how many of them were new."""
    added = 0
    for fact in facts:
        values = {"sprint": sprint, "key": fact_id(fact), "data": _encode(fact)}
        added += connection.execute(SQL["append_fact"], values).rowcount
        if isinstance(fact, RunInterrupted):
            # Every report reads the cost of a run from its events.
            used = {"token": fact.token} | msgspec.to_builtins(fact.usage)
            key = f"reported/{fact.id}"
            queue.append_event(connection, "agent_reported", used, item=fact.item, key=key)
    return added


def fact_id(fact: Fact) -> str:
    return observation_id(fact) if isinstance(fact, Snapshot) else fact.id


def remember_export(connection: sqlite3.Connection, name: str, digest: str) -> None:
    """Store the digests of an exported file's last two texts: a crash may leave either on disk."""
    key = f"projection/{name}"
    row = connection.execute(SQL["get_kv"], {"key": key}).fetchone()
    last = row["value"].split()[-1:] if row else []
    if last != [digest]:
        connection.execute(SQL["put_kv"], {"key": key, "value": " ".join([*last, digest])})


def remember_since(connection: sqlite3.Connection, sprint: str, since: float) -> None:
    """Store the time in a state file, which cannot be derived."""
    connection.execute(SQL["put_kv"], {"key": f"since/{sprint}", "value": repr(since)})


def read_state(connection: sqlite3.Connection, sprint: str = "") -> State:
    """Return the state of a sprint, or of the last one, through a read-only connection."""
    if not sprint:
        row = connection.execute(SQL["last_sprint"]).fetchone()
        sprint = row["id"] if row else ""
    row = connection.execute(SQL["sprint"], {"sprint": sprint}).fetchone()
    if row is None:
        raise NotFound("there is no such sprint", hint="caloron history")
    return _state_of(connection, sprint, row["data"])


def _state_of(connection: sqlite3.Connection, sprint: str, data: bytes) -> State:
    tasks = connection.execute(SQL["tasks"], {"sprint": sprint}).fetchall()
    observations = connection.execute(SQL["observations"], {"sprint": sprint}).fetchall()
    effects = connection.execute(SQL["open_actions"], {"sprint": sprint}).fetchall()
    return State(
        sprint=_sprint_of(data),
        tasks={t["id"]: _task_of(t["data"]) for t in tasks},
        objects={o["object"]: _snapshot_of(o["data"]) for o in observations},
        open_effects=frozenset(row["task"] for row in effects),
        queued=queue.pending(connection, f"{sprint}/"),
        ended=queue.ended(connection, f"{sprint}/"),
        attempts=queue.attempts(connection, f"{sprint}/"),
    )


def _put_tasks(
    connection: sqlite3.Connection, sprint: str, tasks: dict[str, Task], before: dict[str, Task]
) -> None:
    """Store changed tasks; all of them if their order changed."""
    for removed in before.keys() - tasks.keys():
        connection.execute(SQL["forget_task"], {"sprint": sprint, "id": removed})
    is_reordered = list(tasks) != list(before)
    for position, task in enumerate(tasks.values()):
        if is_reordered or before[task.id] != task:
            row = {"sprint": sprint, "id": task.id, "position": position}
            row |= {"status": task.status, "reason": task.reason, "data": _encode(task)}
            connection.execute(SQL["put_task"], row)


def _put_observations(
    connection: sqlite3.Connection, sprint: str, state: State, before: State
) -> None:
    for name, seen in state.objects.items():
        if before.objects.get(name) is not seen:
            row = {"sprint": sprint, "object": name, "version": seen.version, "data": _encode(seen)}
            connection.execute(SQL["put_observation"], row)


def _put_action(
    connection: sqlite3.Connection, sprint: str, action: Action, resumable: Collection[str]
) -> None:
    match action:
        case StartWork():
            item, payload = action.work.item, _encode(action).decode()
            added = queue.enqueue(
                connection,
                item,
                action.work.role,
                payload,
                priority=action.priority,
                not_before=int(action.not_before * 1000),
            )
            if not added:
                queue.reopen(connection, item, action.reason, payload)
        case HoldWork():
            queue.hold(connection, action.item, int(action.until * 1000))
        case CancelWork():
            held = action.item in resumable
            queue.cancel(connection, action.item, action.reason, held=held)
        case RetryEffect():
            connection.execute(SQL["retry_action"], {"key": action.key})
        case _:
            plan_effect(connection, SQL, sprint, action)


def plan_effect(
    connection: sqlite3.Connection, sql: dict[str, str], sprint: str, effect: Effect | Probe
) -> None:
    """Insert an effect into the journal that these statements belong to."""
    values = {
        "sprint": sprint,
        "task": effect.task,
        "key": effect.key,
        "kind": type(effect).__struct_config__.tag,
        "data": _encode(effect),
    }
    connection.execute(sql["forget_failed_action"], {"key": effect.key})
    if isinstance(effect, ReportProgress | Describe):
        connection.execute(sql["supersede_action"], values)
    connection.execute(sql["plan_action"], values)
