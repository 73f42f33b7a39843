"""A task: its plan, its step, and what the rules remember about it."""

from __future__ import annotations

import msgspec

from caloron.domain.model.feedback import Feedback
from caloron.domain.model.merge import MergeWait, Outcome, Revert, Verified
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.roles import Role
from caloron.domain.model.snapshots import ReviewSnapshot
from caloron.domain.model.status import Status, Step
from caloron.domain.model.usage import Spent

_copy = msgspec.structs.replace


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work in the queue: the role, the commit to work on, and the reason."""

    item: str
    role: Role
    #: The review round it belongs to, from 1.
    round: int = 1
    #: The commit to work on; empty means current main.
    head: str = ""
    #: The heads that are verified as one batch, in the order of their merges.
    batch: tuple[str, ...] = ()
    #: The request of a reviewer or a person, or the failure of a verification.
    reason: str = ""
    #: Why the last attempt failed.
    previous_failure: str = ""
    #: The log of the verification that the work is about.
    verify_log: str = ""
    #: Work on the result of merging main in, because that result is what failed.
    onto_main: bool = False
    #: The claim whose end was taken in last: the end of the same claim is ignored afterwards.
    last_token: int = 0
    #: How often the same question was asked without a clear answer.
    tries: int = 1
    #: How often people had changed the text of the task when this work was queued.
    edits: int = 0

    def ended_by(self, item: str, token: int) -> Work | None:
        """Return the work with the claim that ended; None: that claim is not current."""
        current = item == self.item and token > self.last_token
        return _copy(self, last_token=token) if current else None


class StatusLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a task's status, as a line for people."""

    at: float
    what: str


class WorkLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work for a task and its outcome; an empty outcome means that it runs."""

    item: str
    role: Role
    #: Empty for a verification, which needs no agent.
    agent: str = ""
    head: str = ""
    outcome: str = ""


class Times(msgspec.Struct, kw_only=True):
    """The times of the last change of status, of the start, and of the completion."""

    changed_at: float = 0.0
    started_at: float | None = None
    completed_at: float | None = None


class ForgeLinks(msgspec.Struct, kw_only=True):
    """The forge objects of a task."""

    issue: int | None = None
    pull: int | None = None
    #: Raised when a person closes the pull request: the next pull request is a new one.
    generation: int = 1
    #: The pull request whose description shows our section.
    described_pull: int | None = None


class Change(msgspec.Struct, kw_only=True):
    """The commits of a task: on which branch they are, and how far they are pushed."""

    branch: str = ""
    head: str = ""
    pushed: str = ""
    #: The last commit that we pushed to the task's own branch; `branch` may be a person's.
    own_commit: str = ""
    #: The agent found nothing to change; a reviewer has to agree.
    is_empty: bool = False
    #: How often a branch that was deleted was pushed again.
    repushes: int = 0
    #: The agents' descriptions: of the whole change, then of each later round.
    summaries: tuple[str, ...] = ()

    def adopt(self, commit: str) -> None:
        """Take a commit that is on the forge as the change."""
        self.head = self.pushed = commit


class Attempts(msgspec.Struct, kw_only=True):
    """The counts of queued work, and of failures in a row."""

    #: Numbers the work of the task.
    work_count: int = 0
    failures: int = 0
    #: The conversation of the agent that writes the change.
    session: str = ""

    def reset(self) -> None:
        self.failures = 0


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """A reviewer's answer about one acceptance criterion."""

    #: Its place in the list of the task, from 1.
    number: int
    met: bool
    reason: str = ""


class ReviewState(msgspec.Struct, kw_only=True):
    """The review rounds of a task and the verdicts on its heads."""

    #: The heads that were reviewed: one per round.
    reviewed: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    #: The head whose verdict was sent to the forge.
    posted_for: str = ""
    #: The key of our last verdict.
    last_key: str = ""
    #: Keys of our verdicts that do not count any more.
    voided: tuple[str, ...] = ()
    #: The approvals of a head by the command `caloron:approve`, one per person.
    approvals: tuple[ReviewSnapshot, ...] = ()
    #: The head for which people were asked for their approval.
    asked_for: str = ""
    #: The reviewer's answers about the acceptance criteria, and the head they are about.
    criteria: tuple[Criterion, ...] = ()
    criteria_head: str = ""
    #: The head of the pull request, and the version and the time of its first snapshot.
    seen_head: str = ""
    seen_version: int = 0
    seen_at: float = 0.0

    @property
    def round(self) -> int:
        return max(1, len(self.reviewed))


class MergeState(msgspec.Struct, kw_only=True):
    """The progress of the change on its way into main."""

    verified: Verified | None = None
    #: A red result that waits for main to be verified by itself.
    suspect: Outcome | None = None
    #: The head that is being merged.
    merging: str = ""
    #: How often a merge came too late, because main or the branch had moved.
    stale_merges: int = 0
    #: The commit that our merge put on main, if its tree is not the one that was verified.
    unverified: str = ""
    revert: Revert | None = None
    revert_count: int = 0
    #: The pull request that reverted the merged change, as a person asked.
    reverted_in: int | None = None
    waiting: MergeWait | None = None
    #: The head that could not be merged after others of its batch: it is verified alone.
    batch_conflict: str = ""

    def verified_head(self, head: str) -> Verified | None:
        """Return the result of the last verification if it is about this head."""
        return self.verified if self.verified and self.verified.head == head else None

    def wait_of(self, head: str) -> MergeWait | None:
        """Return why this head waits, if it does."""
        return self.waiting if self.waiting and self.waiting.head == head else None

    def reset(self) -> None:
        """Forget a merge that is under way; a merge train notices by itself who has left it."""
        self.merging, self.unverified, self.batch_conflict = "", "", ""
        self.revert = self.waiting = self.suspect = None


class Escalation(msgspec.Struct, kw_only=True):
    """An open decision of a person, and how the task resumes afterwards."""

    #: Counts the escalations of the task.
    number: int = 0
    issue: int | None = None
    resume_work: Work | None = None
    resume_as: Step = Step.PUBLISHING
    #: Effects that the forge refused: tried again when the task is released.
    retry_effects: tuple[str, ...] = ()
    #: Who works on the task by hand; the task is Escalated meanwhile.
    taken_over_by: str = ""
    #: Who handed the task back: its branch is being read.
    handback_by: str = ""

    def resume(self, work: Work | None, step: Step) -> None:
        """Set what a release continues with, in place of what was to be resumed."""
        self.resume_work, self.retry_effects, self.resume_as = work, (), step

    def reset(self) -> None:
        """Forget what was to be resumed."""
        self.resume_work, self.retry_effects = None, ()

    def end_takeover(self) -> None:
        self.taken_over_by = self.handback_by = ""


class Supervision(msgspec.Struct, kw_only=True):
    """The supervisor's interventions in the current work."""

    interventions: int = 0
    restarts: int = 0
    intervened_at: float = 0.0
    #: All interventions ever: distinguishes one probe from the next.
    total: int = 0

    def reset(self) -> None:
        self.interventions = self.restarts = 0


class Conversation(msgspec.Struct, kw_only=True):
    """The comments and acts of people about the task that were handled."""

    #: Comments that were handled, or are older than the escalation.
    handled: tuple[str, ...] = ()
    #: Comments and remarks that no agent has read yet, and the number of answers to such.
    unread: tuple[str, ...] = ()
    answers: int = 0
    #: Comments up to this version are older than the task's issue or pull request.
    since_version: int = 0
    #: The version of the issue that was read last, and how often people changed its text.
    issue_version: int = 0
    edits: int = 0
    #: Acts of people on the forge, each once.
    acts: tuple[str, ...] = ()
    #: The task was added because of its label; `unlabelled`: the label was removed again.
    by_label: bool = False
    unlabelled: bool = False
    #: Who cancelled the task by a command; its open pull requests are closed then.
    cancelled_by: str = ""
    #: A person closed the issue: opening it again restores the task.
    closed_by_person: bool = False
    #: A trusted person asked for the cancelled task.
    reopen_approved: bool = False
    #: Pull requests that we are closing, and how many were closed with the task.
    closing_pulls: tuple[int, ...] = ()
    pulls_closed_by_us: int = 0

    def handle(self, *objects: str) -> None:
        """Remember comments and reviews as handled."""
        self.handled = tuple(sorted({*self.handled, *objects}))


class TaskUsage(msgspec.Struct, kw_only=True):
    """The cost of a task."""

    spent: Spent = Spent()
    #: The last claim of each item whose cost is included.
    accounted: dict[str, int] = msgspec.field(default_factory=dict)


class TaskLog(msgspec.Struct, kw_only=True):
    """The content of the progress comment: the last work, changes of status, feedback."""

    work: tuple[WorkLogEntry, ...] = ()
    status: tuple[StatusLogEntry, ...] = ()
    #: How many changes of status there were, and how many of them the issue shows.
    moved: int = 0
    reported: int = 0
    #: How often the task's agent was started for it, as reported last.
    cycle: int = 0
    #: How often the pull request was described, and a digest of the last description.
    descriptions: int = 0
    described: str = ""
    #: The last feedback of its agents, with the blockers of all.
    feedback: Feedback | None = None


class Task(msgspec.Struct, kw_only=True):
    """A planned task and its progress."""

    plan: PlannedTask
    #: `Evaluation.move` changes it.
    step: Step = Step.WAITING
    reason: str = ""
    times: Times = msgspec.field(default_factory=Times)
    links: ForgeLinks = msgspec.field(default_factory=ForgeLinks)
    change: Change = msgspec.field(default_factory=Change)
    work: Work | None = None
    attempts: Attempts = msgspec.field(default_factory=Attempts)
    review: ReviewState = msgspec.field(default_factory=ReviewState)
    merge: MergeState = msgspec.field(default_factory=MergeState)
    escalation: Escalation = msgspec.field(default_factory=Escalation)
    supervision: Supervision = msgspec.field(default_factory=Supervision)
    conversation: Conversation = msgspec.field(default_factory=Conversation)
    usage: TaskUsage = msgspec.field(default_factory=TaskUsage)
    log: TaskLog = msgspec.field(default_factory=TaskLog)

    @property
    def id(self) -> str:
        return self.plan.id

    @property
    def status(self) -> Status:
        return self.step.status

    @property
    def agent(self) -> str:
        return self.plan.id

    def forgive(self) -> None:
        """Start the counters of failures and interventions again."""
        self.attempts.reset()
        self.supervision.reset()

    def copy(self) -> Task:
        """Return a copy that can be changed without changing this one."""
        return _copy(
            self,
            times=_copy(self.times),
            links=_copy(self.links),
            change=_copy(self.change),
            attempts=_copy(self.attempts),
            review=_copy(self.review),
            merge=_copy(self.merge),
            escalation=_copy(self.escalation),
            supervision=_copy(self.supervision),
            conversation=_copy(self.conversation),
            usage=_copy(self.usage),
            log=_copy(self.log),
        )
