"""The real loop on a real forge; a test ends the work, and no agent is started.

Tick, journal, executor and poller are the engine's own.
"""

from __future__ import annotations

from pathlib import Path

from caloron.domain.model.facts import WorkEnded
from caloron.domain.model.merge import Link
from caloron.domain.model.roles import AGENT_ROLES
from caloron.domain.model.snapshots import PullSnapshot
from caloron.domain.model.sprint import SprintSettings, State
from caloron.domain.model.task import Task, Work
from caloron.domain.rules.supervisor import Limits
from caloron.engine.tick import tick
from caloron.git.command import git, git_environment
from caloron.git.mirror import Conflict, Mirror
from caloron.ledger.tick_context import TickContext
from caloron.ledger.work_queue import Claimed
from caloron.ports import Forge
from tests.integration.engine.parts import Parts

_NO_LIMITS = Limits(stall_s=1e9, timeout_s=1e9, grace_s=1e9)
_ROLES = (*AGENT_ROLES, "verify")
_AGENT = ("Agent", "agent@example.invalid")


class Loop(Parts):
    """A sprint of two tasks, of which `b` depends on `a`, on a real forge."""

    def __init__(self, home: Path, forge: Forge) -> None:
        settings = SprintSettings(
            author=forge.author, reviewer=forge.reviewer, main_branch=forge.main
        )
        super().__init__(home, "a", settings=settings)
        self.forge = forge
        self.mirror = Mirror(home / "mirror.git", forge.remote(), forge.main)
        self.mirror.ensure()
        self.effects = self.executor(self.operations(forge, self.mirror))
        self.poller = self.poller_of(forge)
        self.poller.begin()
        self._claims: dict[str, Claimed] = {}
        self._mains: dict[str, str] = {}
        self._files = 0
        #: The verifications in order: the head and the main it was merged with.
        self.verified: list[tuple[str, str]] = []

    def close(self) -> None:
        self.effects.close()
        self.ledger.close()

    # Reading

    @property
    def state(self) -> State:
        return self.ledger.state(self.sprint)

    def task(self, name: str = "a") -> Task:
        return self.state.tasks[name]

    def status(self, name: str = "a") -> str:
        return str(self.task(name).status)

    def work(self, name: str = "a") -> Work:
        work = self.task(name).work
        assert work is not None, f"no agent works on {name}: {self.task(name).reason}"
        return work

    def role(self, name: str = "a") -> str:
        work = self.task(name).work
        return work.role if work else ""

    def issue(self, name: str = "a") -> int:
        number = self.task(name).links.issue
        assert number is not None
        return number

    def pull(self, name: str = "a") -> int:
        number = self.task(name).links.pull
        assert number is not None
        return number

    def pulls(self, name: str = "a") -> list[PullSnapshot]:
        pulls = [p for p in self.forge.pulls() if p.branch == self.task(name).change.branch]
        return sorted(pulls, key=lambda pull: pull.number)

    # Progress

    def tick(self) -> None:
        context = TickContext(ledger=self.ledger, clock=self.clock, limits=_NO_LIMITS)
        tick(context, self.sprint)
        while claimed := self.queue.claim(_ROLES, cap=99):
            self._claims[claimed.item] = claimed
            self._mains[claimed.item] = self.mirror.fetch_main()

    def perform(self, *, merges: bool = True) -> bool:
        """Execute the due effects; return whether there were any."""
        due = [entry for entry in self.journal.due() if merges or entry.kind != "merge"]
        later = [entry.not_before for entry in due]
        self.clock.time = max(self.clock.time, min(later, default=0.0)) + 1
        ready = [entry for entry in due if entry.not_before <= self.clock.time]
        for entry in ready:
            self.effects.perform(entry)
        return bool(ready)

    def settle(self, *, merges: bool = True) -> None:
        """Poll, decide and act until the sprint waits only for agents or a merge."""
        for _ in range(100):
            news = self.poller.poll()
            before = self.state
            self.tick()
            acted = self.perform(merges=merges)
            assert not self.signal.errors, self.signal.errors
            if not (news or acted) and self.state == before and not self.facts():
                return
        raise AssertionError("the sprint never becomes idle")

    def end(self, name: str = "a", answer: str = "APPROVED") -> None:
        """End the running agent or verification of a task."""
        work, task = self.work(name), self.task(name)
        base = work.head or self.mirror.fetch_main()
        if work.head and not self.mirror.has(work.head):
            self.mirror.fetch_branch(task.change.branch)
        head = base
        conflicts: tuple[str, ...] = ()
        tree = ""
        chain: tuple[Link, ...] = ()
        if work.role in ("implement", "fix", "resolve"):
            head = self._commit(base, f"{name}-{len(self._claims)}.txt")
        if work.role == "verify":
            base, head = self._mains[work.item], work.head
            self.verified.append((head, base))
            tree, chain, conflicts = self._merged(base, work)
        token = self._claims[work.item].token
        fact = WorkEnded(
            item=work.item,
            task=name,
            role=work.role,
            token=token,
            answer=answer if work.role in ("review", "check") else "",
            last_line=answer,
            head=head,
            base=base,
            conflicts=conflicts,
            tree=tree,
            chain=chain,
        )
        assert self.queue.settle(fact, token)

    def _merged(self, base: str, work: Work) -> tuple[str, tuple[Link, ...], tuple[str, ...]]:
        """Return the input of a verification: the tree, its chain, and the conflicts."""
        commit = base
        chain: list[Link] = []
        conflicts: tuple[str, ...] = ()
        for head in work.batch or ((work.head,) if work.head else ()):
            merged = self.mirror.merge(commit, head, "Merge for verification")
            if isinstance(merged, Conflict):
                conflicts += merged.files
            else:
                commit = merged.commit
                chain.append(Link(head, merged.tree))
        return self.mirror.tree(commit), tuple(chain), conflicts

    def finish(self, name: str = "a", answer: str = "APPROVED", *, merges: bool = True) -> None:
        self.end(name, answer)
        self.settle(merges=merges)

    def run(self) -> None:
        """Let agents and people succeed until the sprint has ended."""
        for _ in range(40):
            self.settle()
            busy = [t.id for t in self.state.tasks.values() if t.work]
            if not busy:
                return
            self.end(busy[0])
        raise AssertionError("the sprint never ends")

    def _commit(self, base: str, file: str) -> str:
        """A commit on top of another that adds one file."""
        self._files += 1
        path = self.mirror.path
        blob = git(path, "hash-object", "-w", "--stdin", stdin=f"{self._files}\n".encode())
        listed = git(path, "ls-tree", base)
        tree = git(path, "mktree", stdin=f"{listed}\n100644 blob {blob}\t{file}\n".encode())
        arguments = ("commit-tree", tree, "-p", base, "-m", f"add {file}")
        commit = git(path, *arguments, environment=git_environment(_AGENT))
        self.mirror.keep(f"refs/caloron/test/{commit}", commit)
        return commit

    # The steps of a task

    def bring_to(self, state: str) -> None:
        """`running`: an agent fixes it; `in review`; `verifying`; `merging`: it is decided."""
        self.settle()
        self.finish()
        assert self.role() == "verify"
        if state == "verifying":
            return
        self.finish()
        assert self.role() == "review"
        if state == "running":
            self.finish(answer="CHANGES_NEEDED: more")
            assert self.role() == "fix"
        elif state == "merging":
            self.finish(merges=False)
            assert self.task().merge.merging
