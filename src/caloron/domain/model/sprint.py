"""A sprint: its settings, its phase, and the state that `evaluate` decides over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from caloron.domain.model.merge import MergeStyle, Train
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.retro_answer import Insight
from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Snapshot,
    marker_key,
)
from caloron.domain.model.status import PHASES, IllegalPhase, Phase
from caloron.domain.model.task import Task, Work
from caloron.domain.model.usage import Spent

#: The health of main before the sprint; empty: not known yet; skipped: the sprint is older than
#: baselines.
Baseline = Literal["", "green", "red", "none", "unverified", "skipped"]

_copy = msgspec.structs.replace


class RuleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the project under the same names; a resume uses their current values."""

    max_fix_rounds: int = 3
    #: A person has to approve each merge.
    require_human_review: bool = False


class SprintSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and accounts of a sprint. No tick changes them; `resume` may."""

    created_at: float = 0.0
    parallel: int = 4
    rules: RuleSettings = RuleSettings()
    frameworks: tuple[str, ...] = ()
    #: The framework of tasks that name none.
    framework: str = ""
    #: The account of our forge objects.
    author: str = "caloron"
    #: The account of our reviews; empty: the same.
    reviewer: str = ""
    main_branch: str = "main"
    merge_style: MergeStyle = "merge"
    #: The forge is on this disk: outside of it, its numbers of issues mean something else.
    forge_is_local: bool = False
    ask_before_running: bool = False
    #: A plan that waits for approval is shown as an issue.
    plan_on_forge: bool = False
    unsandboxed: bool = False
    allow_red: bool = False
    budget_usd: float = 0.0
    #: Who writes the retro: the rules alone, or a model in addition.
    retro_by: Literal["rules", "model"] = "rules"


class PlanApproval(msgspec.Struct, frozen=True, kw_only=True):
    """The issue on which a plan waits for approval, and what was handled there."""

    number: int | None = None
    #: Digests of the block that was checked last, and of the plan as we would write it.
    block: str = ""
    written: str = ""
    #: How often the plan or its block was changed.
    edits: int = 0
    handled: tuple[str, ...] = ()
    #: The current block cannot be run.
    faulty: bool = False
    #: Who closed the issue, which declines the plan.
    declined: str = ""
    #: The issues of the tasks were listed on it.
    concluded: bool = False


class SourceIssues(msgspec.Struct, frozen=True, kw_only=True):
    """The issues that the goal was taken from; they get the result as a comment."""

    numbers: tuple[int, ...]
    #: Close them when every task is done.
    close: bool = False
    #: The keys of the results that were posted.
    answered: tuple[str, ...] = ()


class Planning(msgspec.Struct, kw_only=True):
    """The making of the plan, or the reason why there is none."""

    source: SourceIssues | None = None

    #: A plan that came with the goal; no planner is asked then.
    given_plan: tuple[PlannedTask, ...] = ()
    work: Work | None = None
    failures: int = 0
    #: What was wrong with the planner's last plan.
    errors: tuple[str, ...] = ()
    #: The last plan that a person sent back, and the remarks on all such plans.
    sent_back: tuple[PlannedTask, ...] = ()
    remarks: tuple[str, ...] = ()
    approval: PlanApproval | None = None
    #: Why the sprint ended without a plan.
    failure: str = ""
    failure_kind: Literal["", "red_main"] = ""
    #: The log of the verification that failed.
    failure_log: str = ""


class MainHealth(msgspec.Struct, kw_only=True):
    """The results of the verifications of main alone."""

    baseline: Baseline = "skipped"
    work: Work | None = None
    runs: int = 0
    verify_line: str = ""
    #: The newest commit of main that is known to be green, or that could not be verified.
    last_green: str = ""
    #: A red commit of main, the line that shows it, and the task that was escalated with it.
    red_commit: str = ""
    red_summary: str = ""
    escalated_with: str = ""


class Retro(msgspec.Struct, kw_only=True):
    """The model's answer about the sprint, if one is asked."""

    work: Work | None = None
    runs: int = 0
    #: The model was asked about the sprint as it is now.
    asked: bool = False
    #: What was wrong with the form of its last answer.
    error: str = ""
    answer: Insight | None = None
    #: Why there is no answer although a model was to be asked.
    problem: str = ""


class SprintUsage(msgspec.Struct, kw_only=True):
    """The cost of a sprint, with its tasks."""

    spent: Spent = Spent()
    retro_spent: Spent = Spent()
    #: The last claim of each item of the sprint itself whose cost is included.
    accounted: dict[str, int] = msgspec.field(default_factory=dict)


class Unavailable(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that refuses all requests until a time."""

    until: float
    what: str
    detail: str = ""
    times: int = 1


class Availability(msgspec.Struct, kw_only=True):
    """The reasons why no agents start."""

    #: Why nothing is started until a person resumes the sprint.
    pause_reason: str = ""
    #: Providers that refuse requests, by framework.
    providers: dict[str, Unavailable] = msgspec.field(default_factory=dict)


class UntrustedIssue(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a labelled issue whose author may not command."""

    text: str
    #: The first version of the issue that had this text.
    since: int
    handled: tuple[str, ...] = ()
    #: The text that a trusted person approved last.
    approved: str = ""
    #: The author got the comment that opening the issue again is not enough.
    returned: bool = False


class Discard(msgspec.Struct, kw_only=True):
    """The person who discarded the sprint, which never resumes."""

    by: str = ""
    #: Forge objects that are being closed.
    closing: tuple[str, ...] = ()


class Sprint(msgspec.Struct, kw_only=True):
    """A sprint and its progress, without its tasks."""

    id: str
    number: int
    goal: str
    phase: Phase = "planning"
    ended_at: float | None = None
    settings: SprintSettings = SprintSettings()
    planning: Planning = msgspec.field(default_factory=Planning)
    main_health: MainHealth = msgspec.field(default_factory=MainHealth)
    availability: Availability = msgspec.field(default_factory=Availability)
    #: Approved changes that are verified together.
    merge_train: Train | None = None
    #: Labelled issues of untrusted authors, by number.
    untrusted: dict[int, UntrustedIssue] = msgspec.field(default_factory=dict)
    retro: Retro = msgspec.field(default_factory=Retro)
    usage: SprintUsage = msgspec.field(default_factory=SprintUsage)
    discard: Discard = msgspec.field(default_factory=Discard)

    @property
    def plan_issue(self) -> int | None:
        """The issue on which the plan waits or waited for approval."""
        return self.planning.approval.number if self.planning.approval else None

    @property
    def source_issues(self) -> tuple[int, ...]:
        """The issues that the goal was taken from."""
        return self.planning.source.numbers if self.planning.source else ()

    @property
    def plan_declined(self) -> str:
        """The person who declined the plan by closing its issue."""
        return self.planning.approval.declined if self.planning.approval else ""

    def copy(self) -> Sprint:
        """Return a copy that can be changed without changing this one."""
        return _copy(
            self,
            planning=_copy(self.planning),
            main_health=_copy(self.main_health),
            availability=_copy(self.availability),
            retro=_copy(self.retro),
            usage=_copy(self.usage),
            discard=_copy(self.discard),
        )


class State(msgspec.Struct, kw_only=True):
    """The whole input of `evaluate` besides the new facts."""

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

    def issue(self, number: int | None) -> IssueSnapshot | None:
        seen = self.objects.get(f"issue:{number}")
        return seen if isinstance(seen, IssueSnapshot) else None

    def pull(self, number: int | None) -> PullSnapshot | None:
        seen = self.objects.get(f"pull:{number}")
        return seen if isinstance(seen, PullSnapshot) else None

    def pull_of(self, task: Task) -> PullSnapshot | None:
        return self.pull(task.links.pull)

    def pulls(self) -> list[PullSnapshot]:
        """Return the pull requests on the forge, in the order of their numbers."""
        pulls = [seen for seen in self.objects.values() if isinstance(seen, PullSnapshot)]
        return sorted(pulls, key=lambda pull: pull.number)

    def main_commit(self) -> str:
        """Return the tip of main in the last snapshot; empty: there was no snapshot yet."""
        seen = self.objects.get(f"branch:{self.sprint.settings.main_branch}")
        return seen.commit if isinstance(seen, BranchSnapshot) else ""


def enter(sprint: Sprint, phase: Phase) -> None:
    """Move a sprint to a phase; the same phase is no change."""
    if phase not in (sprint.phase, *PHASES[sprint.phase]):
        raise IllegalPhase(sprint.id, sprint.phase, phase)
    sprint.phase = phase


def branch_name(task: str, sprint: str) -> str:
    return f"agent/{task}/{sprint}"


def revert_branch(task: str, sprint: str, number: int) -> str:
    return f"caloron/revert/{sprint}/{task}/{number}"


#: Examples of our branches, to check whether their names may be pushed.
BRANCHES = (branch_name("some-task", "sprint-1"), revert_branch("some-task", "sprint-1", 1))


def is_ours(
    sprint: Sprint, seen: IssueSnapshot | PullSnapshot | ReviewSnapshot | CommentSnapshot
) -> bool:
    """True for an object of one of our accounts that carries our marker."""
    settings = sprint.settings
    accounts = (settings.author, settings.reviewer or settings.author)
    return seen.author in accounts and bool(marker_key(seen.body))


def last_number(project: str, issues: Iterable[IssueSnapshot]) -> int:
    """Return the highest number of a sprint with this name on a forge, of any home.

    Another home, or a project that was deleted since, may have used the same name; objects and
    branches of its sprints must not be taken for those of a new one.
    """
    form = re.compile(rf"issue/{re.escape(project)}-(\d{{1,6}})/")
    matches = (form.match(marker_key(issue.body)) for issue in issues)
    return max((int(match[1]) for match in matches if match), default=0)
