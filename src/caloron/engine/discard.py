"""Throws away what is left of a sprint: a mode of the loop that starts no agent."""

from __future__ import annotations

from caloron.domain.model.sprint import State
from caloron.engine.loop import Engine
from caloron.engine.tick import TickResult
from caloron.errors import CaloronError


class DiscardRun:
    """Carries a recorded discard to its end; after a crash, run it again and it goes on.

    The engine is made with `only_effects` set to the key of discard effects: of all others, only
    the traces of those that already happened are recorded.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._agents_ended = False

    def run(self, by: str) -> State:
        """Record the discard, unless it is recorded, and drive the sprint to its end."""
        engine = self._engine
        engine.ledger.discard(engine.sprint, by)
        with engine.opened():
            # Changes that people made meanwhile count: what they merged is merged.
            engine.poller.poll()
            state = engine.drive(self._until_ended)
        engine.raise_error()
        if state.facts_wait:
            reason = state.sprint.availability.pause_reason
            raise CaloronError(f"sprint {engine.sprint} cannot be discarded: {reason}")
        engine.exports.write_end()
        return state

    def _until_ended(self, result: TickResult, epoch: int | None, grace: bool) -> float | None:
        state, engine = result.state, self._engine
        if state.sprint.discard.by and not self._agents_ended:
            engine.workers.end_orphans()
            self._agents_ended = True
        if state.sprint.phase == "ended" or state.facts_wait:
            return None
        if epoch is None:
            engine.poller.poll_once()
        return engine.wait_s(engine.effects.dispatch(epoch))
