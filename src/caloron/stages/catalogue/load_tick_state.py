"""Reads a sprint from its ledger: state, waiting facts, live agents, and the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caloron.domain.supervise import AgentSeen
from caloron.graph.jsontext import Json
from caloron.ledger.ledger import Loaded
from caloron.ledger.projections import iso
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.of_sprint import within
from caloron.stages.catalogue.shapes import held, held_state, plain
from caloron.stages.context import TickContext

if TYPE_CHECKING:
    from caloron.domain.retro import Run

_PASSED_ON = ("repo", "token_env", "shell_url", "host")


def execute(given: Json, context: TickContext | None = None) -> Json:
    sprint = given["sprint_id"]
    with within(context, sprint, given.get("stall_threshold_m")) as reached:
        loaded, now, limits = reached.ledger.load(sprint), reached.clock.now(), reached.limits
        runs = held(_runs(reached, sprint)) if given.get("with_runs") else None
    counts = {t.agent: {"count": t.interventions} for t in loaded.state.tasks.values()}
    return {
        "sprint_id": sprint,
        "stall_threshold_m": limits.stall_s / 60,
        **{name: given.get(name) or "" for name in _PASSED_ON},
        "state": held_state(loaded.state),
        # Of a gap in which nobody looked, nobody is guilty.
        "agents": held(() if reached.grace else agents_of(loaded)),
        "interventions": {agent: told for agent, told in counts.items() if told["count"]},
        "since": iso(now),
        "now": now,
        "limits": plain(limits),
        "facts": held(loaded.facts),
        "runs": runs,
        "loaded": {"version": loaded.version, "through": loaded.through},
    }


def _runs(reached: TickContext, sprint: str) -> tuple[Run, ...]:
    """What agents did in the whole sprint: a retro counts it, a tick has no use for it."""
    # It reads the diary of a whole sprint, which a tick never does.
    from caloron.ledger.figures import figures_of

    with reached.ledger.db.snapshot() as connection:
        return figures_of(connection, sprint).runs


def agents_of(loaded: Loaded) -> tuple[AgentSeen, ...]:
    """Live agents, built fresh from their leases; ages by the database's own clock."""
    prefix = f"{loaded.state.sprint.id}/"
    return tuple(
        AgentSeen(
            item=lease.item,
            task=lease.item.split("/")[1],
            role=lease.kind,
            running_s=(lease.now_ms - lease.started_at) / 1000,
            silent_s=(lease.now_ms - (lease.activity_at or lease.started_at)) / 1000,
        )
        for lease in loaded.agents
        if lease.item.startswith(prefix) and lease.started_at and lease.result is None
    )


if __name__ == "__main__":
    alone(execute)
