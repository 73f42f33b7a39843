"""Each kind of effect leaves exactly one artefact if the response is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from caloron.agents.clis.registry import FRAMEWORKS
from caloron.domain.model import effects
from caloron.domain.model.effects import (
    AddLabel,
    CloseIssue,
    ClosePull,
    CreateIssue,
    Describe,
    EditIssue,
    Effect,
    MakeRevert,
    Merge,
    OpenPull,
    PostComment,
    PostReview,
    Push,
    ReopenIssue,
    ReportProgress,
    SeeBranch,
)
from caloron.domain.model.snapshots import marker
from caloron.domain.model.sprint import Sprint, SprintSettings, State
from caloron.engine.forge.executor import EffectExecutor
from caloron.engine.forge.operations import ForgeOperations
from caloron.engine.runs.run_dirs import RunDirs
from caloron.engine.signals import LoopSignal
from caloron.errors import ForgeUnavailable
from caloron.forge.local.forge import LocalForge, create_local_forge
from caloron.git.mirror import Mirror
from caloron.ledger.journal import LOOK_FIRST, Journal
from caloron.ledger.ledger import Ledger, TickCommit
from caloron.store.redact import Redactor
from caloron.store.wake import Wake
from tests.integration.engine.parts import FixedClock
from tests.support.git import git

BRANCH = "agent/a/demo-1"
MUTATIONS = (
    "create_issue",
    "comment",
    "edit_issue",
    "label",
    "close_issue",
    "reopen_issue",
    "edit_pull",
    "close_pull",
    "push",
    "open_pull",
    "review",
    "merge",
)


class ForgetfulForge:
    """A forge that does what it is asked and then, once, does not answer."""

    def __init__(self, forge: LocalForge) -> None:
        self._forge = forge
        self.lost: list[str] = []
        self.forgetting = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._forge, name)
        return self._answer_lost(name, real) if name in MUTATIONS else real

    def _answer_lost(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            answer = real(*args)
            if self.forgetting:
                self.forgetting = False
                self.lost.append(name)
                raise ForgeUnavailable(f"the answer to {name} was lost")
            return answer

        return call


class Bench:
    """A journal, an executor and a forge that forgets, around one task with a branch."""

    def __init__(self, folder: Path) -> None:
        self.forge = create_local_forge(folder, name="demo")
        self.forgetful = ForgetfulForge(self.forge)
        self.mirror = Mirror(folder / "mirror.git", self.forge.remote())
        self.mirror.ensure()
        self.main = self.mirror.fetch_main()
        self.ledger = Ledger(folder / "ledger.sqlite")
        sprint = Sprint(
            id="demo",
            number=0,
            goal="g",
            phase="running",
            settings=SprintSettings(frameworks=FRAMEWORKS),
        )
        self.sprint = self.ledger.create_sprint(sprint, {}).id
        self.journal = Journal(self.ledger, self.sprint)
        self.clock = FixedClock()
        self.operations = ForgeOperations(
            self.forgetful,
            self.mirror,
            Redactor(),
            self.clock,
            lambda: self.ledger.state(self.sprint),
        )
        runs, signal = RunDirs(folder / "runs"), LoopSignal(Wake(folder / "wake"))
        self.effects = EffectExecutor(self.journal, self.operations, runs, self.clock, signal)
        self.work = self._commit(self.main)

    def _commit(self, parent: str) -> str:
        name = ("-c", "user.name=A", "-c", "user.email=a@localhost")
        blob = git(self.mirror.path, "hash-object", "-w", "--stdin", stdin="work\n")
        tree = git(self.mirror.path, "mktree", stdin=f"100644 blob {blob}\ta.txt\n")
        work = git(self.mirror.path, *name, "commit-tree", tree, "-p", parent, "-m", "work")
        self.mirror.keep("refs/caloron/work/x", work)
        return work

    def plan(self, effect: Effect) -> None:
        loaded = self.ledger.load(self.sprint)
        state = State(sprint=loaded.state.sprint)
        self.ledger.commit_tick(loaded, TickCommit(state=state, actions=(effect,)))

    def drain(self) -> None:
        """Perform all due effects, letting pauses pass."""
        for _ in range(10):
            due = self.journal.due()
            if not due:
                return
            for entry in due:
                self.effects.perform(entry)
            self.clock.time += 120
        raise AssertionError(f"still open: {self.journal.waiting()}")

    def do(self, *effects: Effect) -> None:
        for effect in effects:
            self.plan(effect)
            self.drain()

    def lost_work(self) -> list[int]:
        """The merged pull requests whose file is not on main, and the closed ones whose file is."""
        files = git(Path(self.forge.remote().url), "ls-tree", "--name-only", "main").splitlines()
        pulls = [p for p in self.forge.pulls() if p.branch == BRANCH]
        return [p.number for p in pulls if (p.state == "merged") != ("a.txt" in files)]

    def states(self) -> list[str]:
        return [r["state"] for r in self.ledger.db.rows("SELECT state FROM actions ORDER BY id")]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.effects.close()
    bench.ledger.close()
    bench.forge.close()


def issue() -> CreateIssue:
    key = "issue/demo-1/a"
    return CreateIssue(key=key, task="a", title="A", body=marker(key), labels=("caloron:task",))


def edit(bench: Bench) -> EditIssue:
    old = bench.forge.issue(1).body
    return EditIssue(key="edit/x", task="a", issue=1, old=old, body=f"other {old}")


def push(bench: Bench) -> Push:
    return Push(key=f"push/{BRANCH}", task="a", branch=BRANCH, old="", new=bench.work)


def pull() -> OpenPull:
    key = "pull/demo-1/a/1"
    body = f"Closes #1\n\n{marker(key)}"
    return OpenPull(key=key, task="a", title="[a] A", body=body, branch=BRANCH)


def merge(bench: Bench) -> Merge:
    return Merge(
        key="merge/2", task="a", pull=2, head=bench.work, base=bench.main, message="Merge a"
    )


def revert(bench: Bench) -> MakeRevert:
    """Reverts the change that `merge` put on main."""
    merged = bench.forge.pull(2)
    return MakeRevert(
        key="revert/demo-1/a/1",
        task="a",
        branch="caloron/revert/demo-1/a/1",
        commit=merged.merge_commit,
        merged_as="Merge a",
        head=merged.head,
        base=bench.main,
        message="Revert #2: [a] A",
    )


def review(bench: Bench) -> PostReview:
    key = f"review/2/{bench.work}/1/1"
    return PostReview(
        key=key, task="a", pull=2, head=bench.work, verdict="approved", body=marker(key)
    )


def comment() -> PostComment:
    key = "comment/demo-1/a/completed/done"
    return PostComment(key=key, task="a", issue=1, body=f"Done\n\n{marker(key)}")


def progress() -> ReportProgress:
    key = "comment/demo-1/a/progress"
    body = f"Ready\n\n{marker(key)}"
    return ReportProgress(
        key="progress/demo-1/a/1", task="a", issue=1, comment=None, marker=key, body=body
    )


def describe() -> Describe:
    return Describe(
        key="describe/2/7",
        task="a",
        number=2,
        is_pull=True,
        section="demo-1/a",
        text="in cycle 2",
        add=True,
    )


Case = tuple[Callable[[Bench], list[Effect]], Callable[[Bench], Effect], Callable[[Bench], int]]

CASES: dict[type[Any], Case] = {
    CreateIssue: (lambda b: [], lambda b: issue(), lambda b: len(b.forge.issues())),
    PostComment: (lambda b: [issue()], lambda b: comment(), lambda b: len(b.forge.comments(1))),
    ReportProgress: (
        lambda b: [issue()],
        lambda b: progress(),
        lambda b: len(b.forge.comments(1)),
    ),
    Describe: (
        lambda b: [issue(), push(b), pull()],
        lambda b: describe(),
        lambda b: b.forge.pull(2).body.count("in cycle 2"),
    ),
    AddLabel: (
        lambda b: [issue()],
        lambda b: AddLabel(key="label/x", task="a", issue=1, label="caloron:done"),
        lambda b: b.forge.issue(1).labels.count("caloron:done"),
    ),
    CloseIssue: (
        lambda b: [issue()],
        lambda b: CloseIssue(key="close/x", task="a", issue=1),
        lambda b: len(b.forge.issues("closed")),
    ),
    ClosePull: (
        lambda b: [issue(), push(b), pull()],
        lambda b: ClosePull(key="discard/x", task="a", pull=2),
        lambda b: len(b.forge.pulls("closed")),
    ),
    ReopenIssue: (
        lambda b: [issue(), CloseIssue(key="close/x", task="a", issue=1)],
        lambda b: ReopenIssue(key="reopen/x", task="a", issue=1),
        lambda b: len(b.forge.issues("open")),
    ),
    EditIssue: (
        lambda b: [issue()],
        edit,
        lambda b: b.forge.issue(1).body.count("other"),
    ),
    MakeRevert: (
        lambda b: [issue(), push(b), pull(), merge(b)],
        revert,
        lambda b: int(b.forge.branch("caloron/revert/demo-1/a/1") is not None),
    ),
    Push: (
        lambda b: [issue()],
        push,
        lambda b: int((current := b.forge.branch(BRANCH)) is not None and current.commit == b.work),
    ),
    OpenPull: (
        lambda b: [issue(), push(b)],
        lambda b: pull(),
        lambda b: len(b.forge.pulls()),
    ),
    PostReview: (
        lambda b: [issue(), push(b), pull()],
        review,
        lambda b: len(b.forge.reviews(2)),
    ),
    Merge: (
        lambda b: [issue(), push(b), pull()],
        merge,
        lambda b: (
            git(Path(b.forge.remote().url), "log", "--format=%s", "main")
            .splitlines()
            .count("Merge a")
        ),
    ),
}


def test_every_kind_of_effect_has_a_case() -> None:
    reading_effects = {SeeBranch}
    assert set(CASES) == set(get_args(effects.Effect)) - reading_effects


def lose_the_response(bench: Bench, effect: Effect) -> None:
    bench.forgetful.forgetting = True
    bench.plan(effect)
    bench.drain()
    assert len(bench.forgetful.lost) == 1


def die_before_the_record(bench: Bench, effect: Effect) -> None:
    """The next engine knows only the row in the journal about the first attempt."""
    bench.plan(effect)
    (entry,) = bench.journal.due()
    bench.journal.intend(entry)
    bench.operations.do(effect)


def restore_an_older_ledger(bench: Bench, effect: Effect) -> None:
    """The forge continued after the backup: the newly planned effect exists there already."""
    bench.plan(effect)
    bench.operations.do(effect)
    bench.ledger.put(LOOK_FIRST.format(bench.sprint), "1")
    bench.journal.looks_first = Journal(bench.ledger, bench.sprint).looks_first


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "lose", [lose_the_response, die_before_the_record, restore_an_older_ledger]
)
def test_an_effect_that_nothing_recorded_is_recognised_and_not_repeated(
    bench: Bench, kind: type[Any], lose: Callable[[Bench, Effect], None]
) -> None:
    before, effect, count = CASES[kind]
    bench.do(*before(bench))

    lose(bench, effect(bench))
    bench.drain()

    assert count(bench) == 1
    assert set(bench.states()) == {"done"}
    assert bench.lost_work() == []
