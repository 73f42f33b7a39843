"""The one executor of effects on the forge: intend, do, record; after a crash, look first.

No other module changes anything on a forge.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from caloron.agents import launch
from caloron.domain.actions import (
    AddLabel,
    CloseIssue,
    ClosePull,
    CreateIssue,
    EditIssue,
    Effect,
    Merge,
    OpenPull,
    PostComment,
    PostReview,
    Probe,
    Push,
    ReopenIssue,
    SeeBranch,
)
from caloron.domain.editing import read_text
from caloron.domain.facts import EffectDone, EffectFailed, Fact, Refusal
from caloron.domain.observations import BranchSeen, IssueSeen, Snapshot
from caloron.domain.ours import is_ours
from caloron.domain.sprint import State
from caloron.engine.bell import Bell
from caloron.engine.runs import RunDirs
from caloron.errors import (
    ForgeError,
    ForgeUnavailable,
    MergeConflict,
    NotFound,
    StaleBase,
    StaleHead,
)
from caloron.git.command import GitError
from caloron.git.mirror import Mirror
from caloron.ledger.journal import Entry, Journal
from caloron.ports import Clock, Forge
from caloron.store.crash import crashpoint
from caloron.store.redact import Redactor

_THREADS = 4
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0


class Effects:
    """Drains the journal with a few threads; effects of one task keep their order."""

    def __init__(
        self,
        journal: Journal,
        forge: Forge,
        mirror: Mirror,
        runs: RunDirs,
        clock: Clock,
        bell: Bell,
        redactor: Redactor,
    ) -> None:
        self._journal = journal
        self._forge = forge
        self._mirror = mirror
        self._runs = runs
        self._clock = clock
        self._bell = bell
        self._redactor = redactor
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="effect")
        self._running: set[int] = set()
        self._lock = threading.Lock()
        #: Only effects whose keys begin like this are still done; of others only the traces of
        #: those that were done already are taken in. For a sprint that was discarded.
        self.only = ""

    def dispatch(self) -> float | None:
        """Start what is due; the moment at which the next postponed effect is due, if any."""
        next_due: float | None = None
        for entry in self._journal.due():
            if entry.not_before > self._clock.now():
                next_due = min(next_due or entry.not_before, entry.not_before)
                continue
            with self._lock:
                if entry.id in self._running:
                    continue
                self._running.add(entry.id)
            self._pool.submit(self._run, entry)
        return next_due

    def close(self) -> None:
        """Let what was begun come to its end; begin nothing more."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, entry: Entry) -> None:
        try:
            self.perform(entry)
        except BaseException as error:  # noqa: BLE001 - handed to the loop, which stops with it
            self._bell.fault(error)
        finally:
            with self._lock:
                self._running.discard(entry.id)
            self._bell.ring()

    def perform(self, entry: Entry) -> None:
        """Carry one effect through to its record."""
        try:
            if isinstance(entry.effect, Probe):
                self._probe(entry, entry.effect)
                return
            found: tuple[Snapshot, ...] | None = None
            if entry.intended:
                found = self._find(entry.effect)
            else:
                self._journal.intend(entry)
                crashpoint("effect.intend")
            if found is None and not entry.effect.key.startswith(self.only):
                self._journal.drop(entry, "nobody wants it any more")
                return
            if found is None:
                found = self._do(entry.effect)
                crashpoint("effect.do")
            self._journal.record(entry, self._facts(entry, found))
            crashpoint("effect.record")
        except ForgeUnavailable as error:
            pause = min(_FIRST_PAUSE_S * 2 ** min(entry.tries, 10), _LONGEST_PAUSE_S)
            self._journal.postpone(entry, self._clock.now() + pause, str(error))
        except (ForgeError, NotFound, GitError) as error:
            self._journal.refuse(
                entry,
                EffectFailed(
                    key=entry.effect.key,
                    task=entry.effect.task,
                    kind=entry.kind,
                    refusal=self._refusal(entry.effect, error),
                    message=str(error),
                ),
                self._after_refusal(entry.effect),
            )

    def _probe(self, entry: Entry, probe: Probe) -> None:
        """Look at the process of a silent agent and write down what it does."""
        run_dir = self._runs.newest(probe.item)
        finding = launch.probe(run_dir) if run_dir else "no process was started"
        if not entry.intended:
            self._journal.intend(entry)
        self._journal.record(entry, (), finding)

    def _facts(self, entry: Entry, seen: tuple[Snapshot, ...]) -> tuple[Fact, ...]:
        effect = entry.effect
        if not isinstance(effect, Push | SeeBranch | ReopenIssue):
            return seen
        there = [branch.commit for branch in seen if isinstance(branch, BranchSeen)]
        commit = effect.new if isinstance(effect, Push) else "".join(there)
        done = EffectDone(key=effect.key, task=effect.task, kind=entry.kind, commit=commit)
        return (*seen, done)

    def _find(self, effect: Effect) -> tuple[Snapshot, ...] | None:
        """What an effect that may have been done left on the forge; None: do it."""
        forge = self._forge
        match effect:
            case CreateIssue():
                return _seen(forge.find_issue(effect.key))
            case PostComment():
                return _seen(forge.find_comment(effect.issue, effect.key))
            case OpenPull():
                return _seen(forge.find_pull(effect.branch, effect.key))
            case PostReview():
                return _seen(forge.find_review(effect.pull, effect.key))
            case Push():
                there = forge.branch(effect.branch)
                pushed = there is not None and there.commit == effect.new
                return self._after_push(effect) if pushed else None
            case Merge():
                pull = forge.pull(effect.pull)
                return self._after_merge(effect) if pull.state == "merged" else None
            case (
                AddLabel() | CloseIssue() | ReopenIssue() | EditIssue() | SeeBranch() | ClosePull()
            ):
                # Doing these looks at the object first.
                return None

    def _do(self, effect: Effect) -> tuple[Snapshot, ...]:
        forge, clean = self._forge, self._redactor.text
        seen: Snapshot
        match effect:
            case CreateIssue():
                seen = forge.create_issue(clean(effect.title), clean(effect.body), effect.labels)
            case PostComment():
                seen = forge.comment(effect.issue, clean(effect.body))
            case AddLabel() | CloseIssue() | ReopenIssue() | EditIssue():
                seen = self._do_to_issue(effect)
            case SeeBranch():
                there = forge.branch(effect.branch)
                return (there,) if there else ()
            case ClosePull():
                pull = forge.pull(effect.pull)
                seen = forge.close_pull(effect.pull) if pull.state == "open" else pull
            case Push():
                forge.push(self._mirror.path, effect.branch, effect.new, effect.old)
                return self._after_push(effect)
            case OpenPull():
                seen = forge.open_pull(clean(effect.title), clean(effect.body), effect.branch)
            case PostReview():
                body = clean(effect.body)
                seen = forge.review(effect.pull, effect.head, effect.verdict, body)
            case Merge():
                self._look_for_a_later_no(effect)
                forge.merge(effect.pull, effect.head, effect.base, clean(effect.message))
                return self._after_merge(effect)
        return (seen,)

    def _do_to_issue(self, effect: AddLabel | CloseIssue | ReopenIssue | EditIssue) -> IssueSeen:
        """Change an issue that is not yet as it is to be; what a person wrote there stays."""
        forge, number = self._forge, effect.issue
        issue = forge.issue(number)
        match effect:
            case AddLabel():
                there = effect.label in issue.labels
                return issue if there else forge.label(number, effect.label)
            case CloseIssue():
                return issue if issue.state == "closed" else forge.close_issue(number)
            case ReopenIssue():
                return issue if issue.state == "open" else forge.reopen_issue(number)
            case EditIssue():
                body = self._redactor.text(effect.body)
                return forge.edit_issue(number, body) if issue.body == effect.old else issue

    def _look_for_a_later_no(self, effect: Merge) -> None:
        """A person may have said no since the merge was decided, to us or on the forge."""
        state = self._journal.ledger.state(self._journal.sprint)
        task = state.tasks.get(effect.task)
        name = f"pull request #{effect.pull}"
        if task and task.merging != effect.head:
            raise StaleHead(f"{name} is not to be merged any more: {task.reason}")
        if task and task.issue is not None:
            self._look_at_issue(state, task.issue)
        words = [
            review
            for review in self._forge.reviews(effect.pull)
            if review.head == effect.head and review.verdict != "commented"
            if review.trusted or is_ours(state.sprint, review)
        ]
        if task and task.approval and task.approval.head == effect.head:
            words.append(task.approval)
        last = max(words, key=lambda r: (r.version, r.id), default=None)
        if last is not None and last.verdict == "changes_requested":
            raise StaleHead(f"{last.author} asked for changes in {name}")

    def _look_at_issue(self, state: State, number: int) -> None:
        known = state.objects.get(f"issue:{number}")
        issue = self._forge.issue(number)
        if issue.state == "closed":
            raise StaleHead(f"issue #{number} was closed")
        if not isinstance(known, IssueSeen) or not issue.trusted:
            return
        if read_text(issue.title, issue.body) != read_text(known.title, known.body):
            raise StaleHead(f"the text of issue #{number} was changed")

    def _after_refusal(self, effect: Effect | Probe) -> tuple[Snapshot, ...]:
        """The pull request and the issue as they are: often a person's act there explains it."""
        if not isinstance(effect, PostReview | Merge):
            return ()
        try:
            pull = self._forge.pull(effect.pull)
            issues = [self._forge.issue(n) for n in pull.closes if isinstance(effect, Merge)]
        except (ForgeError, NotFound):
            # The refusal itself is told, and is enough.
            return ()
        return (pull, *issues)

    def _refusal(self, effect: Effect | Probe, error: Exception) -> Refusal:
        """What kind of no it was; a branch that is not where it was may not be there at all."""
        try:
            gone = self._branch_is_gone(effect, error)
        except (ForgeError, NotFound):
            # Whether it is there is not known: the refusal stays what it is.
            gone = False
        return "gone" if gone else _refusal(error)

    def _branch_is_gone(self, effect: Effect | Probe, error: Exception) -> bool:
        match effect:
            case Push():
                moved = isinstance(error, StaleHead) and bool(effect.old)
                return moved and self._forge.branch(effect.branch) is None
            case OpenPull():
                return self._forge.branch(effect.branch) is None
            case Merge() if isinstance(error, StaleHead):
                pull = self._forge.pull(effect.pull)
                return pull.state == "open" and self._forge.branch(pull.branch) is None
            case _:
                return False

    def _after_push(self, effect: Push) -> tuple[Snapshot, ...]:
        """The pull request with its new head: told together with the push."""
        return () if effect.pull is None else (self._forge.pull(effect.pull),)

    def _after_merge(self, effect: Merge) -> tuple[Snapshot, ...]:
        """The merged pull request and where main is now."""
        main = self._forge.branch(self._forge.main)
        return (self._forge.pull(effect.pull), *((main,) if main else ()))


def _seen(found: Snapshot | None) -> tuple[Snapshot, ...] | None:
    return None if found is None else (found,)


def _refusal(error: Exception) -> Refusal:
    match error:
        case StaleHead():
            return "stale_head"
        case StaleBase():
            return "stale_base"
        case MergeConflict():
            return "conflict"
        case _:
            return "refused"
