"""Rules that find themes and improvements in the numbers of a sprint.

Each rule reads one number. The number that makes a rule find something is the one that must get
better before its improvement is retired.
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
from caloron.domain.reporting.kpis import LOOP, Kpis, blockers_of
from caloron.slicing import to_slice

#: The source of an improvement that neither a model nor a person wrote.
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
    """An improvement to try, and its evidence."""

    #: Empty: a model found it, and `source` names the model.
    rule: str
    category: Category
    priority: Priority
    description: str
    action: str = ""
    evidence: str = ""
    source: str = RULES_SAY
    #: The goals or tasks for which it matters, if the model named them.
    applies_when: str = ""
    #: A planner can act on it.
    for_planner: bool = True


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the rules for one sprint."""

    themes: tuple[str, ...] = ()
    improvements: tuple[Finding, ...] = ()
    learnings: tuple[str, ...] = ()
    sentiment: Sentiment = "neutral"


class _Sprint(NamedTuple):
    """The input of a rule."""

    state: State
    kpis: Kpis
    feedback: dict[str, Feedback]

    @property
    def has_many_failures(self) -> bool:
        return self.kpis.failure_count > _MANY_FAILURES * self.kpis.total_tasks

    @property
    def calls_itself_failed(self) -> list[str]:
        return [n for n, f in self.feedback.items() if f.self_assessment in ("failed", "crashed")]


#: The priority of a finding and its evidence; None: the rule found nothing.
_Found = tuple[Priority, str] | None


class Rule(NamedTuple):
    """A rule and its advice."""

    name: str
    category: Category
    description: str
    action: str
    find: Callable[[_Sprint], _Found]
    #: True if the sprint has the number at all: only then no finding is good news.
    judged: Callable[[Kpis], bool] = lambda kpis: kpis.total_tasks > 0
    for_planner: bool = True


def _unclear(sprint: _Sprint) -> _Found:
    clarity = {name: f.task_clarity for name, f in sprint.feedback.items()}
    low = {name: n for name, n in clarity.items() if 0 < n < _UNCLEAR}
    if not low:
        return None
    listed = ", ".join(f"{name} {n}/10" for name, n in low.items())
    urgent = min(low.values()) <= _VERY_UNCLEAR
    return "critical" if urgent else "high", f"clarity below {_UNCLEAR}: {listed}"


def _blockers(sprint: _Sprint, *patterns: re.Pattern[str]) -> _Found:
    matches = [b for b in blockers_of(sprint.state) if all(p.search(b) for p in patterns)]
    listed = "; ".join(text[:100] for text in matches[:3])
    return ("high", f"blockers: {listed}") if matches else None


def _conflicts(sprint: _Sprint) -> _Found:
    n = sprint.kpis.conflict_count
    return ("medium", f"{n} conflict{'s' if n > 1 else ''} with main") if n else None


def _loops(sprint: _Sprint) -> _Found:
    reviews = {t.id: len(t.review.reviewed) for t in sprint.state.tasks.values()}
    loops = [f"{name} {n} reviews" for name, n in reviews.items() if n >= LOOP]
    return ("medium", ", ".join(loops)) if loops else None


def _interventions(sprint: _Sprint) -> _Found:
    n, tasks = sprint.kpis.total_interventions, sprint.kpis.total_tasks
    steps = f"{n} step{'' if n == 1 else 's'} of the supervisor in {tasks} tasks"
    priority: Priority = "high" if sprint.kpis.avg_interventions > 1 else "medium"
    return (priority, steps) if n else None


def _failures(sprint: _Sprint) -> _Found:
    tasks = sprint.state.tasks.values()
    failed = [f"{t.id}: {t.reason[:100]}" for t in tasks if t.status is Status.ESCALATED]
    priority: Priority = "high" if sprint.has_many_failures else "medium"
    return (priority, "; ".join(failed)) if failed else None


def _many_failures(sprint: _Sprint) -> _Found:
    failed, total = sprint.kpis.failure_count, sprint.kpis.total_tasks
    return ("high", f"{failed} of {total} tasks failed") if sprint.has_many_failures else None


def _red(sprint: _Sprint) -> _Found:
    red, runs = sprint.kpis.verify_failures, sprint.kpis.verify_runs
    return ("medium", f"{red} of {runs} verifications were red") if red else None


def _tokens(sprint: _Sprint) -> _Found:
    mean = sprint.kpis.avg_tokens_per_task
    # A planner that named the files of every task cannot do more.
    named = all(task.plan.files for task in sprint.state.tasks.values())
    many = mean and mean > _MANY_TOKENS and not named
    return ("low", f"{mean:.0f} tokens per task") if many else None


def _no_plan(sprint: _Sprint) -> _Found:
    planning = sprint.state.sprint.planning
    failed = planning.failure and not planning.failure_kind
    return ("high", planning.failure[:200]) if failed else None


def _no_feedback(sprint: _Sprint) -> _Found:
    tasks = sprint.kpis.total_tasks
    return ("low", f"0 of {tasks} tasks have feedback") if tasks and not sprint.feedback else None


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
        lambda sprint: _blockers(sprint, _DEPENDENCY),
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
        lambda sprint: _blockers(sprint, _TOOL, _MISSING),
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
        _no_feedback,
        for_planner=False,
    ),
)
RULE = {rule.name: rule for rule in RULES}


def analyze(state: State, kpis: Kpis) -> Analysis:
    """Return the themes, improvements and learnings of one sprint."""
    feedback = {task.id: task.log.feedback for task in state.tasks.values() if task.log.feedback}
    sprint = _Sprint(state, kpis, feedback)
    findings = [
        Finding(
            rule=rule.name,
            category=rule.category,
            priority=found[0],
            description=rule.description,
            action=rule.action,
            evidence=found[1],
            for_planner=rule.for_planner,
        )
        for rule in RULES
        if (found := rule.find(sprint))
    ]
    findings.sort(key=lambda finding: PRIORITIES.index(finding.priority))
    return Analysis(
        themes=_themes(sprint, findings),
        improvements=tuple(findings),
        learnings=_learnings(sprint, findings),
        sentiment=_sentiment(sprint),
    )


def findings(state: State, kpis: Kpis) -> tuple[Finding, ...]:
    """Return the findings of the rules, then those of the model, if one was asked."""
    return (*analyze(state, kpis).improvements, *said_by_model(state.sprint.retro.answer))


def said_by_model(insight: Insight | None) -> tuple[Finding, ...]:
    """Return the improvements of a model in the form of those of the rules."""
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


def _themes(sprint: _Sprint, findings: Sequence[Finding]) -> tuple[str, ...]:
    themes = [f"{finding.rule}: {finding.evidence}" for finding in findings]
    if n := sum(len(f.blockers) for f in sprint.feedback.values()):
        themes.append(f"agents named {n} blocker{'s' if n > 1 else ''}")
    if failed := sprint.calls_itself_failed:
        themes.append(f"agents call their own work failed: {', '.join(failed)}")
    tokens = {t.id: t.usage.spent.tokens for t in sprint.state.tasks.values()}
    used = [count for count in tokens.values() if count]
    mean = sum(used) / len(used) if used else 0
    themes += [
        f"{name} used {count} tokens, more than twice the mean of {mean:.0f}"
        for name, count in tokens.items()
        if count > 2 * mean > 0
    ]
    return tuple(themes) or ("Nothing stands out.",)


def _learnings(sprint: _Sprint, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return what to keep, without praise for what the same page criticises."""
    kpis, learnings = sprint.kpis, []
    criticised = any(finding.rule != "no-feedback" for finding in findings)
    too_large = any(to_slice(task.log.cycle) for task in sprint.state.tasks.values())
    if kpis.total_tasks and kpis.completed_tasks == kpis.total_tasks:
        fits = "" if criticised or too_large else ": tasks of this size and kind work"
        learnings.append(f"All tasks were completed{fits}.")
    elif kpis.total_tasks and kpis.completion_rate >= 0.8:
        learnings.append("Most tasks were completed: the plan was mostly right.")
    if kpis.avg_interventions > 1:
        learnings.append("The supervisor stepped in more than once per task: tasks were too large.")
    return tuple(learnings) or ("Nothing to keep from this sprint.",)


def _sentiment(sprint: _Sprint) -> Sentiment:
    """Return the mood of the agents' feedback, corrected by the failures."""
    failures = sprint.kpis.failure_count
    if sprint.has_many_failures or sprint.state.sprint.planning.failure:
        return "negative"
    if not sprint.feedback:
        return "mixed" if failures else "neutral"
    low = any(0 < f.task_clarity < _UNCLEAR for f in sprint.feedback.values())
    return "mixed" if sprint.calls_itself_failed or low or failures else "positive"
