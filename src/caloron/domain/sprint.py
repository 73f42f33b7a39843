"""A sprint and its tasks: the facts that the tick alone writes."""

from __future__ import annotations

from typing import Literal

import msgspec

from caloron.domain.budget import Spent
from caloron.domain.feedback import Feedback
from caloron.domain.insight import Insight
from caloron.domain.merging import Doubt, Revert, Train, Verified, Waits
from caloron.domain.observations import BranchSeen, PullSeen, ReviewSeen, Snapshot
from caloron.domain.plan import PlannedTask
from caloron.domain.status import Phase, Status, check_phase

Role = Literal["po", "implement", "review", "fix", "resolve", "check", "retro", "verify"]
AGENT_ROLES: tuple[Role, ...] = ("po", "implement", "review", "fix", "resolve", "check", "retro")
#: Work of agents that belongs to the sprint and to no task.
OF_THE_SPRINT: tuple[Role, ...] = ("po", "retro")
#: Main before the sprint; empty: not known yet; skipped: a sprint from before baselines.
Baseline = Literal["", "green", "red", "none", "unverified", "skipped"]

REVIEWER = "reviewer-1"
PLANNER = "planner-1"
ANALYST = "retro-1"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work in the queue: what is to be done, on what, and why."""

    item: str
    role: Role
    #: The review round it belongs to, from 1.
    round: int = 1
    #: The commit to work on; empty means current main.
    head: str = ""
    #: The heads that are verified as one batch, in the order of their merges.
    heads: tuple[str, ...] = ()
    #: What a reviewer, a person or a failed verification asks for.
    reason: str = ""
    #: Why the last attempt at it failed.
    note: str = ""
    #: The log of the verification that the work is about.
    log: str = ""
    #: Work on the result of merging main in, because that result is what failed.
    onto_main: bool = False
    #: The claim whose end was taken in last: its end told again is old news.
    taken_in: int = 0
    #: How often the same question was asked without a clear answer.
    asks: int = 1
    #: How often people had changed the text of the task when this was asked for.
    edits: int = 0
    since: float = 0.0


class HeldPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that waits on the forge: its issue, and what was seen and said there."""

    number: int | None = None
    #: Digests of the block that was judged last, and of the plan as we would write it.
    block: str = ""
    written: str = ""
    #: How often the plan, or what stands for it, was changed.
    edits: int = 0
    heard: tuple[str, ...] = ()
    #: The block that stands there now cannot be run.
    faulty: bool = False
    #: Who closed the issue, which is a no.
    declined: str = ""
    #: The tasks' issues were named on it.
    told: bool = False


class Paused(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that lets nobody work for a while."""

    until: float
    what: str
    detail: str = ""
    times: int = 1


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One move of a task, as a line for people."""

    at: float
    what: str


class Crumb(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work for a task, and what came of it; empty: nothing yet."""

    item: str
    role: Role
    #: Empty: no agent, as in a verification.
    agent: str = ""
    head: str = ""
    outcome: str = ""


class Task(msgspec.Struct, kw_only=True):
    """A planned task and what has become of it."""

    plan: PlannedTask
    status: Status = Status.PENDING
    reason: str = ""
    changed_at: float = 0.0
    started_at: float | None = None
    completed_at: float | None = None
    #: How many tasks must follow it: what to start first.
    chain: int = 1

    issue: int | None = None
    pull: int | None = None
    #: Raised when a person closes the pull request: the next one is another.
    generation: int = 1
    branch: str = ""
    head: str = ""
    pushed: str = ""
    #: What we pushed last to the task's own branch, whosever branch it is on now.
    own_commit: str = ""
    #: The agent found nothing to change; only a reviewer can agree to that.
    empty: bool = False

    work: Work | None = None
    #: Work that goes on when a person releases the task.
    held: Work | None = None
    held_from: Status = Status.IN_PROGRESS
    #: Effects that the forge refused: tried again when a person releases the task.
    held_effects: tuple[str, ...] = ()
    works: int = 0
    failures: int = 0

    reviewed: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    #: The head whose verdict is on its way to the forge.
    judged: str = ""
    verified: Verified | None = None
    #: A red result that waits for main to be verified by itself.
    doubt: Doubt | None = None
    #: The head that is being merged.
    merging: str = ""
    #: How often a merge came too late, because main or the branch had moved.
    stale_merges: int = 0
    #: The commit that our merge put on main, when its tree is not the one that was verified.
    landed: str = ""
    revert: Revert | None = None
    reverts: int = 0
    waits: Waits | None = None
    #: The head that could not be merged after others of its batch: it is verified alone.
    alone: str = ""

    incident: int = 0
    escalation_issue: int | None = None
    #: Comments that have been taken as commands, or are older than the incident.
    heard: tuple[str, ...] = ()
    #: What was said up to this version was said before the issue or the pull request was its own.
    listens_from: int = 0
    interventions: int = 0
    restarts: int = 0
    intervened_at: float = 0.0
    #: Steps of the ladder ever taken: tells one probe from the next.
    steps: int = 0
    #: What people did about it on the forge, each once.
    acts: tuple[str, ...] = ()
    #: The conversation of the agent that writes the change.
    session: str = ""
    spent: Spent = Spent()
    #: The last claim of each item whose cost was taken in.
    accounted: dict[str, int] = msgspec.field(default_factory=dict)
    #: What its agents said about it: the last word, with the blockers of all.
    feedback: Feedback | None = None

    #: Its issue was closed by a person: opening it again brings the task back.
    closed_by_person: bool = False
    #: Somebody who has a say wants it back after it was cancelled.
    wanted_back: bool = False

    #: What was done for it, the last pieces.
    crumbs: tuple[Crumb, ...] = ()
    #: Its last moves, how many there were, and how many of them its issue was told.
    trail: tuple[Step, ...] = ()
    moved: int = 0
    reported: int = 0
    #: How often its agent was woken for it, as told last.
    cycle: int = 0
    #: The pull request in whose description our section was seen.
    described: int | None = None
    #: How often a branch that was deleted was pushed again.
    pushed_again: int = 0
    #: Who works on it by hand; the task is Escalated meanwhile.
    taken_over: str = ""
    #: Who gave it back: what is on its branch is being looked at.
    given_back: str = ""
    #: Who cancelled it with a word; its open pull requests are closed then.
    cancelled_by: str = ""
    #: Pull requests that are being closed because the task was cancelled or the branch deleted;
    #: and how many were closed with the task.
    let_go: tuple[int, ...] = ()
    withdrawn: int = 0
    #: The head of its pull request; the version of the first picture that showed it, and when.
    seen_head: str = ""
    seen_from: int = 0
    seen_at: float = 0.0
    #: A person's word `caloron:approve` on a head.
    approval: ReviewSeen | None = None
    #: The key of our last verdict, and those of verdicts that do not count any more.
    verdict_key: str = ""
    void: tuple[str, ...] = ()
    #: It joined because of its label: without it, it leaves again as long as nothing was begun.
    by_label: bool = False
    unlabelled: bool = False
    #: How often people changed its text, and the version of its issue that was read last.
    edits: int = 0
    read: int = 0

    @property
    def id(self) -> str:
        return self.plan.id

    @property
    def agent(self) -> str:
        return self.plan.id

    @property
    def round(self) -> int:
        return max(1, len(self.reviewed))


class Stranger(msgspec.Struct, frozen=True, kw_only=True):
    """The text of an issue whose author has no say, since the version that first showed it."""

    text: str
    since: int
    heard: tuple[str, ...] = ()
    #: The text that somebody who has a say approved last.
    approved: str = ""
    #: It was told that opening the issue again is not enough.
    returned: bool = False


class Sprint(msgspec.Struct, kw_only=True):
    """The sprint itself: its goal, its limits, and where it stands."""

    id: str
    number: int
    goal: str
    phase: Phase = "planning"
    created_at: float = 0.0
    ended_at: float | None = None
    parallel: int = 4
    max_fix_rounds: int = 3
    frameworks: tuple[str, ...] = ()
    #: The account that our own forge objects carry.
    author: str = "caloron"
    #: The account that our reviews carry; empty: the same.
    reviewer: str = ""
    main: str = "main"
    ask_before_running: bool = False
    #: A plan that waits for approval stands on the forge as an issue.
    plan_on_forge: bool = False
    held_plan: HeldPlan | None = None

    #: A plan that came with the goal; no planner is asked then.
    given_plan: tuple[PlannedTask, ...] = ()
    po: Work | None = None
    po_failures: int = 0
    plan_errors: tuple[str, ...] = ()
    #: Why there is no plan, when planning gave up.
    stopped: str = ""
    stopped_by: str = ""
    #: The log of the verification that stopped it.
    stopped_log: str = ""

    #: The framework of tasks that name none.
    framework: str = ""
    unsandboxed: bool = False
    baseline: Baseline = "skipped"
    baseline_work: Work | None = None
    baseline_tries: int = 0
    verify_line: str = ""
    #: The newest commit of main that is known to be green, or not to be looked at again.
    green_main: str = ""
    #: A commit of main that is red by itself, what to say of it, and the task that people were
    #: told of it with.
    red_main: str = ""
    red_line: str = ""
    red_told: str = ""
    allow_red: bool = False
    budget_usd: float = 0.0
    spent: Spent = Spent()
    accounted: dict[str, int] = msgspec.field(default_factory=dict)
    paused: dict[str, Paused] = msgspec.field(default_factory=dict)
    #: Why nothing more is started, until a person resumes the sprint.
    halted: str = ""
    #: Who threw away what was left of it; such a sprint never goes on.
    discarded: str = ""
    #: Approved changes that are verified together.
    train: Train | None = None
    #: Labelled issues of people who have no say, by number.
    strangers: dict[int, Stranger] = msgspec.field(default_factory=dict)
    #: Objects on the forge that are being closed, because the sprint was discarded.
    let_go: tuple[str, ...] = ()

    #: Who writes the retro: the rules alone, or a model besides.
    retro: Literal["rules", "model"] = "rules"
    retro_work: Work | None = None
    retros: int = 0
    #: The model was asked about the sprint as it is now.
    retro_asked: bool = False
    #: What was wrong with the form of its last answer.
    retro_error: str = ""
    retro_spent: Spent = Spent()
    insight: Insight | None = None
    #: Why there is no analysis by a model although one was to be asked.
    insight_problem: str = ""

    @property
    def plan_issue(self) -> int | None:
        """The issue on which the plan waits, or waited."""
        return self.held_plan.number if self.held_plan else None

    @property
    def plan_declined(self) -> str:
        """Who closed the issue of a plan that waits, which is a no."""
        return self.held_plan.declined if self.held_plan else ""


class State(msgspec.Struct, kw_only=True):
    """Everything `evaluate` looks at."""

    sprint: Sprint
    tasks: dict[str, Task] = msgspec.field(default_factory=dict)
    objects: dict[str, Snapshot] = msgspec.field(default_factory=dict)
    #: The tasks with effects that are planned and not done; an empty name: the sprint itself.
    #: A sprint does not end before its last comment.
    open_effects: frozenset[str] = frozenset()
    #: A rule of the sprint failed: the facts of this tick were not taken in, and wait.
    facts_wait: bool = False
    #: Work that waits in the queue for a free slot.
    queued: frozenset[str] = frozenset()
    #: Work whose process has ended, and whose result is being taken in.
    ended: frozenset[str] = frozenset()
    #: How many processes were started for each item of work.
    attempts: dict[str, int] = msgspec.field(default_factory=dict)


def enter(sprint: Sprint, phase: Phase) -> None:
    """Bring a sprint into its next phase; the same phase is no change."""
    if phase != sprint.phase:
        check_phase(sprint.id, sprint.phase, phase)
        sprint.phase = phase


def branch_name(task: str, sprint: str) -> str:
    return f"agent/{task}/{sprint}"


def revert_branch(task: str, sprint: str, number: int) -> str:
    return f"caloron/revert/{sprint}/{task}/{number}"


#: Branches as we name them, to ask whether we may push to such.
BRANCHES = (branch_name("some-task", "sprint-1"), revert_branch("some-task", "sprint-1", 1))


def main_commit(state: State) -> str:
    """Where main was seen last; empty: nowhere yet."""
    seen = state.objects.get(f"branch:{state.sprint.main}")
    return seen.commit if isinstance(seen, BranchSeen) else ""


def pull_of(state: State, task: Task) -> PullSeen | None:
    """The task's pull request as last seen."""
    seen = state.objects.get(f"pull:{task.pull}")
    return seen if isinstance(seen, PullSeen) else None
