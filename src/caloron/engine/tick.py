"""One tick: load a sprint, evaluate the facts, supervise the agents, commit the decision.

The shipped graph `sprint_tick_stateful` takes the same steps through its stages, for people who
compose their own tick: see `engine/graphs/tick_graph.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from caloron.domain.model.effects import Moved, describe_action
from caloron.domain.model.roles import UNSUPERVISED_ROLES
from caloron.domain.model.sprint import State
from caloron.domain.rules.evaluate import evaluate
from caloron.domain.rules.supervisor import Health, check_health, supervise
from caloron.ledger.ledger import Loaded, StaleTick
from caloron.ledger.tick_context import TickContext, agents_of, commit_decision, log_problems
from caloron.store import log

#: Receives the trace of a tick that changed something or failed, in the form of a graph's trace.
Keep = Callable[[dict[str, Any]], object]


class TickResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tick."""

    state: State
    moves: tuple[Moved, ...]
    #: The decisions, in the words of the stages.
    actions_taken: tuple[str, ...]
    #: False if the tick wrote nothing.
    changed: bool


def tick(context: TickContext, sprint: str, *, keep: Keep | None = None) -> TickResult:
    """Decide on everything that is known now, and commit the decision.

    A tick that another writer overtook is discarded and run again from its load.
    """
    while True:
        try:
            return _tick(context, sprint, _Steps(keep))
        except StaleTick as error:
            log.debug("a tick is repeated", error=error)


def _tick(context: TickContext, sprint: str, steps: _Steps) -> TickResult:
    with steps.step("load_tick_state"):
        loaded, now = context.ledger.load(sprint), context.clock.now()
    with steps.step("dag_evaluate"):
        evaluated = evaluate(loaded.state, loaded.facts, now)
        log_problems(loaded.state, evaluated)
    with steps.step("decide_intervention"):
        health = _health(context, loaded)
        supervised, taken = supervise(evaluated.state, health, context.limits, now)
        log_problems(evaluated.state, supervised)
    actions = (*evaluated.actions, *supervised.actions)
    moves = (*evaluated.moves, *supervised.moves)
    with steps.step("save_tick_state"):
        changed = commit_decision(context, loaded, supervised.state, actions, moves, now)
    if changed:
        steps.keep_trace()
    return TickResult(
        state=supervised.state,
        moves=moves,
        actions_taken=(*taken, *map(describe_action, actions)),
        changed=changed,
    )


def _health(context: TickContext, loaded: Loaded) -> list[Health]:
    """Check the supervised agents; after a pause of the machine none of them is judged."""
    if context.grace:
        return []
    agents = agents_of(loaded)
    return [
        check_health(agent, context.limits)
        for agent in agents
        if agent.role not in UNSUPERVISED_ROLES
    ]


class _Steps:
    """Times the steps of one tick for its trace."""

    def __init__(self, keep: Keep | None) -> None:
        self._keep = keep
        self._began = time.time()
        self._calls: list[dict[str, Any]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except StaleTick:
            raise
        except Exception as error:
            self._record(name, began, f"{type(error).__name__}: {error}")
            self.keep_trace()
            raise
        self._record(name, began)

    def _record(self, name: str, began: float, failure: str = "") -> None:
        self._calls.append(
            {
                "path": f"$.{name}",
                "stage": name,
                "stage_id": name,
                "step_index": len(self._calls),
                "status": "Failed" if failure else "Ok",
                "source": "run",
                "duration_ms": round((time.monotonic() - began) * 1000),
                "input_hash": "",
                "output_hash": None,
                "failure": failure,
            }
        )

    def keep_trace(self) -> None:
        if self._keep is None:
            return
        failed = any(call["failure"] for call in self._calls)
        self._keep(
            {
                "started_at": datetime.fromtimestamp(self._began, UTC).isoformat(),
                "duration_ms": sum(call["duration_ms"] for call in self._calls),
                "status": "Failed" if failed else "Ok",
                "error": None,
                "stages": self._calls,
            }
        )
