"""The memory of a project: improvements with their fate, trends, the planner's context."""

from __future__ import annotations

from typing import Any

import pytest

from caloron.domain.reporting.kpis import Kpis, trends
from caloron.domain.reporting.learnings import (
    FORGET_AFTER,
    Kept,
    Noted,
    SprintRecord,
    as_of,
    improvements,
    planner_context,
    same_meaning,
    with_context,
)
from caloron.domain.reporting.retro_rules import RULE, Finding

GOOD = Kpis(total_tasks=2, completed_tasks=2, completion_rate=1.0, clarity_count=2, avg_clarity=8.0)
CLEARER = RULE["task-clarity"].description


def finding(rule: str = "task-clarity", **fields: Any) -> Finding:
    known = RULE[rule]
    return Finding(
        rule=rule,
        category=known.category,
        priority=fields.pop("priority", "high"),
        description=known.description,
        action=known.action,
        for_planner=known.for_planner,
        **fields,
    )


def sprint(number: int, *findings: Finding, **fields: Any) -> SprintRecord:
    return SprintRecord(id=f"shop-{number}", findings=findings, **{"kpis": GOOD} | fields)


def fates(*records: SprintRecord, kept: Kept | None = None) -> dict[str, str]:
    return {i.text: i.status for i in improvements(records, kept or Kept())}


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("Write clearer tasks", "write clearer task!"),
        ("2 tasks had low clarity", "Low clarity: 3 tasks had it"),
        ("3 supervisor events", "1 supervisor event"),
        ('Use "quoted" names', "use quoted names"),
    ],
)
def test_texts_with_small_differences_have_the_same_meaning(text: str, variant: str) -> None:
    assert same_meaning(text) == same_meaning(variant)


def test_texts_with_another_meaning_stay_apart_and_none_is_empty() -> None:
    assert same_meaning("write tests first") != same_meaning("write docs first")
    assert same_meaning("42") == "42"


def test_the_same_improvement_in_two_sprints_is_one_improvement_with_both() -> None:
    records = [sprint(1, finding()), sprint(2, finding(evidence="new"))]
    (improvement,) = improvements(records, Kept())
    assert (improvement.evidence, improvement.status) == ("new", "pending")
    assert improvement.seen_in == ("shop-1", "shop-2")


def test_an_improvement_is_applied_once_it_was_in_a_planners_prompt() -> None:
    records = [sprint(1, finding())]
    context, keys = planner_context(records, Kept())
    kept = with_context(Kept(), "shop-2", context, keys)
    assert CLEARER in kept.last_context
    assert fates(*records) == {CLEARER: "pending"}
    assert fates(*records, kept=kept) == {CLEARER: "applied"}


def test_an_improvement_keeps_its_id_when_more_urgent_ones_come() -> None:
    suggestion = Finding(
        rule="", category="Tooling", priority="medium", description="Pin the tools", source="m"
    )
    before = {
        i.text: i.id for i in improvements([sprint(1, suggestion, finding("conflicts"))], Kept())
    }
    later = [sprint(1, suggestion, finding("conflicts")), sprint(2, finding(priority="critical"))]
    after = {i.text: i.id for i in improvements(later, Kept())}
    assert before.items() <= after.items()
    assert len(set(after.values())) == 3


def test_learnings_as_of_an_earlier_sprint_ignore_later_sprints() -> None:
    records = [sprint(1, finding()), sprint(2, finding("conflicts")), sprint(3)]
    kept = Kept(
        noted=(Noted(text="old", since="shop-1"), Noted(text="new", since="shop-3")),
        prompts={"shop-2": (same_meaning(CLEARER),), "shop-3": (same_meaning(CLEARER),)},
    )
    learned = improvements(*as_of("shop-2", records, kept))
    assert {i.text for i in learned} == {CLEARER, RULE["conflicts"].description, "old"}
    assert next(i for i in learned if i.text == CLEARER).applied_in == ("shop-2",)
    assert improvements(*as_of("shop-3", records, kept)) == improvements(records, kept)


def test_an_improvement_is_retired_after_two_good_sprints() -> None:
    records = [sprint(1, finding()), sprint(2)]
    assert fates(*records) == {CLEARER: "pending"}
    assert CLEARER in planner_context(records, Kept())[0]
    records.append(sprint(3))
    assert fates(*records) == {CLEARER: "retired"}
    assert CLEARER not in planner_context(records, Kept())[0]


def test_a_sprint_without_data_does_not_count_as_good() -> None:
    without_feedback = Kpis(total_tasks=2, completed_tasks=2)
    silent = [sprint(n, kpis=without_feedback) for n in (2, 3, 4)]
    failed = [sprint(n, kpis=Kpis(), stopped="no plan") for n in (5, 6)]
    assert fates(sprint(1, finding()), *silent, *failed) == {CLEARER: "pending"}


def test_a_retired_improvement_returns_when_the_numbers_get_worse() -> None:
    records = [sprint(1, finding()), sprint(2), sprint(3), sprint(4, finding())]
    (improvement,) = improvements(records, Kept())
    assert (improvement.status, improvement.good_since) == ("pending", 0)
    assert improvement.seen_in == ("shop-1", "shop-4")


def test_an_imported_note_is_kept_once_and_judged_by_later_sprints() -> None:
    noted = (
        Noted(text="3 tasks had low clarity", since="shop-1"),
        Noted(text="Low clarity: tasks had"),
    )
    kept = Kept(noted=noted)
    (improvement,) = improvements([sprint(1)], kept)
    assert (improvement.status, improvement.good_since) == ("pending", 0)
    assert improvement.rule == "task-clarity"
    assert improvements([sprint(1), sprint(2), sprint(3)], kept)[0].status == "retired"


def test_a_person_can_retire_an_improvement() -> None:
    kept = Kept(dropped=(same_meaning(CLEARER),))
    assert fates(sprint(1, finding()), kept=kept) == {CLEARER: "retired"}


def test_urgent_improvements_come_first_and_the_planner_gets_only_its_own() -> None:
    findings = (
        finding("tokens", priority="low"),
        finding("no-feedback", priority="low"),
        finding(priority="critical"),
    )
    learned = improvements([sprint(1, *findings)], Kept())
    assert [i.id for i in learned] == ["imp-task-clarity", "imp-tokens", "imp-no-feedback"]
    assert learned[0].text == CLEARER
    context, keys = planner_context([sprint(1, *findings)], Kept())
    assert RULE["no-feedback"].description not in context
    assert len(keys) == 2


def advice(text: str = "Name the file formats", **fields: Any) -> Finding:
    """Return an improvement that a model suggests."""
    known: dict[str, Any] = {
        "rule": "",
        "category": "TaskTemplate",
        "priority": "medium",
        "description": text,
        "evidence": "a guessed",
        "source": "claude-code m",
        "applies_when": "files are read",
    }
    return Finding(**known | fields)


def test_a_reworded_suggestion_is_one_improvement_in_its_newest_words() -> None:
    again = advice("name file formats!", evidence="b too")
    (improvement,) = improvements([sprint(1, advice()), sprint(2, again)], Kept())
    assert (improvement.text, improvement.evidence) == ("name file formats!", "b too")
    assert improvement.source == "claude-code m"
    assert improvement.seen_in == ("shop-1", "shop-2")


def test_a_suggestion_that_a_rule_makes_too_belongs_to_the_rule() -> None:
    (improvement,) = improvements([sprint(1, advice(CLEARER), finding())], Kept())
    assert (improvement.source, improvement.rule) == ("rules", "task-clarity")


def test_a_suggestion_about_a_metric_is_judged_by_that_metric() -> None:
    records = [sprint(1, advice("Make tasks less ambiguous")), sprint(2, finding())]
    by_text = {i.text: i for i in improvements(records, Kept())}
    assert by_text["Make tasks less ambiguous"].seen_in == ("shop-1", "shop-2")
    good = [*records, sprint(3), sprint(4)]
    assert fates(*good)["Make tasks less ambiguous"] == "retired"


def test_an_old_suggestion_is_dropped_even_after_bad_sprints() -> None:
    bad = Kpis(total_tasks=2, completed_tasks=1)
    later = [sprint(n, kpis=bad) for n in range(2, 2 + FORGET_AFTER)]
    assert fates(sprint(1, advice()), *later[:-1]) == {"Name the file formats": "pending"}
    assert fates(sprint(1, advice()), *later) == {"Name the file formats": "retired"}


def test_the_planner_context_says_when_an_improvement_applies() -> None:
    context, _ = planner_context([sprint(1, advice())], Kept())
    line = "- [medium] Name the file formats — when: files are read — a guessed (shop-1)"
    assert line in context.splitlines()


def test_a_thousand_suggestions_do_not_slow_the_context() -> None:
    words = [f"{chr(97 + n % 26) * 3}{chr(97 + n // 26 % 26) * 3} matters" for n in range(600)]
    records = [sprint(n, *(advice(w) for w in words[n : n + 5])) for n in range(500)]
    assert len(improvements(records, Kept())) <= 300


def test_without_earlier_sprints_the_planner_context_is_empty() -> None:
    assert planner_context([], Kept()) == ("", ())


def test_the_context_names_sprints_by_id_and_older_sprints_in_one_line() -> None:
    blocked = ('no "docs" here',)
    records = [sprint(n, blockers=blocked, goal=f"goal {n}") for n in (1, 2, 3, 4)]
    context, _ = planner_context(records, Kept())
    assert "- shop-1 to shop-2: 4/4 tasks done (100 %)" in context
    assert 'again and again (2 times): no "docs" here' in context
    assert '- shop-4: 2/2 tasks done, clarity 8.0/10 — "goal 4"' in context
    assert "?" not in context


def test_a_failed_sprint_shows_its_own_numbers() -> None:
    failed = sprint(2, kpis=Kpis(), stopped="the plan is not valid")
    lines = planner_context([sprint(1), failed], Kept())[0].splitlines()
    assert "- shop-2: 0/0 tasks done, stopped: the plan is not valid" in lines


def test_debts_of_any_age_are_in_the_planner_context() -> None:
    records = [sprint(1, debts=("a (pull request #4)",)), *(sprint(n) for n in range(2, 9))]
    assert "- shop-1: a (pull request #4)" in planner_context(records, Kept())[0]


@pytest.mark.parametrize(
    ("now", "direction"),
    [(10.0, "stable"), (10.5, "stable"), (9.5, "stable"), (10.6, "degraded"), (9.4, "improved")],
)
def test_a_change_within_five_percent_is_no_change(now: float, direction: str) -> None:
    earlier = [Kpis(total_tasks=1, avg_time_per_task=time) for time in (8.0, 12.0)]
    by_metric = {t.metric: t for t in trends(Kpis(total_tasks=1, avg_time_per_task=now), earlier)}
    trend = by_metric["avg_time_per_task"]
    assert (trend.before, trend.n, trend.direction) == (10.0, 2, direction)


def test_a_trend_counts_only_sprints_that_have_the_number() -> None:
    earlier = [Kpis(total_tasks=1, avg_clarity=6.0), Kpis(total_tasks=1), Kpis(avg_clarity=1.0)]
    by_metric = {t.metric: t for t in trends(Kpis(total_tasks=1, avg_clarity=9.0), earlier)}
    assert (by_metric["avg_clarity"].n, by_metric["avg_clarity"].direction) == (1, "improved")
    assert by_metric["completion_rate"].n == 2
    assert trends(GOOD, []) == ()
    assert trends(Kpis(), [GOOD]) == ()


def test_the_context_of_a_failed_planner_is_not_applied() -> None:
    kept = Kept(prompts={"shop-2": (same_meaning(CLEARER),)})
    began = sprint(1, finding())
    assert fates(began, sprint(2, finding("no-plan")), kept=kept)[CLEARER] == "applied"
    failed = sprint(2, finding("no-plan"), kpis=Kpis(), stopped="the planner ended with 1")
    assert fates(began, failed, kept=kept)[CLEARER] == "pending"


def test_one_sprint_is_not_called_several() -> None:
    assert planner_context([sprint(1)], Kept())[0].startswith("The last sprint of this project:")
    assert planner_context([sprint(1), sprint(2)], Kept())[0].startswith("The last 2 sprints of")
