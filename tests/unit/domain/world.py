"""A sprint in memory: a forge that does what it is told, and agents that answer as a test says.

Nothing here decides: `World` only carries out actions and tells the resulting facts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from caloron.domain.model.effects import (
    Action,
    AddLabel,
    CancelWork,
    CloseIssue,
    ClosePull,
    CreateIssue,
    Describe,
    EditIssue,
    Effect,
    HoldWork,
    MakeRevert,
    Merge,
    Moved,
    OpenPull,
    PostComment,
    PostReview,
    Probe,
    Push,
    ReopenIssue,
    ReportProgress,
    RetryEffect,
    SeeBranch,
    StartWork,
)
from caloron.domain.model.facts import EffectDone, EffectFailed, Fact, Refusal, WorkEnded
from caloron.domain.model.merge import Link
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Snapshot,
    Verdict,
    marker_key,
    with_section,
)
from caloron.domain.model.sprint import Planning, Sprint, SprintSettings, State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task, Work
from caloron.domain.rules.evaluate import evaluate
from caloron.domain.rules.evaluation import Decision

CALORON = "caloron"
PERSON = "ada"
SPRINT = "shop-1"
_replace = msgspec.structs.replace
_Struct = TypeVar("_Struct", Sprint, Task)


def nested(kind: type[_Struct], **fields: Any) -> _Struct:
    """Make a struct of sub-structs: `links__issue=1` sets the field `issue` of its `links`."""
    made = kind(**{name: value for name, value in fields.items() if "__" not in name})
    for name, value in fields.items():
        group, inner, field = name.partition("__")
        if inner:
            setattr(made, group, _replace(getattr(made, group), **{field: value}))
    return made


def planned(id: str, *needs: str, kind: Literal["change", "check"] = "change") -> PlannedTask:
    return PlannedTask(
        id=id, title=f"Title of {id}", agent_prompt=f"Do {id}", depends_on=needs, kind=kind
    )


def new_state(
    *plan: PlannedTask, parallel: int = 4, max_fix_rounds: int = 3, ask: bool = False
) -> State:
    """A sprint whose plan came with its goal."""
    sprint = Sprint(
        id=SPRINT,
        number=1,
        goal="a shop",
        settings=SprintSettings(
            parallel=parallel, max_fix_rounds=max_fix_rounds, ask_before_running=ask
        ),
        planning=Planning(given_plan=plan),
    )
    return State(sprint=sprint)


class World:
    """The outside: forge objects with versions, a queue of work, and a journal of effects."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.now = 1000.0
        self.version = 0
        self.number = 0
        self.commits = 0
        self.tokens: dict[str, int] = {}
        self.objects: dict[str, Snapshot] = {}
        self.branches: dict[str, str] = {}
        self.journal: list[Effect | Probe] = []
        self.failed: dict[str, Effect | Probe] = {}
        self.known: dict[str, Effect | Probe] = {}
        self.queue: dict[str, tuple[str, Work]] = {}
        self.held: dict[str, float] = {}
        self.news: list[Fact] = []
        self.moves: list[Moved] = []
        self.done: list[Effect | Probe] = []
        self.verify_fails: set[str] = set()
        #: Heads that are red as soon as they are all in one tree.
        self.broken_together: list[set[str]] = []
        #: Heads that cannot be merged into one tree.
        self.conflicting: list[set[str]] = []
        #: The changes in each commit of main: what stands for its tree.
        self.trees: dict[str, tuple[str, ...]] = {}
        #: The forge cannot be told the base of a merge, and this happens just before one.
        self.blind = False
        self.before_merge: Callable[[], object] = lambda: None
        #: What the forge's CI says about a head.
        self.checks: dict[str, Literal["waiting", "checks"]] = {}
        #: Each verification that ended: the changes in what was verified, and whether green.
        self.verifications: list[tuple[tuple[str, ...], bool]] = []
        #: Items that no worker has claimed yet, where a test cares.
        self.waiting: set[str] = set()
        self.unpolled: set[str] = set()
        #: A test damaged a task: rules may lead elsewhere than they declare.
        self.damaged = False
        first = self.commit()
        self.trees[first] = (first,)
        self._move_branch("main", first)

    # What the engine does

    def tick(self, *facts: Fact) -> Decision:
        """Evaluate everything that is new, and take in the actions."""
        facts = (*self.news, *facts)
        self.news = []
        self.now += 1
        decision = evaluate(self.loaded(), facts, self.now)
        if decision.state.facts_wait:
            self.news = list(facts)
        self.adopt(decision)
        return decision

    def loaded(self) -> State:
        """The state as the ledger would load it now."""
        known = self.state.attempts
        attempts = {item: max(times, known.get(item, 0)) for item, times in self.tokens.items()}
        return _replace(
            self.state,
            open_effects=frozenset(effect.task for effect in self.journal),
            facts_wait=False,
            queued=frozenset(self.waiting),
            attempts=known | attempts,
        )

    def decides_no_more(self) -> bool:
        """Whether the next tick, to which nothing is new, has nothing to do."""
        again = evaluate(self.loaded(), (), self.now)
        return again.actions == () and again.moves == ()

    def adopt(self, decision: Decision) -> None:
        for taken in () if self.damaged else decision.applied:
            rule = f"{taken.rule.do.__name__}: {taken.before} → {taken.after}"
            assert taken.after in taken.rule.then or taken.after == taken.before, rule
        for task in decision.state.tasks.values():
            assert task.step.status is task.status, (task.id, task.step, task.status)
        # An agent is free for everything that a test does not let wait.
        self.state = _replace(decision.state, queued=frozenset(self.waiting))
        self.moves += decision.moves
        for action in decision.actions:
            self._take(action)
        # An effect that is tried again has the place that it had.
        place = {key: n for n, key in enumerate(self.known)}
        self.journal.sort(key=lambda effect: place[effect.key])

    def _take(self, action: Action) -> None:
        match action:
            case StartWork():
                self.queue[action.work.item] = (action.task, action.work)
            case CancelWork():
                self.queue.pop(action.item, None)
            case HoldWork():
                self.held[action.item] = action.until
            case RetryEffect():
                if action.key in self.failed:
                    self.journal.append(self.failed.pop(action.key))
            case _:
                if self.failed.pop(action.key, None):
                    del self.known[action.key]
                if isinstance(action, ReportProgress | Describe):
                    self.journal = [
                        effect
                        for effect in self.journal
                        if not isinstance(effect, type(action)) or effect.task != action.task
                    ]
                if action.key not in self.known:
                    self.known[action.key] = action
                    self.journal.append(action)

    def settle(self, limit: int = 200) -> None:
        """Tick and carry out effects until only agents are left to end their work."""
        for _ in range(limit):
            self.poll()
            self.tick()
            if not self.journal and not self.news:
                return
            while self.journal:
                self.perform(0)
        raise AssertionError("the effects never come to an end")

    def run(self, limit: int = 300) -> None:
        """Let every agent do well and every reviewer approve, until the sprint has ended."""
        for _ in range(limit):
            self.settle()
            if self.state.sprint.phase == "ended" or not self.queue:
                return
            self.end(next(iter(self.queue)))
        raise AssertionError("the sprint never ends")

    def perform(self, position: int) -> None:
        effect = self.journal.pop(position)
        try:
            self.news += self._do(effect)
            self.done.append(effect)
        except Refused as refusal:
            self.refuse(effect, refusal.kind)

    def refuse(self, effect: Effect | Probe, kind: Refusal, message: str = "no") -> None:
        self.failed[effect.key] = effect
        tag = str(type(effect).__struct_config__.tag)
        self.news.append(
            EffectFailed(key=effect.key, task=effect.task, kind=tag, refusal=kind, message=message)
        )

    def _do(self, effect: Effect | Probe) -> list[Fact]:  # noqa: C901, PLR0911, PLR0912
        match effect:
            case CreateIssue():
                return [self._put_issue(effect.title, effect.body, CALORON, effect.labels)]
            case PostComment():
                return [self._put_comment(effect.issue, effect.body, CALORON)]
            case ReportProgress():
                return [self._put_progress(effect)]
            case Describe():
                return [self._describe(effect)]
            case AddLabel():
                labels = (*self.issue(effect.issue).labels, effect.label)
                return [self.change_issue(effect.issue, labels=labels)]
            case ReopenIssue():
                again = self.change_issue(effect.issue, state="open", closed_by="")
                return [again, EffectDone(key=effect.key, task=effect.task, kind="reopen_issue")]
            case EditIssue():
                old = self.issue(effect.issue)
                same = old.body == effect.old
                return [self.change_issue(effect.issue, body=effect.body) if same else old]
            case SeeBranch():
                commit = self.branches.get(effect.branch, "")
                key = effect.key
                return [EffectDone(key=key, task=effect.task, kind="see_branch", commit=commit)]
            case CloseIssue():
                return [self.change_issue(effect.issue, state="closed", closed_by=CALORON)]
            case ClosePull():
                pull = self.pull(effect.pull)
                return [self._end_pull(pull, "closed", CALORON) if pull.state == "open" else pull]
            case Push():
                there = self.branches.get(effect.branch, "")
                if not there and effect.old:
                    raise Refused("gone")
                if there != effect.old:
                    raise Refused("stale_head")
                self._move_branch(effect.branch, effect.new)
                done = EffectDone(key=effect.key, task=effect.task, kind="push", commit=effect.new)
                seen = self.objects.get(f"pull:{effect.pull}")
                return [done, *([seen] if seen else [])]
            case OpenPull():
                return [self._open_pull(effect.title, effect.body, effect.branch, CALORON)]
            case PostReview():
                return [self._review(effect.pull, effect.head, effect.verdict, effect.body)]
            case Merge():
                return self._merge(effect)
            case MakeRevert():
                return self._revert(effect)
            case ReopenIssue():
                seen = self.change_issue(effect.issue, state="open", closed_by="")
                return [seen, EffectDone(key=effect.key, task=effect.task, kind="reopen_issue")]
            case Probe():
                return []

    def _put_progress(self, effect: ReportProgress) -> Snapshot:
        held = [
            seen
            for seen in self.objects.values()
            if isinstance(seen, CommentSnapshot) and marker_key(seen.body) == effect.marker
        ]
        if not held:
            return self._put_comment(effect.issue, effect.body, CALORON)
        seen = _replace(held[0], body=effect.body, version=self._next())
        self._put(seen)
        return seen

    def _describe(self, effect: Describe) -> Snapshot:
        assert effect.is_pull
        pull = self.pull(effect.number)
        body = with_section(pull.body, effect.section, effect.text, add=effect.add)
        if body == pull.body:
            return pull
        return self._put(_replace(pull, body=body, version=self._next()))

    def _merge(self, effect: Merge) -> list[Fact]:
        self.before_merge()
        pull = self.pull(effect.pull)
        if pull.state != "open":
            raise Refused("refused")
        task = self.state.tasks.get(effect.task)
        if task and task.merge.merging != effect.head:
            raise Refused("stale_head")
        if task and not task.merge.unverified and self.issue(task.links.issue).state == "closed":
            raise Refused("stale_head")
        if pull.branch not in self.branches:
            raise Refused("gone")
        if pull.head != effect.head:
            raise Refused("stale_head")
        if effect.head in self.checks:
            raise Refused(self.checks[effect.head])
        if self.branches["main"] != effect.base and not self.blind:
            raise Refused("stale_base")
        merged = self._end_pull(pull, "merged", CALORON)
        done = EffectDone(
            key=effect.key,
            task=effect.task,
            kind="merge",
            commit=merged.merge_commit,
            tree=_tree(self.trees[merged.merge_commit]),
        )
        return [merged, self.objects["branch:main"], done]

    def _revert(self, effect: MakeRevert) -> list[Fact]:
        """A commit without the change; merging it takes the change out of main."""
        head = f"-{effect.head}/{self.commit()}"
        self._move_branch(effect.branch, head)
        again = self.commit()
        return [
            EffectDone(
                key=effect.key, task=effect.task, kind="revert", commit=head, reapply_commit=again
            )
        ]

    def merged_tree(self, tree: tuple[str, ...], head: str) -> tuple[str, ...]:
        gone = head.partition("/")[0].removeprefix("-") if head.startswith("-") else ""
        return tuple(h for h in (*tree, head) if h != gone)

    # What agents do

    def item(self, task: str) -> str:
        """The work that is queued for a task."""
        (found,) = [item for item, (owner, _) in self.queue.items() if owner == task]
        return found

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
        internal_error: str = "",
        **more: Any,
    ) -> WorkEnded:
        """An agent, or a verification, comes to its end."""
        task, work = self.queue.pop(item)
        # As in the queue: claims are counted for each item.
        self.tokens[item] = self.tokens.get(item, 0) + 1
        base = work.head or self.branches["main"]
        head = base
        if work.role in ("implement", "fix", "resolve") and changes and not conflicts:
            head = self.commit()
        if work.role == "verify":
            base, head = self.branches["main"], work.head
            found = self._verify(work)
            found_red, found_conflicts = found.pop("exit_code"), found.pop("conflicts")
            conflicts, exit_code = conflicts or found_conflicts, exit_code or found_red
            more = ({} if conflicts else found) | more
        fact = WorkEnded(
            item=item,
            task=task,
            role=work.role,
            token=self.tokens[item],
            exit_code=exit_code,
            answer=answer if work.role in ("review", "check") else "",
            last_line=answer.splitlines()[-1] if answer else "",
            head=head,
            base=base,
            conflicts=conflicts,
            internal_error=internal_error,
            **more,
        )
        self.news.append(fact)
        return fact

    def _verify(self, work: Work) -> dict[str, Any]:
        """Merge what is to be verified on top of main, and say what that comes to."""
        tree = self.trees[self.branches["main"]]
        chain: list[Link] = []
        for head in work.batch or ((work.head,) if work.head else ()):
            merged = self.merged_tree(tree, head)
            if not any(pair <= set(merged) and not pair <= set(tree) for pair in self.conflicting):
                tree = merged
                chain.append(Link(head, _tree(tree)))
        red = bool(self.verify_fails & set(tree))
        red = red or any(together <= set(tree) for together in self.broken_together)
        if work.head and not chain:
            return {"conflicts": ("x.py",), "exit_code": 0}
        self.verifications.append((tree, not red))
        return {
            "conflicts": (),
            "exit_code": int(red),
            "tree": _tree(tree),
            "chain": tuple(chain) if work.batch else (),
        }

    def finish(self, task: str, **how: object) -> WorkEnded:
        """End the work of one task and carry out what follows."""
        fact = self.end(self.item(task), **how)  # type: ignore[arg-type]
        self.settle()
        return fact

    def bring_to_review(self, task: str) -> None:
        """Until a reviewer reads the task's change."""
        self.settle()
        while self.role(task) != "review":
            self.finish(task)

    # What people do

    def close_issue(self, number: int, who: str = PERSON) -> None:
        self.news.append(self.change_issue(number, state="closed", closed_by=who))

    def reopen_issue(self, number: int) -> None:
        self.news.append(self.change_issue(number, state="open", closed_by=""))

    def comment(self, issue: int, body: str, who: str = PERSON) -> CommentSnapshot:
        seen = self._put_comment(issue, body, who)
        self.news.append(seen)
        return seen

    def review(
        self, pull: int, verdict: Verdict, body: str = "", who: str = PERSON
    ) -> ReviewSnapshot:
        seen = self._review(pull, self.pull(pull).head, verdict, body, who)
        self.news.append(seen)
        return seen

    def close_pull(self, number: int, who: str = PERSON) -> None:
        self.news.append(self._end_pull(self.pull(number), "closed", who))

    def merge_pull(self, number: int, who: str = PERSON) -> None:
        self.news.append(self._end_pull(self.pull(number), "merged", who))
        self.news.append(self.objects["branch:main"])

    def push(self, pull: int) -> str:
        """A person pushes to the branch of a pull request."""
        commit = self.commit()
        self._move_branch(self.pull(pull).branch, commit)
        self.news.append(self.objects[f"pull:{pull}"])
        return commit

    def reopen_pull(self, number: int) -> None:
        """As a forge does: not while another one is open for the branch."""
        pull = self.pull(number)
        taken = [o for o in self.objects.values() if _open_from(o, pull.branch)]
        if pull.state != "closed" or taken or pull.branch not in self.branches:
            return
        head = self.branches[pull.branch]
        self._put(_replace(pull, version=self._next(), state="open", ended_by="", head=head))
        self.news.append(self.objects[pull.object])

    def delete_branch(self, name: str) -> None:
        self.branches.pop(name, None)

    def edit_issue(self, number: int, body: str) -> None:
        self.news.append(self.change_issue(number, body=body))

    def label(self, number: int, *labels: str) -> None:
        """Exactly these labels."""
        self.news.append(self.change_issue(number, labels=labels))

    def edit_pull(self, number: int, body: str) -> None:
        seen = self._put(_replace(self.pull(number), body=body, version=self._next()))
        self.news.append(seen)

    def open_issue(self, title: str, body: str, *labels: str) -> int:
        seen = self._put_issue(title, body, PERSON, labels)
        self.news.append(seen)
        assert isinstance(seen, IssueSnapshot)
        return seen.number

    def push_main(self) -> str:
        commit = self.commit()
        self.trees[commit] = (*self.trees[self.branches["main"]], commit)
        self._move_branch("main", commit)
        self.news.append(self.objects["branch:main"])
        return commit

    def open_pull(self, issue: int, branch: str = "ada/own") -> PullSnapshot:
        self._move_branch(branch, self.commit())
        seen = self._open_pull("mine", f"Closes #{issue}", branch, PERSON)
        self.news.append(seen)
        return seen

    # Looking

    def task(self, id: str) -> Task:
        return self.state.tasks[id]

    def status(self, id: str) -> Status:
        return self.state.tasks[id].status

    def statuses(self) -> dict[str, str]:
        return {i: str(t.status) for i, t in self.state.tasks.items()}

    def pull(self, number: int | None) -> PullSnapshot:
        found = self.objects[f"pull:{number}"]
        assert isinstance(found, PullSnapshot)
        return found

    def issue(self, number: int | None) -> IssueSnapshot:
        found = self.objects[f"issue:{number}"]
        assert isinstance(found, IssueSnapshot)
        return found

    def effects(self, kind: type[msgspec.Struct]) -> list[Effect | Probe]:
        return [e for e in self.done if isinstance(e, kind)]

    # Keeping

    def commit(self) -> str:
        self.commits += 1
        return f"c{self.commits}"

    def _next(self) -> int:
        self.version += 1
        return self.version

    def _number(self) -> int:
        self.number += 1
        return self.number

    def _put(self, seen: Snapshot) -> Snapshot:
        self.objects[seen.object] = seen
        self.unpolled.add(seen.object)
        return seen

    def poll(self) -> None:
        """Tell everything that changed since the last look."""
        self.news += [self.objects[name] for name in sorted(self.unpolled)]
        self.unpolled.clear()

    def _put_issue(self, title: str, body: str, author: str, labels: tuple[str, ...]) -> Snapshot:
        return self._put(
            IssueSnapshot(
                version=self._next(),
                number=self._number(),
                title=title,
                body=body,
                state="open",
                author=author,
                labels=labels,
            )
        )

    def change_issue(self, number: int, **changes: object) -> Snapshot:
        old = self.issue(number)
        return self._put(_replace(old, version=self._next(), **changes))

    def _put_comment(self, issue: int, body: str, author: str) -> CommentSnapshot:
        seen = CommentSnapshot(
            version=self._next(), id=self._number(), issue=issue, author=author, body=body
        )
        self._put(seen)
        return seen

    def _open_pull(self, title: str, body: str, branch: str, author: str) -> PullSnapshot:
        taken = any(_open_from(o, branch) for o in self.objects.values())
        if branch not in self.branches:
            raise Refused("gone")
        if taken:
            raise Refused("refused")
        closes = tuple(int(w[1:]) for w in body.split() if w.startswith("#"))
        seen = PullSnapshot(
            version=self._next(),
            number=self._number(),
            title=title,
            body=body,
            state="open",
            author=author,
            branch=branch,
            head=self.branches[branch],
            closes=closes,
        )
        self._put(seen)
        return seen

    def _review(
        self, number: int, head: str, verdict: Verdict, body: str, author: str = CALORON
    ) -> ReviewSnapshot:
        pull = self.pull(number)
        if pull.state != "open":
            raise Refused("refused")
        if pull.head != head:
            raise Refused("stale_head")
        seen = ReviewSnapshot(
            version=self._next(),
            id=self._number(),
            pull=number,
            head=head,
            verdict=verdict,
            author=author,
            body=body,
        )
        self._put(seen)
        return seen

    def _end_pull(
        self, pull: PullSnapshot, state: Literal["closed", "merged"], who: str
    ) -> PullSnapshot:
        merge = ""
        if state == "merged":
            merge = self.commit()
            self.trees[merge] = self.merged_tree(self.trees[self.branches["main"]], pull.head)
            self._move_branch("main", merge)
        seen = _replace(pull, version=self._next(), state=state, ended_by=who, merge_commit=merge)
        self._put(seen)
        return seen

    def _move_branch(self, name: str, commit: str) -> None:
        self.branches[name] = commit
        self._put(BranchSnapshot(version=self._next(), name=name, commit=commit))
        if name == "main":
            self.news.append(self.objects["branch:main"])
        for seen in list(self.objects.values()):
            if isinstance(seen, PullSnapshot) and seen.branch == name and seen.state == "open":
                self._put(_replace(seen, version=self._next(), head=commit))


def _open_from(seen: Snapshot, branch: str) -> bool:
    return isinstance(seen, PullSnapshot) and (seen.branch, seen.state) == (branch, "open")


def _tree(changes: tuple[str, ...]) -> str:
    return "+".join(sorted(changes))


class Refused(Exception):
    def __init__(self, kind: Refusal) -> None:
        super().__init__(kind)
        self.kind: Refusal = kind


def world(*plan: PlannedTask, **how: int) -> World:
    """A sprint with these tasks, each with its issue on the forge."""
    made = World(new_state(*plan, **how))  # type: ignore[arg-type]
    made.settle()
    return made


DIAMOND = (planned("a"), planned("b", "a"), planned("c", "a"), planned("d", "b", "c"))
