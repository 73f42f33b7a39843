"""The equivalence test: two tasks and one that needs both, driven by observations alone.

The table is written by hand from the protocol: what is observed, the three statuses after it, and
what is to be done. Statuses: P(ending) R(eady) G (InProgress) V (InReview) D(one) E(scalated).
"""

from __future__ import annotations

import itertools

import pytest

from caloron.domain.model.effects import Action, CancelWork, Describe, ReportProgress, StartWork
from caloron.domain.model.facts import EffectDone, Fact, WorkEnded
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.snapshots import (
    BranchSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Verdict,
    marker,
)
from caloron.domain.model.sprint import Planning, Sprint, SprintSettings, State
from caloron.domain.rules.evaluate import evaluate
from caloron.domain.rules.evaluation import Decision
from caloron.domain.rules.supervisor import AgentSeen, Limits, check_health, supervise

SPRINT = "sprint-compare"
LETTER = {
    "Pending": "P", "Ready": "R", "InProgress": "G", "InReview": "V", "Done": "D",
    "Escalated": "E", "Blocked": "B", "Cancelled": "C",
}  # fmt: skip
DIAMOND = (
    PlannedTask(id="task-1", title="Implement auth middleware", agent_prompt="auth"),
    PlannedTask(id="task-2", title="Implement session store", agent_prompt="session"),
    PlannedTask(
        id="task-3", title="Integration tests for auth", agent_prompt="tests",
        depends_on=("task-1", "task-2"),
    ),
)  # fmt: skip

NO = "CHANGES_NEEDED: more tests"
Row = tuple[str, tuple[Fact, ...], str, set[str]]


def issue(n: int, version: int = 1) -> Fact:
    return IssueSnapshot(
        version=version,
        number=n,
        title="t",
        body=marker(f"issue/{SPRINT}/task-{n}"),
        state="open",
        author="caloron",
        labels=("caloron:task",),
    )


def main(commit: str, version: int) -> Fact:
    return BranchSnapshot(version=version, name="main", commit=commit)


def ended(n: int, work: str, head: str, *, base: str = "m0", answer: str = "") -> Fact:
    role = work.split("-")[1]
    return WorkEnded(
        item=f"{SPRINT}/task-{n}/{work}",
        task=f"task-{n}",
        role=role,  # type: ignore[arg-type]
        token=int(work.split("-", maxsplit=1)[0]),
        head=head,
        base=base,
        answer=answer,
        last_line=answer,
        tree=f"{base}+{head}" if role == "verify" else "",
    )


def pushed(n: int, head: str, old: str = "new") -> Fact:
    branch = f"agent/task-{n}/{SPRINT}"
    return EffectDone(key=f"push/{branch}/{old}/{head}", task=f"task-{n}", kind="push", commit=head)


def merged(n: int, head: str, base: str) -> Fact:
    """Return the facts of our merge of the verified tree."""
    key = f"merge/{99 + n}/{head}/{base}"
    return EffectDone(key=key, task=f"task-{n}", kind="merge", commit="m", tree=f"{base}+{head}")


def pr(n: int, head: str, version: int, state: str = "open", generation: int = 1) -> Fact:
    return PullSnapshot(
        version=version,
        number=99 + n + 100 * (generation - 1),
        title="t",
        body=f"Closes #{n}\n\n{marker(f'pull/{SPRINT}/task-{n}/{generation}')}",
        state=state,  # type: ignore[arg-type]
        author="caloron",
        branch=f"agent/task-{n}/{SPRINT}",
        head=head,
        closes=(n,),
        ended_by="caloron" if state == "merged" else "",
    )


def review(id: int, n: int, head: str, verdict: Verdict, version: int) -> Fact:
    return ReviewSnapshot(
        version=version, id=id, pull=99 + n, head=head, verdict=verdict, author="caloron",
        body=NO if verdict == "changes_requested" else "APPROVED",
    )  # fmt: skip


def completion(n: int) -> set[str]:
    return {f"comment task-{n}", f"label task-{n}", f"close_issue task-{n}"}


ISSUES = {f"create_issue task-{n}" for n in (1, 2, 3)}
HAPPY: list[Row] = [
    ("tick, no events", (main("m0", 1),), "RRP", ISSUES),
    ("issue_opened 1", (issue(1),), "GRP", {"start implement task-1", "label task-1"}),
    ("issue_opened 2", (issue(2),), "GGP", {"start implement task-2", "label task-2"}),
    ("issue_opened 3", (issue(3),), "GGP", set()),
    ("work 1", (ended(1, "1-implement", "a1"),), "GGP", {"push task-1", "open_pull task-1"}),
    ("work 2", (ended(2, "1-implement", "b1"),), "GGP", {"push task-2", "open_pull task-2"}),
    ("push 1", (pushed(1, "a1"),), "GGP", set()),
    ("pr_opened 100", (pr(1, "a1", 1),), "VGP", {"start verify task-1"}),
    ("push 2", (pushed(2, "b1"),), "VGP", set()),
    ("pr_opened 101", (pr(2, "b1", 1),), "VVP", {"start verify task-2"}),
    ("verified 1", (ended(1, "2-verify", "a1"),), "VVP", {"start review task-1"}),
    ("verified 2", (ended(2, "2-verify", "b1"),), "VVP", {"start review task-2"}),
    ("judged 1", (ended(1, "3-review", "a1", answer="APPROVED"),), "VVP", {"review task-1"}),
    ("approved 100", (review(1, 1, "a1", "approved", 1),), "VVP", {"merge task-1"}),
    ("judged 2", (ended(2, "3-review", "b1", answer="APPROVED"),), "VVP", {"review task-2"}),
    # The merge queue is busy: an approved change waits for the merge before it.
    ("approved 101", (review(2, 2, "b1", "approved", 1),), "VVP", set()),
    (
        "merged 100",
        (pr(1, "a1", 2, "merged"), main("m1", 2), merged(1, "a1", "m0")),
        "DVP",
        # Main moved: the second change is verified again on top of it.
        {*completion(1), "start verify task-2"},
    ),
    ("verified 2 again", (ended(2, "4-verify", "b1", base="m1"),), "DVP", {"merge task-2"}),
    (
        "merged 101",
        (pr(2, "b1", 2, "merged"), main("m2", 3), merged(2, "b1", "m1")),
        "DDG",
        {*completion(2), "start implement task-3", "label task-3"},
    ),
    ("work 3", (ended(3, "1-implement", "c1"),), "DDG", {"push task-3", "open_pull task-3"}),
    ("push 3", (pushed(3, "c1"),), "DDG", set()),
    ("pr_opened 102", (pr(3, "c1", 1),), "DDV", {"start verify task-3"}),
    ("verified 3", (ended(3, "2-verify", "c1", base="m2"),), "DDV", {"start review task-3"}),
    ("judged 3", (ended(3, "3-review", "c1", answer="APPROVED"),), "DDV", {"review task-3"}),
    ("approved 102", (review(3, 3, "c1", "approved", 1),), "DDV", {"merge task-3"}),
    (
        "merged 102",
        (pr(3, "c1", 2, "merged"), main("m3", 4), merged(3, "c1", "m2")),
        "DDD",
        completion(3),
    ),
]

#: After both are in review with verdicts awaited: the rows up to "verified 2".
_UNTIL_REVIEW = HAPPY[:12]
VARIANTS: dict[str, list[Row]] = {
    "changes_requested, then approved": [
        *_UNTIL_REVIEW,
        ("judged", (ended(1, "3-review", "a1", answer=NO),), "VVP", {"review task-1"}),
        ("changes 100", (review(1, 1, "a1", "changes_requested", 1),), "GVP", {"start fix task-1"}),
        ("fixed", (ended(1, "4-fix", "a2", base="a1"),), "GVP", {"push task-1"}),
        ("pushed", (pushed(1, "a2", "a1"), pr(1, "a2", 2)), "VVP", {"start verify task-1"}),
        ("verified", (ended(1, "5-verify", "a2"),), "VVP", {"start review task-1"}),
        ("judged", (ended(1, "6-review", "a2", answer="APPROVED"),), "VVP", {"review task-1"}),
        ("approved 100", (review(9, 1, "a2", "approved", 9),), "VVP", {"merge task-1"}),
        (
            "merged 100",
            (pr(1, "a2", 3, "merged"), main("m1", 2), merged(1, "a2", "m0")),
            "DVP",
            completion(1),
        ),
    ],
    "pr_closed": [
        *_UNTIL_REVIEW,
        (
            "pr_closed 100",
            (pr(1, "a1", 2, "closed"),),
            "GVP",
            {"cancel task-1/3-review", "start fix task-1"},
        ),
        (
            "fixed",
            (ended(1, "4-fix", "a2", base="a1"),),
            "GVP",
            {"push task-1", "open_pull task-1"},
        ),
        ("pushed", (pushed(1, "a2", "a1"),), "GVP", set()),
        ("pr_opened 200", (pr(1, "a2", 1, generation=2),), "VVP", {"start verify task-1"}),
    ],
    "a merge by hand before any review": [
        *_UNTIL_REVIEW,
        (
            "merged 100",
            (pr(1, "a1", 2, "merged"), main("m1", 2)),
            "DVP",
            {"cancel task-1/3-review", *completion(1)},
        ),
        (
            "merged 101",
            (pr(2, "b1", 2, "merged"), main("m2", 3), merged(2, "b1", "m1")),
            "DDG",
            {"cancel task-2/3-review", *completion(2), "start implement task-3", "label task-3"},
        ),
    ],
    "out of order: the merge is seen before the pull request was": [
        *HAPPY[:4],
        (
            "merged 100",
            (pr(1, "a1", 2, "merged"), main("m1", 2)),
            "DGP",
            {"cancel task-1/1-implement", *completion(1)},
        ),
        ("pr_opened 100, late", (pr(1, "a1", 1),), "DGP", set()),
        ("approved 100, late", (review(1, 1, "a1", "approved", 1),), "DGP", set()),
        ("work 1, late", (ended(1, "1-implement", "a1"),), "DGP", set()),
    ],
}


def start() -> State:
    return State(
        sprint=Sprint(
            id=SPRINT,
            number=1,
            goal="auth",
            planning=Planning(given_plan=DIAMOND),
            settings=SprintSettings(parallel=2),
        )
    )


def action_label(action: Action) -> str:
    match action:
        case StartWork():
            return f"start {action.work.role} {action.task}"
        case CancelWork():
            return f"cancel {action.item.removeprefix(SPRINT + '/')}"
        case _:
            return f"{type(action).__struct_config__.tag} {getattr(action, 'task', '')}"


def letters(state: State) -> str:
    return "".join(LETTER[t.status] for t in state.tasks.values())


def planned_actions(decision: Decision) -> set[str]:
    """Return the labels of the actions; test_progress covers progress and descriptions."""
    reports = ReportProgress | Describe
    return {action_label(a) for a in decision.actions if not isinstance(a, reports)}


def drive(rows: list[Row], *, repeat: int = 1, echo: bool = False) -> State:
    state, now = start(), itertools.count(100.0)
    past: list[Fact] = []
    for step, facts, statuses, actions in rows:
        decision = evaluate(state, (*facts, *past) if echo else facts * repeat, next(now))
        past += facts
        assert (step, letters(decision.state)) == (step, statuses)
        assert planned_actions(decision) == actions, step
        state = decision.state
    return state


def test_the_diamond_goes_through_the_expected_transitions() -> None:
    state = drive(HAPPY)
    last = evaluate(state, (), 999.0)
    assert (last.state.sprint.phase, last.actions) == ("ended", ())


def test_repeated_facts_change_nothing() -> None:
    assert drive(HAPPY, repeat=2) == drive(HAPPY)


def test_old_facts_that_repeat_with_every_tick_change_nothing() -> None:
    assert drive(HAPPY, echo=True) == drive(HAPPY)


@pytest.mark.parametrize("rows", VARIANTS.values(), ids=VARIANTS)
def test_the_variants_go_through_the_expected_transitions(rows: list[Row]) -> None:
    drive(rows)
    drive(rows, repeat=3)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_issues_of_a_sprint_may_arrive_in_any_order(order: tuple[int, ...]) -> None:
    facts = (main("m0", 1), issue(1), issue(2), issue(3))
    first = evaluate(start(), (), 100.0)
    expected = evaluate(first.state, facts, 101.0)
    reordered = evaluate(first.state, tuple(facts[i] for i in order), 101.0)
    assert reordered.state == expected.state
    assert {action_label(a) for a in reordered.actions} == {
        action_label(a) for a in expected.actions
    }
    assert letters(reordered.state) == "GGP"


def test_a_stall_is_probed_then_restarted_then_handed_to_a_person() -> None:
    """Threshold 60 minutes: silence counts, not the time since the start."""
    state = drive(HAPPY[:4])
    limits = Limits(stall_s=3600, timeout_s=10**6, grace_s=300)
    expected = [
        (3500.0, "GGP", set()),
        (3601.0, "GGP", {"probe task-1", "comment task-1"}),
        (3800.0, "GGP", set()),
        (3902.0, "GGP", {"comment task-1", "start implement task-1"}),
        (7600.0, "EGP", {"cancel task-1/1-implement", "create_issue task-1"}),
    ]
    for silent, statuses, actions in expected:
        now = 1000.0 + silent
        agent = AgentSeen(
            item=f"{SPRINT}/task-1/1-implement", task="task-1", role="implement",
            running_s=silent, silent_s=silent,
        )  # fmt: skip
        results = [check_health(agent, limits)]
        decision, _ = supervise(state, results, limits, now)
        assert (silent, letters(decision.state)) == (silent, statuses)
        assert planned_actions(decision) == actions
        state = decision.state
