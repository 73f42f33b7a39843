"""Drives a sprint in memory: the real rules, on a forge and with an agent that a test controls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, cast

import msgspec

from caloron.domain.model.effects import (
    Action,
    CancelWork,
    Describe,
    Effect,
    HoldWork,
    MakeRevert,
    Moved,
    Probe,
    ReportProgress,
    RetryEffect,
    StartWork,
)
from caloron.domain.model.facts import EffectDone, EffectFailed, Fact, Refusal, WorkEnded
from caloron.domain.model.merge import Link
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.roles import ROLES
from caloron.domain.model.sprint import Planning, RuleSettings, Sprint, SprintSettings, State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task, Work
from caloron.domain.rules.evaluate import evaluate
from caloron.domain.rules.evaluation import Decision
from caloron.domain.rules.people.commands import for_prompt
from caloron.engine.forge.operations import ForgeOperations
from caloron.errors import ForgeError, NotFound
from caloron.git.mirror import Conflict, Mirror
from caloron.store.redact import Redactor
from caloron.testing.agent import FakeAgent
from caloron.testing.forge import InMemoryForge, Person

_Effect = TypeVar("_Effect", bound=msgspec.Struct)


def planned(id: str, *needs: str, kind: Literal["change", "check"] = "change") -> PlannedTask:
    """Return a task of a plan that depends on others."""
    return PlannedTask(
        id=id, title=f"Title of {id}", agent_prompt=f"Do {id}", depends_on=needs, kind=kind
    )


def new_state(
    *plan: PlannedTask, parallel: int = 4, max_fix_rounds: int = 3, ask: bool = False
) -> State:
    """Return the state of a new sprint, `shop-1`, whose plan came with its goal."""
    settings = SprintSettings(
        parallel=parallel, rules=RuleSettings(max_fix_rounds=max_fix_rounds), ask_before_running=ask
    )
    planning = Planning(given_plan=plan)
    return State(
        sprint=Sprint(id="shop-1", number=1, goal="a shop", settings=settings, planning=planning)
    )


class SprintDriver:
    """Evaluates ticks, performs their effects in memory and ends work when a test says so.

    It decides nothing: whatever it shows, the rules of `caloron.domain` decided.
    """

    def __init__(self, state: State, agent: FakeAgent | None = None) -> None:
        self.state = state
        self.agent = agent or FakeAgent()
        self.forge = InMemoryForge()
        self.now = 1000.0
        self._operations = ForgeOperations(
            self.forge,
            cast(Mirror, _Repository(self.forge)),
            Redactor(),
            SimpleNamespace(now=lambda: self.now),
            lambda: self.state,
        )
        #: Facts for the next tick.
        self.facts: list[Fact] = [self.forge.objects["branch:main"]]
        self.person = self.user("ada")
        #: Work that was started and has not ended, by item: its task and the work.
        self.queue: dict[str, tuple[str, Work]] = {}
        #: Items that no worker has claimed; other items are taken at once.
        self.unclaimed: set[str] = set()
        #: Items that are not to be started before a time.
        self.postponed: dict[str, float] = {}
        #: How often each item was claimed.
        self.tokens: dict[str, int] = {}
        #: Effects to perform, the oldest first.
        self.journal: list[Effect | Probe] = []
        self.done: list[Effect | Probe] = []
        self.refused: dict[str, Effect | Probe] = {}
        #: All effects by key, in the order in which they were decided.
        self.known: dict[str, Effect | Probe] = {}
        self.moves: list[Moved] = []
        #: Heads whose verification is red; sets of heads that are red, or in conflict, together.
        self.red: set[str] = set()
        self.red_together: list[set[str]] = []
        self.conflicting: list[set[str]] = []
        #: Each verification that ended: the changes in its tree, and True if it was green.
        self.verifications: list[tuple[tuple[str, ...], bool]] = []
        #: False if a test changed the state itself: steps may then differ from the table.
        self.checks_steps = True
        self._cursor = ""

    @classmethod
    def start(
        cls,
        *plan: PlannedTask,
        agent: FakeAgent | None = None,
        parallel: int = 4,
        max_fix_rounds: int = 3,
    ) -> SprintDriver:
        """Begin a sprint with this plan, and go on until each task has its issue."""
        driver = cls(new_state(*plan, parallel=parallel, max_fix_rounds=max_fix_rounds), agent)
        driver.settle()
        return driver

    def user(self, name: str) -> Person:
        """Return the account of a person on the forge; `self.person` is one of them."""
        return Person(self.forge, name, self.facts)

    # Going on

    def poll(self) -> None:
        """Report what changed on the forge since the last poll."""
        poll = self.forge.poll(self._cursor)
        self._cursor = poll.cursor
        self.facts += poll.snapshots

    def forget_news(self) -> None:
        """Drop facts and changes that no tick has seen, as if they came later than it."""
        self.poll()
        self.facts.clear()

    def loaded(self) -> State:
        """Return the state as the ledger would load it now."""
        known = self.state.attempts
        attempts = {item: max(times, known.get(item, 0)) for item, times in self.tokens.items()}
        return msgspec.structs.replace(
            self.state,
            open_effects=frozenset(effect.task for effect in self.journal),
            facts_wait=False,
            queued=frozenset(self.unclaimed),
            attempts=known | attempts,
        )

    def tick(self, *facts: Fact) -> Decision:
        """Evaluate all facts, and adopt the decision."""
        new = (*self.facts, *facts)
        self.now += 1
        decision = evaluate(self.loaded(), new, self.now)
        self.facts[:] = new if decision.state.facts_wait else ()
        self.adopt(decision)
        return decision

    def is_at_rest(self) -> bool:
        """Return True if a tick without facts would change nothing."""
        again = evaluate(self.loaded(), (), self.now)
        return again.actions == () and again.moves == ()

    def adopt(self, decision: Decision) -> None:
        """Take the new state and the actions of a decision."""
        for applied in decision.applied if self.checks_steps else ():
            rule = f"{applied.rule.do.__name__}: {applied.before} → {applied.after}"
            assert applied.after in applied.rule.then or applied.after == applied.before, rule
        for task in decision.state.tasks.values():
            assert task.step.status is task.status, (task.id, task.step, task.status)
        self.state = msgspec.structs.replace(decision.state, queued=frozenset(self.unclaimed))
        self.moves += decision.moves
        for action in decision.actions:
            self._take(action)
        # An effect that is tried again keeps its position.
        position = {key: n for n, key in enumerate(self.known)}
        self.journal.sort(key=lambda effect: position[effect.key])

    def _take(self, action: Action) -> None:
        match action:
            case StartWork():
                self.queue[action.work.item] = (action.task, action.work)
            case CancelWork():
                self.queue.pop(action.item, None)
            case HoldWork():
                self.postponed[action.item] = action.until
            case RetryEffect():
                if action.key in self.refused:
                    self.journal.append(self.refused.pop(action.key))
            case _:
                self._intend(action)

    def _intend(self, effect: Effect | Probe) -> None:
        if self.refused.pop(effect.key, None):
            del self.known[effect.key]
        if isinstance(effect, ReportProgress | Describe):
            # Only the newest is needed.
            older = [e for e in self.journal if type(e) is type(effect) and e.task == effect.task]
            self.journal = [e for e in self.journal if e not in older]
        if effect.key not in self.known:
            self.known[effect.key] = effect
            self.journal.append(effect)

    def settle(self, limit: int = 200) -> None:
        """Tick and perform effects until only agents have something to do."""
        for _ in range(limit):
            self.poll()
            self.tick()
            if not self.journal and not self.facts:
                return
            while self.journal:
                self.perform(0)
        raise AssertionError("the effects never come to an end")

    def run(self, limit: int = 300) -> None:
        """Let the agent end all work, until the sprint has ended or waits for a person."""
        for _ in range(limit):
            self.settle()
            if self.state.sprint.phase == "ended" or not self.queue:
                return
            item, (task, work) = next(iter(self.queue.items()))
            self.end(item, **self.agent.respond(work.role, task))
        raise AssertionError("the sprint never ends")

    # Effects

    def perform(self, position: int = 0) -> None:
        """Perform an effect of the journal; the next tick gets its facts, or its refusal."""
        effect = self.journal.pop(position)
        try:
            self.facts += self.facts_of(effect)
            self.done.append(effect)
        except (ForgeError, NotFound) as error:
            self.facts += self._operations.after_refusal(effect, error)
            self.refuse(effect, self._operations.refusal(effect, error), str(error))

    def refuse(self, effect: Effect | Probe, kind: Refusal, message: str = "no") -> None:
        self.refused[effect.key] = effect
        tag = str(type(effect).__struct_config__.tag)
        self.facts.append(
            EffectFailed(key=effect.key, task=effect.task, kind=tag, refusal=kind, message=message)
        )

    def facts_of(self, effect: Effect | Probe) -> Sequence[Fact]:
        """Perform an effect on the forge, and return the facts that the next tick gets."""
        match effect:
            case Probe():
                return ()
            case MakeRevert():
                # The engine makes the commits of a revert with git.
                head, again = self.forge.revert_commit(effect.head), self.forge.new_commit()
                self.forge.push(None, effect.branch, head, "", force=True)
                done = EffectDone(key=effect.key, task=effect.task, kind="revert", commit=head)
                return (msgspec.structs.replace(done, reapply_commit=again),)
            case _:
                return self._operations.do(effect)

    # Work

    def item(self, task: str) -> str:
        """Return the item of the work that is queued for a task."""
        (item,) = [item for item, (owner, _) in self.queue.items() if owner == task]
        return item

    def work(self, task: str) -> Work:
        return self.queue[self.item(task)][1]

    def role(self, task: str) -> str:
        return self.work(task).role

    def end(
        self,
        item: str,
        *,
        answer: str = "APPROVED",
        changes: bool = True,
        exit_code: int = 0,
        conflicts: tuple[str, ...] = (),
        **fields: Any,
    ) -> WorkEnded:
        """End an attempt, or a verification; `fields` are further fields of `WorkEnded`."""
        task, work = self.queue.pop(item)
        self.tokens[item] = self.tokens.get(item, 0) + 1
        main = self.forge.branches["main"]
        base = work.head or main
        head = base
        if ROLES[work.role].writes_code and changes and not conflicts:
            head = self.forge.new_commit()
        if work.role == "verify":
            base, head = main, work.head
            verified = self._verify(work)
            conflicting, red = verified.pop("conflicts", ()), verified.pop("exit_code", 0)
            conflicts, exit_code = conflicts or conflicting, exit_code or red
            fields = ({} if conflicts else verified) | fields
        asked = self.state.tasks.get(task) if ROLES[work.role].needs_agent else None
        fact = WorkEnded(
            item=item,
            task=task,
            role=work.role,
            token=self.tokens[item],
            comments=for_prompt(self.state, asked)[1] if asked else (),
            exit_code=exit_code,
            answer=answer if work.role in ("review", "check") else "",
            last_line=answer.splitlines()[-1] if answer else "",
            head=head,
            base=base,
            conflicts=conflicts,
            **fields,
        )
        self.facts.append(fact)
        return fact

    def _verify(self, work: Work) -> dict[str, Any]:
        """Merge into main what is to be verified; return fields of the work's end."""
        tree = self.forge.trees[self.forge.branches["main"]]
        chain: list[Link] = []
        for head in work.batch or ((work.head,) if work.head else ()):
            merged = self.forge.merged_tree(tree, head)
            if not any(pair <= set(merged) and not pair <= set(tree) for pair in self.conflicting):
                tree = merged
                chain.append(Link(head, _tree(tree)))
        if work.head and not chain:
            return {"conflicts": ("x.py",)}
        red = bool(self.red & set(tree)) or any(heads <= set(tree) for heads in self.red_together)
        self.verifications.append((tree, not red))
        return {
            "exit_code": int(red),
            "tree": _tree(tree),
            "chain": tuple(chain) if work.batch else (),
        }

    def finish(self, task: str, **end: Any) -> WorkEnded:
        """End the work on a task, and perform what follows."""
        fact = self.end(self.item(task), **end)
        self.settle()
        return fact

    def bring_to_review(self, task: str) -> None:
        """Go on until a reviewer reads the change of a task."""
        self.settle()
        while self.role(task) != "review":
            self.finish(task)

    # Looking

    def task(self, id: str) -> Task:
        return self.state.tasks[id]

    def status(self, id: str) -> Status:
        return self.state.tasks[id].status

    def statuses(self) -> dict[str, str]:
        return {id: str(task.status) for id, task in self.state.tasks.items()}

    def effects(self, kind: type[_Effect]) -> list[_Effect]:
        """Return the effects of a kind that were performed."""
        return [effect for effect in self.done if isinstance(effect, kind)]


class _Repository:
    """What the operations of the engine ask a `Mirror`, on the commits of the forge in memory."""

    path, main = Path(), "main"

    def __init__(self, forge: InMemoryForge) -> None:
        self._forge = forge

    def fetch_main(self) -> str:
        return self._forge.branches["main"]

    def has(self, commit: str) -> bool:
        return commit in self._forge.trees

    def is_ancestor(self, commit: str, main: str) -> bool:
        return self.has(commit)

    def merge(self, base: str, head: str, message: str, *, style: str = "") -> Conflict:
        """Leave every merge to the forge, which knows the tree of its result."""
        return Conflict(())

    def subject(self, commit: str) -> str:
        return commit

    def tree(self, commit: str) -> str:
        return _tree(self._forge.trees[commit])


def _tree(changes: tuple[str, ...]) -> str:
    return "+".join(sorted(changes))
