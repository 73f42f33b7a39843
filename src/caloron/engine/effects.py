"""The one executor of effects on the forge: intend, do, record; after a crash, look first.

No other module changes anything on a forge.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec

from caloron.agents import launch
from caloron.domain.actions import (
    AddLabel,
    CloseIssue,
    ClosePull,
    CreateIssue,
    Effect,
    MakeRevert,
    Merge,
    OpenPull,
    PostComment,
    PostReview,
    Probe,
    Push,
    ReopenIssue,
)
from caloron.domain.facts import EffectDone, EffectFailed, Fact, Refusal
from caloron.domain.observations import Snapshot
from caloron.engine.bell import Bell
from caloron.engine.landed import bring_back, make_revert, merge_told
from caloron.engine.runs import RunDirs
from caloron.errors import (
    ChecksFailed,
    ForgeError,
    ForgeUnavailable,
    MergeConflict,
    NotFound,
    NotYet,
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
#: A forge that only has to finish something else is asked again sooner.
_LONGEST_NOT_YET_S = 15.0


class ChecksPending(ForgeError):
    """The forge's own CI has not ended: the lane is free for others until it has."""


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
            found: tuple[Fact, ...] | None = None
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
            self._journal.record(entry, found)
            crashpoint("effect.record")
        except ForgeUnavailable as error:
            longest = _LONGEST_NOT_YET_S if isinstance(error, NotYet) else _LONGEST_PAUSE_S
            pause = min(_FIRST_PAUSE_S * 2 ** min(entry.tries, 10), longest)
            self._journal.postpone(entry, self._clock.now() + pause, str(error))
        except (ForgeError, NotFound, GitError) as error:
            self._journal.refuse(
                entry,
                EffectFailed(
                    key=entry.effect.key,
                    task=entry.effect.task,
                    kind=entry.kind,
                    refusal=_refusal(error),
                    message=str(error),
                ),
                self._after_refusal(entry.effect, error),
            )

    def _probe(self, entry: Entry, probe: Probe) -> None:
        """Look at the process of a silent agent and write down what it does."""
        run_dir = self._runs.newest(probe.item)
        finding = launch.probe(run_dir) if run_dir else "no process was started"
        if not entry.intended:
            self._journal.intend(entry)
        self._journal.record(entry, (), finding)

    def _find(self, effect: Effect) -> tuple[Fact, ...] | None:
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
            case MakeRevert():
                seen = forge.branch(effect.branch)
                return self._after_revert(effect, seen.commit) if seen else None
            case AddLabel() | CloseIssue() | ClosePull() | ReopenIssue():
                # Doing these looks at the object first.
                return None

    def _do(self, effect: Effect) -> tuple[Fact, ...]:  # noqa: C901 - all changes in one place
        forge, clean = self._forge, self._redactor.text
        seen: Snapshot
        match effect:
            case CreateIssue():
                seen = forge.create_issue(clean(effect.title), clean(effect.body), effect.labels)
            case PostComment():
                seen = forge.comment(effect.issue, clean(effect.body))
            case AddLabel():
                issue = forge.issue(effect.issue)
                held = effect.label in issue.labels
                seen = issue if held else forge.label(effect.issue, effect.label)
            case CloseIssue():
                issue = forge.issue(effect.issue)
                seen = issue if issue.state == "closed" else forge.close_issue(effect.issue)
            case ReopenIssue():
                issue = forge.issue(effect.issue)
                seen = issue if issue.state == "open" else forge.reopen_issue(effect.issue)
                return (seen, _done(effect, "reopen_issue"))
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
                was_open = forge.pull(effect.pull).state == "open"
                self._look_for_a_later_no(effect)
                self._look_at_checks(effect)
                forge.merge(effect.pull, effect.head, effect.base, clean(effect.message))
                return self._after_merge(effect, did_it=was_open)
            case MakeRevert():
                made = make_revert(self._mirror, effect)
                forge.push(self._mirror.path, effect.branch, made.head, "")
                return self._after_revert(effect, made.head)
        return (seen,)

    def _look_for_a_later_no(self, effect: Merge) -> None:
        """A person may have asked for changes since the merge was decided."""
        words = [
            review
            for review in self._forge.reviews(effect.pull)
            if review.head == effect.head and review.verdict != "commented"
        ]
        last = max(words, key=lambda r: (r.version, r.id), default=None)
        if last is not None and last.verdict == "changes_requested":
            raise StaleHead(f"{last.author} asked for changes in pull request #{effect.pull}")

    def _look_at_checks(self, effect: Merge) -> None:
        """The forge's own CI has its say before a merge, where there is one."""
        checks = self._forge.checks(effect.head)
        if checks.state == "pending":
            raise ChecksPending(f"waits for the forge's CI: {checks.detail or 'not told yet'}")
        if checks.state == "red":
            raise ChecksFailed(f"the forge's CI failed: {checks.detail or 'no details'}")

    def _after_refusal(self, effect: Effect | Probe, error: Exception) -> tuple[Snapshot, ...]:
        """The pull request as it is: often a person closed or merged it, and that explains it.

        Of a merge that came too late also main and the reviews: one of them came before it.
        """
        if not isinstance(effect, PostReview | Merge) or isinstance(error, ChecksPending):
            return ()
        try:
            pull = self._forge.pull(effect.pull)
            if pull.state != "open" or not isinstance(error, StaleBase | StaleHead):
                return (pull,)
            return (pull, *self._main(), *self._forge.reviews(effect.pull))
        except (ForgeError, NotFound):
            # The refusal itself is told, and is enough.
            return ()

    def _after_push(self, effect: Push) -> tuple[Fact, ...]:
        """The pull request with its new head: told together with the push."""
        done = _done(effect, "push", effect.new)
        return (done,) if effect.pull is None else (self._forge.pull(effect.pull), done)

    def _after_merge(self, effect: Merge, *, did_it: bool = False) -> tuple[Fact, ...]:
        """The merged pull request, where main is now, and what was put there."""
        pull = self._forge.pull(effect.pull)
        told = merge_told(self._mirror, effect, pull, did_it=did_it)
        return (pull, *self._main(), told)

    def _after_revert(self, effect: MakeRevert, head: str) -> tuple[Fact, ...]:
        if not self._mirror.has(head):
            self._mirror.fetch_branch(effect.branch)
        again = bring_back(self._mirror, effect, head)
        return (msgspec.structs.replace(_done(effect, "revert", head), again=again),)

    def _main(self) -> tuple[Snapshot, ...]:
        main = self._forge.branch(self._forge.main)
        return (main,) if main else ()


def _done(effect: Effect, kind: str, commit: str = "") -> EffectDone:
    return EffectDone(key=effect.key, task=effect.task, kind=kind, commit=commit)


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
        case ChecksPending():
            return "waiting"
        case ChecksFailed():
            return "checks"
        case _:
            return "refused"
