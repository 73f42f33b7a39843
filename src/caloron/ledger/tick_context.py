"""What a tick and its stages share: the ledger, the live agents, failed rules, the commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec

from caloron.domain.model.effects import Action, Moved
from caloron.domain.model.roles import WorkId
from caloron.domain.model.sprint import State
from caloron.domain.rules.evaluation import Decision
from caloron.domain.rules.supervisor import AgentSeen, Limits
from caloron.ledger.exports import digest
from caloron.ledger.ledger import Ledger, Loaded, TickCommit
from caloron.ledger.locate import project_of_sprint
from caloron.ledger.projects import load_project
from caloron.ledger.state_file import kv_text, write_kv
from caloron.ports import Clock
from caloron.store import log


class TickContext(msgspec.Struct, frozen=True, kw_only=True):
    """What effectful stages may use: the ledger, the clock and the limits."""

    ledger: Ledger
    clock: Clock
    limits: Limits
    #: The loop itself was suspended for longer than a lease: agents are not judged by that gap.
    grace: bool = False


class _WallClock:
    def now(self) -> float:
        return time.time()


@contextmanager
def ensure_context(
    context: TickContext | None, sprint: str, stall_threshold_m: float | None = None
) -> Iterator[TickContext]:
    """Use the context of the caller, else open the ledger of a sprint with its project's limits."""
    if context is not None:
        yield context
        return
    paths = project_of_sprint(sprint)
    config = load_project(paths.name).config
    minutes = config.stall_threshold_m if stall_threshold_m is None else stall_threshold_m
    limits = Limits(stall_s=minutes * 60, timeout_s=config.timeout_s, grace_s=config.probe_grace_s)
    with closing(Ledger(paths.ledger)) as ledger:
        yield TickContext(ledger=ledger, clock=_WallClock(), limits=limits)


def agents_of(loaded: Loaded) -> tuple[AgentSeen, ...]:
    """Return the live agents from their leases; ages by the database's own clock."""
    prefix = f"{loaded.state.sprint.id}/"
    return tuple(
        AgentSeen(
            item=lease.item,
            task=WorkId.parse(lease.item).task,
            role=lease.kind,
            running_s=(lease.now_ms - lease.started_at) / 1000,
            silent_s=(lease.now_ms - (lease.activity_at or lease.started_at)) / 1000,
        )
        for lease in loaded.agents
        if lease.item.startswith(prefix) and lease.started_at and lease.result is None
    )


def log_problems(before: State, decided: Decision) -> None:
    """Log each rule that failed, once: it may fail again on every tick."""
    known = {
        before.sprint.availability.pause_reason,
        *(task.reason for task in before.tasks.values()),
    }
    for problem in decided.problems:
        if str(problem) not in known:
            error = problem.__cause__ or problem
            log.error("a rule failed", error=error, rule=problem.rule, task=problem.task)


def commit_decision(
    context: TickContext,
    loaded: Loaded,
    state: State,
    actions: tuple[Action, ...],
    moves: tuple[Moved, ...],
    now: float,
) -> bool:
    """Commit a decision in one transaction, and write the state file; False if nothing changed."""
    if state.facts_wait:
        # A rule failed: the facts stay in the inbox for a version that can handle them.
        loaded = msgspec.structs.replace(loaded, through=0, facts=())
    before = msgspec.structs.replace(loaded.state, facts_wait=state.facts_wait)
    if not (loaded.facts or actions or moves) and state == before:
        return False
    text = kv_text(state, now)
    commit = TickCommit(
        state=state, actions=actions, moves=moves, state_file_digest=digest(text), since=now
    )
    context.ledger.commit_tick(loaded, commit)
    write_kv(state.sprint.id, text)
    return True
