"""The learnings of a project: improvements with their fate, and the context of the next planner.

They are derived anew from the sprints each time. Stored is only what cannot be derived: notes of an
older Caloron or of a person, and which improvements were in which planner's prompt.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Literal

import msgspec

from caloron.domain.model.retro_answer import PRIORITIES, Priority
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.reporting.kpis import (
    Kpis,
    Run,
    blockers_of,
    compute_kpis,
    tools_of,
)
from caloron.domain.reporting.retro_rules import RULE, RULES_SAY, Finding, findings
from caloron.domain.reporting.waiting import verification_of

Fate = Literal["pending", "applied", "retired"]
#: Each fate in words. The ledger does not know whether a planner followed an improvement.
FATE: dict[Fate, str] = {
    "pending": "in no prompt yet",
    "applied": "was in a prompt",
    "retired": "retired",
}
#: So many good sprints in a row retire an improvement.
RETIRE_AFTER = 2
#: So many sprints in which no model repeats an improvement retire it.
FORGET_AFTER = 6
_MAX_PROMPTS = 100
_IN_CONTEXT = 8
#: Only so many of the last sprints are searched for improvements of models.
_MODEL_SPRINTS = 50

_FILLER = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been by for from had has have in is it its of on or so that the"
        " their them then there these this to was were will with",
    )
)
#: The rule whose number judges an improvement in words of others.
_ABOUT = (
    ("task-clarity", re.compile(r"clarit|unclear|ambigu|clearer|specif", re.IGNORECASE)),
    ("interventions", re.compile(r"supervisor|intervention|stall|timeout", re.IGNORECASE)),
    ("dependencies", re.compile(r"depend|\bdag\b", re.IGNORECASE)),
    ("tools", re.compile(r"\btool", re.IGNORECASE)),
    ("review-loops", re.compile(r"review", re.IGNORECASE)),
    ("red-results", re.compile(r"\btests?\b|verif", re.IGNORECASE)),
)


class SprintRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A sprint that ended, as the next ones use it."""

    id: str
    goal: str = ""
    kpis: Kpis = Kpis()
    findings: tuple[Finding, ...] = ()
    blockers: tuple[str, ...] = ()
    #: Why it has no plan or did not begin.
    stopped: str = ""
    #: The changes that were merged although red.
    debts: tuple[str, ...] = ()
    review_cycles: int = 0
    tools: dict[str, int] = msgspec.field(default_factory=dict)
    #: A plan that was discarded before any work says nothing about the work.
    teaches: bool = True


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """An improvement in the words of an older Caloron or of a person."""

    text: str
    #: The last sprint that had ended when it was written; later ones judge it.
    since: str = ""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The stored part of the learnings, which cannot be derived from the sprints."""

    sprints: tuple[SprintRecord, ...] = ()
    noted: tuple[Noted, ...] = ()
    #: Improvements that a person has retired, by key.
    dropped: tuple[str, ...] = ()
    #: The improvements in the planner's prompt, by sprint.
    prompts: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict, name="told")
    last_context: str = msgspec.field(default="", name="last_po_context")


class Improvement(msgspec.Struct, frozen=True, kw_only=True):
    """An improvement and its fate."""

    id: str
    #: The same for the same meaning.
    key: str
    text: str
    rule: str = ""
    category: str = "Observation"
    priority: Priority = "medium"
    action: str = ""
    evidence: str = ""
    status: Fate = "pending"
    #: The sprints that showed the need, those whose planner read it, and good sprints since.
    seen_in: tuple[str, ...] = ()
    applied_in: tuple[str, ...] = ()
    good_since: int = 0
    for_planner: bool = True
    #: `rules`, the framework and model that found it, or `noted`: a person or an older Caloron.
    source: str = RULES_SAY
    applies_when: str = ""


def record_of(state: State, runs: Sequence[Run], now: float) -> SprintRecord:
    """Return a sprint as the next ones use it."""
    kpis = compute_kpis(state, runs, now)
    return SprintRecord(
        id=state.sprint.id,
        goal=state.sprint.goal,
        kpis=kpis,
        findings=findings(state, kpis),
        blockers=blockers_of(state),
        stopped=state.sprint.planning.failure,
        debts=tuple(
            f"{task.id} (pull request #{task.links.pull})"
            for task in state.tasks.values()
            if task.status is Status.DONE and verification_of(task) == "red, allowed"
        ),
        review_cycles=sum(len(task.review.reviewed) for task in state.tasks.values()),
        tools=tools_of(state, runs),
        teaches=not state.sprint.discard.by or any(run.task for run in runs),
    )


@lru_cache(maxsize=10_000)
def same_meaning(text: str) -> str:
    """Return one key for texts that differ in case, order, numbers or small words only."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = re.findall(r"[^\W\d_]{2,}", plain)
    kept = {_stem(word) for word in words} - _FILLER
    return " ".join(sorted(kept)) or plain.strip()


def _stem(word: str) -> str:
    plural = len(word) > 3 and word.endswith("s") and not word.endswith("ss")
    return word[:-1] if plural else word


def improvements(records: Sequence[SprintRecord], kept: Kept) -> tuple[Improvement, ...]:
    """Return every improvement once with its fate, the most urgent first."""
    result: dict[str, Improvement] = {}
    for noted in kept.noted:
        key = same_meaning(noted.text)
        rule = rule_about(noted.text)
        if key not in result:
            own = Improvement(id=_id_of(key), key=key, text=noted.text, rule=rule, source="noted")
            result[key] = _followed(own, records, kept, noted.since)
    for key, (since, finding) in _said_by_models(records).items():
        rule = rule_about(finding.description)
        own = msgspec.structs.replace(_improvement(key, finding), rule=rule)
        result.setdefault(key, _followed(own, records[since:], kept))
    # The newest finding of a rule stands for the older ones.
    newest = {finding.rule: finding for r in records for finding in r.findings if finding.rule}
    for finding in newest.values():
        key = same_meaning(finding.description)
        result[key] = _followed(_improvement(key, finding), records, kept)
    fates: tuple[Fate, ...] = ("applied", "pending", "retired")
    ordered = sorted(
        result.values(),
        key=lambda i: (i.status == "retired", PRIORITIES.index(i.priority), fates.index(i.status)),
    )
    return tuple(ordered)


def _id_of(key: str) -> str:
    """Return an id that does not depend on other improvements."""
    return f"imp-{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def as_of(
    sprint: str, records: Sequence[SprintRecord], kept: Kept
) -> tuple[list[SprintRecord], Kept]:
    """Return the learnings at the end of a sprint, without later sprints and notes."""
    ids = [record.id for record in records]
    if sprint not in ids:
        return list(records), kept
    later = set(ids[ids.index(sprint) + 1 :])
    return [record for record in records if record.id not in later], msgspec.structs.replace(
        kept,
        noted=tuple(noted for noted in kept.noted if noted.since not in later),
        prompts={name: keys for name, keys in kept.prompts.items() if name not in later},
    )


def _said_by_models(records: Sequence[SprintRecord]) -> dict[str, tuple[int, Finding]]:
    """Return the improvements of models by key: the first sprint, and the last wording."""
    result: dict[str, tuple[int, Finding]] = {}
    for position in range(max(0, len(records) - _MODEL_SPRINTS), len(records)):
        for finding in records[position].findings:
            if not finding.rule:
                key = same_meaning(finding.description)
                result[key] = (result[key][0] if key in result else position, finding)
    return result


def _improvement(key: str, finding: Finding) -> Improvement:
    return Improvement(
        id=f"imp-{finding.rule}" if finding.rule else _id_of(key),
        key=key,
        text=finding.description,
        rule=finding.rule,
        category=finding.category,
        priority=finding.priority,
        action=finding.action,
        evidence=finding.evidence,
        for_planner=finding.for_planner,
        source=finding.source,
        applies_when=finding.applies_when,
    )


def _followed(
    improvement: Improvement, records: Sequence[SprintRecord], kept: Kept, since: str = ""
) -> Improvement:
    """Derive the fate of an improvement from the prompts and the numbers since."""
    ids = [record.id for record in records]
    later = records[ids.index(since) + 1 :] if since in ids else records
    seen_in, good, silent = [], 0, 0
    for record in later:
        if any(_shows(finding, improvement) for finding in record.findings):
            seen_in.append(record.id)
            good = silent = 0
        else:
            good += int(_judged(improvement.rule, record))
            silent += 1
    # A planner that made no plan has not used its prompt.
    without = {record.id for record in records if record.stopped and not record.kpis.total_tasks}
    applied = tuple(
        sprint
        for sprint, keys in kept.prompts.items()
        if improvement.key in keys and sprint not in without
    )
    dropped = improvement.key in kept.dropped
    by_model = improvement.source not in (RULES_SAY, "noted")
    forgotten = by_model and silent >= FORGET_AFTER
    status: Fate = "applied" if applied else "pending"
    return msgspec.structs.replace(
        improvement,
        seen_in=tuple(seen_in),
        applied_in=applied,
        good_since=good,
        status="retired" if dropped or forgotten or good >= RETIRE_AFTER else status,
    )


def _shows(finding: Finding, improvement: Improvement) -> bool:
    """True if a finding shows that the improvement is still needed."""
    if finding.rule:
        return finding.rule == improvement.rule
    return same_meaning(finding.description) == improvement.key


def _judged(rule: str, record: SprintRecord) -> bool:
    """True if a sprint without the finding shows that the improvement worked."""
    if rule in RULE:
        return RULE[rule].judged(record.kpis)
    return record.kpis.total_tasks > 0 and record.kpis.completed_tasks == record.kpis.total_tasks


def rule_about(text: str) -> str:
    return next((name for name, pattern in _ABOUT if pattern.search(text)), "")


def planner_context(records: Sequence[SprintRecord], kept: Kept) -> tuple[str, tuple[str, ...]]:
    """Return the context of the next planner, and the keys of the improvements in it."""
    known = [*kept.sprints, *records]
    live = [i for i in improvements(records, kept) if i.status != "retired" and i.for_planner]
    chosen = live[:_IN_CONTEXT]
    if not known and not chosen:
        return "", ()
    many = "sprint" if len(known) == 1 else f"{len(known)} sprints"
    lines = [f"The last {many} of this project:" if known else ""]
    lines += _older(known[:-2])
    lines += [_line(record) for record in known[-2:]]
    if chosen:
        lines += ["", "What to do better this time:"]
        lines += [f"- [{i.priority}] {i.text}{_evidence(i)}" for i in chosen]
    debts = [f"- {record.id}: {debt}" for record in known for debt in record.debts]
    if debts:
        lines += ["", "Merged although red, still to be put right:", *debts[-_IN_CONTEXT:]]
    if known and known[-1].blockers:
        lines += ["", f"What stood in the way in {known[-1].id}:"]
        lines += [f"- {text[:300]}" for text in known[-1].blockers[-_IN_CONTEXT:]]
    return "\n".join(lines), tuple(i.key for i in chosen)


def _evidence(improvement: Improvement) -> str:
    where = f" ({', '.join(improvement.seen_in[-3:])})" if improvement.seen_in else ""
    when = f" — when: {improvement.applies_when}" if improvement.applies_when else ""
    return f"{when} — {improvement.evidence}{where}" if improvement.evidence else f"{when}{where}"


def _older(older: Sequence[SprintRecord]) -> list[str]:
    if not older:
        return []
    done = sum(record.kpis.completed_tasks for record in older)
    total = sum(record.kpis.total_tasks for record in older)
    share = f" ({100 * done / total:.0f} %)" if total else ""
    lines = [f"- {older[0].id} to {older[-1].id}: {done}/{total} tasks done{share}"]
    themes = Counter(same_meaning(text) for record in older for text in set(record.blockers))
    first = {same_meaning(text): text for record in reversed(older) for text in record.blockers}
    again = [(key, n) for key, n in themes.most_common(3) if n >= 2]
    return lines + [f"  again and again ({n} times): {first[key][:60]}" for key, n in again]


def _line(record: SprintRecord) -> str:
    kpis = record.kpis
    parts = [f"{kpis.completed_tasks}/{kpis.total_tasks} tasks done"]
    if record.stopped:
        parts.append(f"stopped: {record.stopped[:160]}")
    if kpis.avg_clarity is not None:
        parts.append(f"clarity {kpis.avg_clarity:.1f}/10")
    if kpis.avg_review_cycles is not None:
        parts.append(f"{kpis.avg_review_cycles:.2f} reviews per task")
    if kpis.total_interventions:
        parts.append(f"{kpis.total_interventions} steps of the supervisor")
    if kpis.cost_usd:
        parts.append(f"${kpis.cost_usd:.2f}")
    goal = " ".join(record.goal.split())[:100]
    return f"- {record.id}: {', '.join(parts)}" + (f' — "{goal}"' if goal else "")


def with_context(kept: Kept, sprint: str, context: str, keys: tuple[str, ...]) -> Kept:
    """Store the context of a sprint's planner."""
    prompts = {name: had for name, had in kept.prompts.items() if name != sprint} | {sprint: keys}
    return msgspec.structs.replace(
        kept, prompts=dict(list(prompts.items())[-_MAX_PROMPTS:]), last_context=context
    )
