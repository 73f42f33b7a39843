"""Leaves the trail of an agent outside of sprints: a comment and a section, through the journal.

The next call of the same agent finishes the effects of a killed call, after a look for traces.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from caloron.cycles.report import Breadcrumb
from caloron.cycles.state import CycleState
from caloron.domain.model.effects import Describe, Effect, Probe, ReportProgress
from caloron.domain.model.facts import Fact
from caloron.domain.model.snapshots import CommentSnapshot, IssueSnapshot, PullSnapshot, has_section
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.reporting.forge_texts import comment_body
from caloron.engine.forge.connect import open_forge
from caloron.engine.forge.executor import execute
from caloron.engine.forge.operations import ForgeOperations
from caloron.engine.runs.runtime import known_secrets
from caloron.engine.signals import SystemClock
from caloron.errors import ForgeError, ForgeUnavailable, NotFound
from caloron.git.mirror import Mirror
from caloron.ledger.journal import CycleJournal
from caloron.ledger.ledger import Ledger
from caloron.ledger.projects import Project
from caloron.ports import Forge
from caloron.store.lock import file_lock
from caloron.store.redact import Redactor


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The issue or the pull request that an agent works on."""

    number: int
    is_pull: bool

    @property
    def words(self) -> str:
        return f"{'pull request' if self.is_pull else 'issue'} #{self.number}"


class Trail(msgspec.Struct, kw_only=True):
    """Our comment and section at one place, as last seen."""

    #: The comment, if one was written.
    comment: int | None = None
    #: A person deleted it: it is not written again.
    deleted: bool = False
    #: Our section was seen; if it is gone, a person took it out.
    section: bool = False


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call."""

    trail: Trail
    url: str
    #: The number of effects performed now; 0: everything was there already.
    done: int
    #: Refusals of effects that an earlier, killed call had begun.
    refused: tuple[str, ...] = ()


def effects_for(state: CycleState, crumb: Breadcrumb, place: Place, trail: Trail) -> list[Effect]:
    """One comment, and from the second cycle on a section; the same trail has the same keys."""
    number, agent, text = place.number, state.agent, crumb.text.replace("@", "@\u200b")
    version = sha256(f"{state.seq} {text}".encode()).hexdigest()[:12]
    which = f"cycle/{agent}/{number}/{state.cycle_number}-{version}"
    marker = f"comment/cycle/{agent}/{number}"
    effects: list[Effect] = [
        ReportProgress(
            key=f"progress/{which}",
            task=str(number),
            issue=number,
            comment=trail.comment,
            marker=marker,
            body=comment_body(text, marker),
        )
    ]
    if state.work_cycles > 1 or trail.section:
        effects.append(
            Describe(
                key=f"describe/{which}",
                task=str(number),
                number=number,
                is_pull=place.is_pull,
                section=section_name(agent),
                text=text,
                add=not trail.section,
            )
        )
    return effects


def section_name(agent: str) -> str:
    """Return the name of an agent's section in its markers."""
    return f"cycle/{agent}"


def leave(project: Project, state: CycleState, crumb: Breadcrumb, place: Place) -> Left:
    """Bring comment and section at one place up to date; one call of an agent at a time."""
    with file_lock(project.path / f".breadcrumb.{state.agent}.lock"):
        ledger = Ledger(project.ledger)
        forge = open_forge(project)
        try:
            _look(forge, place)
            return _Leaving(project, ledger, forge, state.agent).leave(state, crumb, place)
        finally:
            forge.close()
            ledger.close()


def _look(forge: Forge, place: Place) -> IssueSnapshot | PullSnapshot:
    return forge.pull(place.number) if place.is_pull else forge.issue(place.number)


class _Leaving:
    """The journal of one agent, and the forge operations that perform its entries."""

    def __init__(self, project: Project, ledger: Ledger, forge: Forge, agent: str) -> None:
        self._ledger, self._forge, self._agent = ledger, forge, agent
        self._journal = CycleJournal(ledger, agent)
        self._changes = ForgeOperations(
            forge,
            Mirror(project.mirror, forge.remote(), forge.main),
            Redactor(known_secrets(project.config)),
            SystemClock(),
            # Only a merge would ask for it.
            lambda: State(sprint=Sprint(id=project.name, number=0, goal="")),
        )

    def leave(self, state: CycleState, crumb: Breadcrumb, place: Place) -> Left:
        known = self._known(place)
        effects = effects_for(state, crumb, place, known)
        self._journal.plan(effects)
        keys, refused, done = {effect.key for effect in effects}, [], 0
        while due := self._journal.due():
            for entry in due:
                assert not isinstance(entry.effect, Probe)
                try:
                    facts = execute(self._journal, self._changes, entry, entry.effect)
                except ForgeUnavailable:
                    raise
                except (ForgeError, NotFound) as error:
                    self._journal.fail(entry, str(error))
                    if entry.effect.key in keys:
                        raise
                    # Of a call that was killed; what it was about may be gone since.
                    refused.append(str(error))
                else:
                    self._remember(entry.effect, facts)
                    done += 1
        return Left(
            trail=self._known(place),
            url=self._forge.url(place.number, pull=place.is_pull),
            done=done,
            refused=tuple(refused),
        )

    def _key(self, number: str | int) -> str:
        return f"breadcrumb/{self._agent}/{number}"

    def _known(self, place: Place) -> Trail:
        text = self._ledger.get(self._key(place.number))
        return msgspec.json.decode(text, type=Trail) if text else Trail()

    def _remember(self, effect: Effect, facts: tuple[Fact, ...]) -> None:
        """Store that comment and section were seen: so their removal by a person is noticed."""
        key = self._key(effect.task)
        text = self._ledger.get(key)
        trail = msgspec.json.decode(text, type=Trail) if text else Trail()
        for seen in facts:
            if isinstance(seen, CommentSnapshot):
                trail.comment = seen.id
            elif isinstance(seen, IssueSnapshot | PullSnapshot):
                trail.section = trail.section or has_section(seen.body, section_name(self._agent))
        if isinstance(effect, ReportProgress):
            trail.deleted = not facts
        self._ledger.put(key, msgspec.json.encode(trail).decode())
