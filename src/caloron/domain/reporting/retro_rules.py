"""What a sprint teaches, found by rules: themes to read, and improvements to try.

Each rule looks at one number. The number that makes a rule speak is the one that must get better
before its improvement is retired.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from caloron.domain.model.feedback import Feedback
from caloron.domain.model.retro_answer import PRIORITIES, Category, Insight, Priority, Sentiment
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting.kpis import LOOP, Kpis, blockers_of
from caloron.slicing import to_slice

#: Where an improvement comes from that no model and no person wrote.
RULES_SAY = "rules"

_UNCLEAR = 5
_VERY_UNCLEAR = 3
_MANY_TOKENS = 30_000
_MANY_FAILURES = 0.3

_DEPENDENCY = re.compile(r"depend|\bdag\b|not in the dag|discovered at runtime", re.IGNORECASE)
_TOOL = re.compile(r"\btools?\b|command not found|no module named", re.IGNORECASE)
_MISSING = re.compile(
    r"unavailable|missing|not available|not configured|not installed|not found|no module named",
    re.IGNORECASE,
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do better, and what it was seen by."""

    #: Empty: a model found it, and `source` says which.
    rule: str
    category: Category
    priority: Priority
    description: str
    action: str = ""
    evidence: str = ""
    source: str = RULES_SAY
    #: For which goals or tasks it matters, if that was said.
    applies_when: str = ""
    #: Something that a planner can act on.
    for_planner: bool = True


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules say about one sprint."""

    themes: tuple[str, ...] = ()
    improvements: tuple[Finding, ...] = ()
    learnings: tuple[str, ...] = ()
    sentiment: Sentiment = "neutral"


class Seen(NamedTuple):
    """What a rule looks at."""

    state: State
    kpis: Kpis
    feedback: dict[str, Feedback]

    def tasks(self, *statuses: Status) -> list[Task]:
        return [t for t in self.state.tasks.values() if t.status in statuses]


class Rule(NamedTuple):
    """A rule: what to say, and from what."""

    name: str
    category: Category
    description: str
    action: str
    #: What it was seen by, and how urgent that makes it; None: nothing was seen.
    look: Callable[[Seen], tuple[Priority, str] | None]
    #: Whether the sprint has the number at all: only then is silence good news.
    judged: Callable[[Kpis], bool] = lambda kpis: kpis.total_tasks > 0
    for_planner: bool = True


def _unclear(seen: Seen) -> tuple[Priority, str] | None:
    low = {n: f.task_clarity for n, f in seen.feedback.items() if 0 < f.task_clarity < _UNCLEAR}
    if not low:
        return None
    urgent = min(low.values()) <= _VERY_UNCLEAR
    told = ", ".join(f"{name} {clarity}/10" for name, clarity in low.items())
    return "critical" if urgent else "high", f"clarity below {_UNCLEAR}: {told}"


def _said(seen: Seen, *patterns: re.Pattern[str]) -> tuple[Priority, str] | None:
    said = [b for b in blockers_of(seen.state) if all(p.search(b) for p in patterns)]
    return ("high", f"blockers: {'; '.join(text[:100] for text in said[:3])}") if said else None


def _conflicts(seen: Seen) -> tuple[Priority, str] | None:
    n = seen.kpis.conflict_count
    return ("medium", f"{n} conflict{'s' if n > 1 else ''} with main") if n else None


def _loops(seen: Seen) -> tuple[Priority, str] | None:
    loops = [t for t in seen.state.tasks.values() if len(t.review.reviewed) >= LOOP]
    told = ", ".join(f"{t.id} {len(t.review.reviewed)} reviews" for t in loops)
    return ("medium", told) if loops else None


def _interventions(seen: Seen) -> tuple[Priority, str] | None:
    kpis = seen.kpis
    if not kpis.total_interventions:
        return None
    steps = "1 step" if kpis.total_interventions == 1 else f"{kpis.total_interventions} steps"
    told = f"{steps} of the supervisor in {kpis.total_tasks} tasks"
    return ("high" if kpis.avg_interventions > 1 else "medium"), told


def _failures(seen: Seen) -> tuple[Priority, str] | None:
    failed = seen.tasks(Status.ESCALATED)
    if not failed:
        return None
    many = len(failed) > _MANY_FAILURES * seen.kpis.total_tasks
    return ("high" if many else "medium"), "; ".join(f"{t.id}: {t.reason[:100]}" for t in failed)


def _many_failures(seen: Seen) -> tuple[Priority, str] | None:
    kpis = seen.kpis
    if not kpis.total_tasks or kpis.failure_count <= _MANY_FAILURES * kpis.total_tasks:
        return None
    return "high", f"{kpis.failure_count} of {kpis.total_tasks} tasks failed"


def _red(seen: Seen) -> tuple[Priority, str] | None:
    kpis = seen.kpis
    told = f"{kpis.verify_failures} of {kpis.verify_runs} verifications were red"
    return ("medium", told) if kpis.verify_failures else None


def _tokens(seen: Seen) -> tuple[Priority, str] | None:
    mean = seen.kpis.avg_tokens_per_task
    # Planners that named the files of every task cannot do more.
    named = all(task.plan.files for task in seen.state.tasks.values())
    many = mean and mean > _MANY_TOKENS and not named
    return ("low", f"{mean:.0f} tokens per task") if many else None


def _no_plan(seen: Seen) -> tuple[Priority, str] | None:
    sprint = seen.state.sprint
    if not sprint.planning.failure or sprint.planning.failure_kind:
        return None
    return "high", sprint.planning.failure[:200]


def _silent(seen: Seen) -> tuple[Priority, str] | None:
    tasks = seen.kpis.total_tasks
    return ("low", f"0 of {tasks} tasks have feedback") if tasks and not seen.feedback else None


RULES: tuple[Rule, ...] = (
    Rule(
        "task-clarity",
        "TaskTemplate",
        "Write clearer tasks: name the inputs, the outputs and what must hold when it is done",
        "improve_task_template",
        _unclear,
        lambda kpis: kpis.clarity_count > 0,
    ),
    Rule(
        "dependencies",
        "DagStructure",
        "Let a task depend on those whose results it needs",
        "add_dag_dependency",
        lambda seen: _said(seen, _DEPENDENCY),
    ),
    Rule(
        "conflicts",
        "DagStructure",
        "Let tasks that change the same files depend on each other",
        "add_dag_dependency",
        _conflicts,
    ),
    Rule(
        "tools",
        "Tooling",
        "Plan with the tools that agents have, and say which task needs another",
        "add_tool",
        lambda seen: _said(seen, _TOOL, _MISSING),
    ),
    Rule(
        "review-loops",
        "ReviewProcess",
        "Split what needs many reviews, and write down what a reviewer will look for",
        "adjust_review_process",
        _loops,
    ),
    Rule(
        "interventions",
        "AgentDefinition",
        "Make tasks smaller: agents fell silent or ran out of time",
        "adjust_stall_threshold",
        _interventions,
    ),
    Rule(
        "failures",
        "TaskTemplate",
        "Plan around what made tasks fail: give the missing context, or leave it out",
        "improve_task_template",
        _failures,
    ),
    Rule(
        "many-failures",
        "AgentDefinition",
        "Use a stronger model, or easier tasks: too many failed",
        "change_model",
        _many_failures,
    ),
    Rule(
        "red-results",
        "SystemPrompt",
        "Say in each task how its result is tested, so that agents test it themselves",
        "add_prompt_instruction",
        _red,
        lambda kpis: kpis.verify_runs > 0,
    ),
    Rule(
        "tokens",
        "TaskTemplate",
        "Name the files that matter in each task: agents read too much to find them",
        "improve_task_template",
        _tokens,
        lambda kpis: bool(kpis.avg_tokens_per_task),
    ),
    Rule(
        "no-plan",
        "TaskTemplate",
        "Answer with a plan in the asked form: the last one could not be used",
        "improve_task_template",
        _no_plan,
    ),
    Rule(
        "no-feedback",
        "SystemPrompt",
        "Ask agents for feedback: none was given, so clarity and blockers are not known",
        "add_prompt_instruction",
        _silent,
        for_planner=False,
    ),
)
RULE = {rule.name: rule for rule in RULES}


def feedback_of(state: State) -> dict[str, Feedback]:
    """What the agents said, by task."""
    return {task.id: task.log.feedback for task in state.tasks.values() if task.log.feedback}


def analyze(state: State, kpis: Kpis) -> Analysis:
    """Themes, improvements and learnings of one sprint."""
    seen = Seen(state, kpis, feedback_of(state))
    found = []
    for rule in RULES:
        if noticed := rule.look(seen):
            priority, evidence = noticed
            found.append(
                Finding(
                    rule=rule.name,
                    category=rule.category,
                    priority=priority,
                    description=rule.description,
                    action=rule.action,
                    evidence=evidence,
                    for_planner=rule.for_planner,
                )
            )
    found.sort(key=lambda finding: PRIORITIES.index(finding.priority))
    return Analysis(
        themes=_themes(seen, found),
        improvements=tuple(found),
        learnings=_learnings(seen, found),
        sentiment=_sentiment(seen),
    )


def findings(state: State, kpis: Kpis) -> tuple[Finding, ...]:
    """What the rules found, then what the model said, if one was asked."""
    return (*analyze(state, kpis).improvements, *said_by_model(state.sprint.retro.answer))


def said_by_model(insight: Insight | None) -> tuple[Finding, ...]:
    """The improvements of a model beside those of the rules."""
    if insight is None:
        return ()
    return tuple(
        Finding(
            rule="",
            category=advice.category,
            priority=advice.priority,
            description=advice.description,
            evidence=advice.evidence,
            source=insight.by,
            applies_when=advice.applies_when,
        )
        for advice in insight.improvements
    )


def _themes(seen: Seen, found: Sequence[Finding]) -> tuple[str, ...]:
    themes = [f"{finding.rule}: {finding.evidence}" for finding in found]
    said = [b for f in seen.feedback.values() for b in f.blockers]
    if said:
        themes.append(f"agents named {len(said)} blocker{'s' if len(said) > 1 else ''}")
    unhappy = [n for n, f in seen.feedback.items() if f.self_assessment in ("failed", "crashed")]
    if unhappy:
        themes.append(f"agents call their own work failed: {', '.join(unhappy)}")
    return (*themes, *_outliers(seen)) or ("Nothing stands out.",)


def _outliers(seen: Seen) -> list[str]:
    used = {
        t.id: t.usage.spent.tokens_in + t.usage.spent.tokens_out for t in seen.state.tasks.values()
    }
    tokens = {name: count for name, count in used.items() if count}
    mean = sum(tokens.values()) / len(tokens) if tokens else 0
    return [
        f"{name} used {count} tokens, more than twice the mean of {mean:.0f}"
        for name, count in tokens.items()
        if count > 2 * mean > 0
    ]


def _learnings(seen: Seen, found: Sequence[Finding]) -> tuple[str, ...]:
    """What to keep; what the same page criticises is not praised."""
    kpis, told = seen.kpis, []
    criticised = any(finding.rule != "no-feedback" for finding in found)
    too_large = any(to_slice(task.log.cycle) for task in seen.state.tasks.values())
    if kpis.total_tasks and kpis.completed_tasks == kpis.total_tasks:
        fits = "" if criticised or too_large else ": tasks of this size and kind work"
        told.append(f"All tasks were completed{fits}.")
    elif kpis.total_tasks and kpis.completion_rate >= 0.8:
        told.append("Most tasks were completed: the plan was mostly right.")
    if kpis.avg_interventions > 1:
        told.append("The supervisor stepped in more than once per task: tasks were too large.")
    return tuple(told) or ("Nothing to keep from this sprint.",)


def _sentiment(seen: Seen) -> Sentiment:
    """Of the agents' own words, corrected by what really failed."""
    kpis = seen.kpis
    if kpis.failure_count > _MANY_FAILURES * kpis.total_tasks or seen.state.sprint.planning.failure:
        return "negative"
    if not seen.feedback:
        return "mixed" if kpis.failure_count else "neutral"
    own = [f for f in seen.feedback.values() if f.self_assessment in ("failed", "crashed")]
    low = any(0 < f.task_clarity < _UNCLEAR for f in seen.feedback.values())
    return "mixed" if own or low or kpis.failure_count else "positive"
