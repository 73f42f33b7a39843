"""The data of each command in JSON: what `--output json` prints, and docs/schema publishes.

These are types alone, and no command imports them to run. `scripts/schema.py` makes the schema of
them, and a test compares the answer of each command with it. Sprints and tasks have their types in
`caloron.ledger.views`.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from caloron.domain.model.retro_answer import Insight
from caloron.domain.reporting.estimate import Estimate
from caloron.domain.reporting.inbox import Kind
from caloron.domain.reporting.kpis import AgentKpis, Kpis, RoleKpis, Trend
from caloron.domain.reporting.learnings import Improvement
from caloron.domain.reporting.retro_page import FeedbackItem
from caloron.domain.reporting.retro_rules import Analysis
from caloron.git.repository import Size
from caloron.ledger.views import (
    SprintRef,
    SprintState,
    SprintSummary,
    SprintView,
    TaskView,
    TaskWithReason,
)


class Meta(TypedDict):
    """About the call; `schema` rises when a field changes its name or its type."""

    duration_ms: int
    version: str
    schema: int


class Failure(TypedDict):
    code: str
    message: str
    hint: NotRequired[str]


class NextStep(TypedDict):
    """`caloron` alone: the next sensible step in this folder."""

    message: str
    next: str


class Help(TypedDict):
    command: str
    help: str


class Init(TypedDict):
    name: str
    path: str
    repo: str
    forge: str
    backend: str
    framework: str
    active: bool
    # Of a project on a forge on the network:
    url: NotRequired[str]
    account: NotRequired[str]
    reviewer: NotRequired[str]
    reviews: NotRequired[str]
    review_mode: NotRequired[str]
    first_commit: NotRequired[bool]
    protected: NotRequired[bool]
    required_checks: NotRequired[list[str]]
    required_approvals: NotRequired[int]
    notes: NotRequired[list[str]]
    repository: NotRequired[dict[str, Any]]


class ConfigGet(TypedDict):
    key: str
    value: Any
    detected: str


class ConfigSet(TypedDict):
    project: str
    key: str
    value: Any


class ConfigList(TypedDict):
    project: str
    settings: dict[str, Any]
    detected: dict[str, str]
    descriptions: dict[str, str]


class ConfigEdit(TypedDict):
    project: str
    changed: list[str]


class Project(TypedDict):
    name: str
    active: bool
    repo: str
    backend: str
    framework: str
    work_dir: str
    problem: str


class ProjectList(TypedDict):
    active: str | None
    projects: list[Project]


class ProjectSwitch(TypedDict):
    active: str


class Removed(TypedDict):
    action: str
    target: str
    bytes: int
    kind: NotRequired[str]


class ProjectDelete(TypedDict):
    deleted: str
    bytes: int
    parts: list[Removed]
    active: str | None


class ConventionsInit(TypedDict):
    path: str


class Conventions(TypedDict):
    source: str
    organisation: str
    is_empty: bool
    rendered: str
    warnings: list[str]


class ConventionsValidate(Conventions):
    valid: bool


class Check(TypedDict):
    check: str
    ok: bool
    detail: str
    remedy: str
    needed: bool


class Doctor(TypedDict):
    project: str | None
    checks: list[Check]


class Kept(TypedDict):
    target: str
    reason: str


class Clean(TypedDict):
    project: str
    removed: list[Removed]
    bytes: int
    kept: list[Kept]


class ProjectSetup(TypedDict):
    name: str
    path: str
    repo: str
    branch: str
    commit: str
    forge: str
    framework: str
    setup: str
    verify: str
    found: str
    network: str
    network_roles: list[str]
    budget_usd: float


class Uncommitted(TypedDict):
    repo: str
    changed: int
    untracked: int


class LinkedTask(TaskWithReason):
    issue_url: str
    pr_url: str


class DrivenSprint(SprintState):
    """A sprint after the command that drove it."""

    project: str
    work_time_s: float
    tasks: list[LinkedTask]
    #: The command that brings the merged work to the user.
    bring: str
    forge: str
    state_file: str
    next: NotRequired[str]
    project_setup: NotRequired[ProjectSetup | None]
    uncommitted: NotRequired[Uncommitted | None]
    estimate: NotRequired[Estimate]


class Attach(SprintState):
    project: str
    running: bool


class Stop(TypedDict):
    project: str
    stopped: bool
    sprint_id: NotRequired[str]
    number: NotRequired[int | None]


class SkippedTick(TypedDict):
    skipped: bool
    ended: bool


class Tick(SprintRef, SkippedTick):
    phase: str
    why: str
    statuses: dict[str, str]
    waits: dict[str, str]
    actions_taken: list[str]
    ticks: int
    agents: int
    outage: str


class LastTick(DrivenSprint, SkippedTick):
    """The tick that ended the sprint."""

    why: str
    statuses: dict[str, str]
    waits: dict[str, str]
    actions_taken: list[str]
    ticks: int
    agents: int


#: `from` is a keyword.
Apply = TypedDict(
    "Apply",
    {
        "project": str,
        "sprint_id": str | None,
        "number": int | None,
        "task": str | None,
        "repo": str,
        "branch": str,
        "how": str,
        "from": str,
        "to": str,
        "commits": int,
        "files": int,
        "added": int,
        "removed": int,
    },
)


class Revert(SprintRef):
    project: str
    reverted: list[str]
    pull_request: int | None
    built_on_by: list[str]
    bring: str


class Discard(SprintRef):
    project: str
    discarded_by: str
    cancelled: list[str]
    merged: list[str]
    closed: list[str]
    kept: list[str]
    undo: str


class StatusForge(TypedDict):
    kind: str
    url: str
    account: str
    reviewer: str
    reviews: str


class EngineProcess(TypedDict):
    """The engine that holds the project."""

    pid: int
    host: str
    started_at: str
    sprint_id: str
    number: int | None


class Status(TypedDict):
    project: str
    path: str
    repo: str
    backend: str
    framework: str
    forge: StatusForge
    total_sprints: int
    last_sprint: SprintView | None
    engine: EngineProcess | None


class NoProject(TypedDict):
    """`status` in a folder without a project."""

    active: None
    projects: int
    repository: str


class Why(SprintState):
    why: str
    tasks: list[TaskWithReason]


class History(TypedDict):
    project: str
    total: int
    sprints: list[SprintSummary]


class AttemptLog(TypedDict):
    work: str
    role: str
    #: Null: the claim began no attempt.
    attempt: int | None
    path: str
    output: str
    errors: str
    readable: str


class Logs(SprintRef):
    task: str
    attempts: list[AttemptLog]


class Event(TypedDict):
    at: str
    type: str
    work: str
    what: str
    payload: dict[str, Any]


class Attempt(TypedDict):
    item: str
    role: str
    attempt: int
    started_at: str
    ended_at: str | None
    duration_s: float | None
    exit_code: int | None
    cost_usd: float
    tokens: int
    model: str
    logs: str


class PendingEffect(TypedDict):
    kind: str
    key: str
    tries: int
    note: str


class Trace(SprintRef):
    task: str
    title: str
    status: str
    reason: str
    cost_usd: float
    events: list[Event]
    attempts: list[Attempt]
    pending: list[PendingEffect]


class Agent(TypedDict):
    agent_id: str
    sprints: int
    tasks: int | None
    done: int | None
    rounds: int | None
    attempts: int | None
    failed_attempts: int | None
    duration_s: float | None
    cost_usd: float | None
    tokens: int | None
    roles: list[str]
    frameworks: list[str]
    models: list[str]
    imported: bool


class AgentsList(TypedDict):
    agents: list[Agent]


class AgentInSprint(SprintRef):
    tasks: int
    done: int
    rounds: int
    attempts: int
    failed_attempts: int
    duration_s: float
    cost_usd: float
    tokens: int


class AgentWork(SprintRef):
    task: str
    work: str
    role: str
    status: str
    rounds: int
    attempts: int
    failed_attempts: int
    duration_s: float
    cost_usd: float
    tokens: int
    framework: str
    model: str


class OpenCycle(TypedDict):
    number: int
    status: str
    last_action: str
    last_action_result: str
    result: str
    work_in_progress: str
    next_target: str


class PastCycle(TypedDict):
    number: int
    status: str
    result: str
    started_at: str
    ended_at: str
    work: str
    steps: int
    last_action: str
    reason: str


class Difference(TypedDict):
    target: str
    expected: str
    found: str


class AgentsShow(Agent):
    by_sprint: list[AgentInSprint]
    work: list[AgentWork]
    imported_versions: list[dict[str, Any]]
    agent_dir: str
    about: str
    cycle: OpenCycle
    cycles: list[PastCycle]
    queue: list[dict[str, Any]]
    diary: list[dict[str, Any]]
    retros: list[str]
    differences: list[Difference]


class InboxEntry(SprintRef):
    kind: Kind
    task: str
    title: str
    why: str
    commands: list[str]
    holds: list[str]
    files: list[str]


class Inbox(TypedDict):
    project: str
    items: list[InboxEntry]


class Verdict(TypedDict):
    verdict: str
    author: str


class Criterion(TypedDict):
    """An acceptance criterion, and whether the reviewer found it met."""

    text: str
    met: bool
    reason: str


class ReportedTask(LinkedTask):
    verify_summary: str
    #: What the agent says about its change, one for each round.
    summaries: list[str]
    criteria: list[Criterion]
    pr_state: str | None
    pr_command: str | None
    merge_commit: str
    diff: Size | None
    reviews: list[Verdict]
    runs: int
    agent_s: float
    elapsed_s: float | None


class Rejection(TypedDict):
    """A review that requested changes."""

    task: str
    author: str
    reason: str


class Problem(TypedDict):
    task: str
    role: str
    what: str
    times: int
    log: str


class Report(SprintState):
    project: str
    main_before: str
    agent_s: float
    tasks: list[ReportedTask]
    inbox: list[InboxEntry]
    rejections: list[Rejection]
    problems: list[Problem]
    agents: list[AgentKpis]
    kpis: Kpis
    bring: str
    #: The page, with `--format`.
    page: NotRequired[str]


class ShownTask(TaskView):
    tools: list[str]
    runs: int


class Show(SprintState):
    #: A number that an older version did not record is null.
    kpis: dict[str, float | None]
    tools_used: dict[str, int]
    blockers: list[str]
    tasks: list[ShownTask]


class Metrics(TypedDict):
    project: str
    total_sprints: int
    imported_sprints: int
    total_tasks: int
    completed_tasks: int
    completion_rate: float
    avg_clarity: float | None
    clarity_count: int
    avg_sprint_time_s: float
    avg_work_time_s: float
    review_cycles: int
    total_interventions: int
    human_acts: int
    tests_passing: int
    fix_rounds: int
    failed_runs: int
    cost_usd: float
    total_tokens: int
    top_blockers: list[tuple[str, int]]
    top_tools: list[tuple[str, int]]
    #: All numbers of the last sprint.
    last_sprint: Kpis | None
    trends: list[Trend]
    improvements: list[Improvement]


class Retro(SprintRef):
    kpis: Kpis
    agents: list[AgentKpis]
    roles: list[RoleKpis]
    feedback: list[FeedbackItem]
    analysis: Analysis
    trends: list[Trend]
    improvements: list[Improvement]
    model_analysis: Insight | None
    model_problem: str
    report_markdown: str


class Issue(TypedDict):
    number: int
    title: str
    state: str
    url: str
    author: str
    labels: list[str]
    sprint_id: NotRequired[str]
    sprint_number: NotRequired[int | None]
    task: NotRequired[str]


class IssueList(TypedDict):
    issues: list[Issue]


class Comment(TypedDict):
    id: int
    author: str
    body: str


class IssueShow(Issue):
    body: str
    comments: list[Comment]


class IssueComment(TypedDict):
    number: int
    url: str
    comment: Comment


class PullRequest(TypedDict):
    number: int
    title: str
    state: str
    url: str
    author: str
    branch: str
    head: str
    closes: list[int]
    sprint_id: NotRequired[str]
    sprint_number: NotRequired[int | None]
    task: NotRequired[str]


class PrList(TypedDict):
    pull_requests: list[PullRequest]


class Review(TypedDict):
    id: int
    author: str
    verdict: str
    head: str
    body: str


class PrShow(PullRequest):
    body: str
    merge_commit: str
    comments: list[Comment]
    reviews: list[Review]


class PrCheckout(TypedDict):
    number: int
    repo: str
    branch: str
    head: str


class PrDiff(TypedDict):
    number: int
    diff: str


class PrReview(TypedDict):
    number: int
    review: Review


class PrMerge(PullRequest):
    merge_commit: str


class GraphCache(TypedDict):
    hits: int
    misses: int


class GraphRun(TypedDict):
    run_id: str
    composition_id: str
    profile: str
    output: Any
    status: str
    effects: list[str]
    warnings: list[str]
    spent_cents: int
    cache: GraphCache
    calls: int
    duration_ms: int


class GraphError(TypedDict):
    path: str
    kind: str
    message: str
    expected: NotRequired[str]
    found: NotRequired[str]


class GraphCheck(TypedDict):
    valid: bool
    profile: str
    composition_id: NotRequired[str]
    input: NotRequired[str]
    output: NotRequired[str]
    effects: NotRequired[list[str]]
    warnings: NotRequired[list[str]]
    errors: list[GraphError]


class GraphStep(TypedDict):
    step: int
    stage: str
    after: list[int]


class GraphPlan(TypedDict):
    composition_id: str
    effects: list[str]
    warnings: list[str]
    cost_cents: int
    steps: list[GraphStep]
    groups: list[list[int]]
    time_ms_p50: int | None
    tokens_est: int | None
    memory_mb: int | None


class GraphId(TypedDict):
    composition_id: str
    description: str


class GraphShow(TypedDict):
    composition_id: str
    description: str
    drawing: str
    svg: str | None


class GraphRunSummary(TypedDict):
    run_id: str
    started_at: str
    status: str
    duration_ms: int
    composition_id: str
    description: str


class StageCall(TypedDict):
    path: str
    stage: str
    stage_id: str
    step_index: int
    status: str
    source: str
    duration_ms: int
    input_hash: str
    output_hash: str | None
    failure: str


class GraphRunError(TypedDict):
    path: str
    message: str


class GraphRuns(TypedDict):
    """`graph trace` without a run."""

    runs: list[GraphRunSummary]


class GraphTrace(TypedDict):
    run_id: str
    composition_id: str
    description: str
    profile: str
    started_at: str
    duration_ms: int
    status: str
    stages: list[StageCall]
    error: GraphRunError | None


class StageTest(TypedDict):
    name: str
    state: str
    examples: int
    reasons: list[str]


class TestResults(TypedDict):
    total: int
    passed: int
    failed: int
    skipped: int
    tests: list[StageTest]


class StageEntry(TypedDict):
    name: str
    id: str
    source: str
    signature: str
    effects: list[str]
    runs_here: bool
    lifecycle: str


class StageList(TypedDict):
    count: int
    stages: list[StageEntry]


class StageShow(TypedDict):
    source: str
    runs_here: bool
    spec: dict[str, Any]


class StageRun(TypedDict):
    name: str
    stage_id: str
    run_id: str
    output: Any
    duration_ms: int


class StageAdd(TypedDict):
    name: str
    id: str
    signature_id: str
    replaces: list[str]
    examples: int
    path: str


class NoetherRegister(TypedDict):
    file: str
    ids: dict[str, str]
    failures: dict[str, str]


class ScheduledRun(TypedDict):
    job: str
    run_id: str
    ok: bool
    composition_id: str
    error: str


class ScheduleRun(TypedDict):
    config: str
    failed: int
    runs: list[ScheduledRun]


class ScheduleCheck(TypedDict):
    config: str
    jobs: int
    errors: list[str]


class ScheduledJob(TypedDict):
    job: str
    cron: str
    graph: str
    next: str | None
    last: str | None
    ok: bool | None
    error: str


class ScheduleList(TypedDict):
    config: str
    jobs: list[ScheduledJob]


class Serve(TypedDict):
    url: str
    root: str
    pid: int


class HarnessStart(TypedDict):
    agent_id: str
    sprint_id: str
    task_id: str
    exit_code: int
    status: str
    reason: str
    tokens_used: int
    cost_usd: float | None
    head: str
    output: str
    told: bool


class StateFile(TypedDict):
    path: str
    bytes: int
    whose: str
    what: str


class LedgerCounts(TypedDict):
    version: str
    counts: dict[str, int]


class StateShow(TypedDict):
    project: str
    files: list[StateFile]
    ledger: LedgerCounts
    sprint_id: str | None
    number: int | None
    state: dict[str, Any] | None


class Deviation(TypedDict):
    kind: str
    target: str
    expected: str
    found: str
    repair: str


class StateVerify(TypedDict):
    project: str
    checked: int
    deviations: list[Deviation]
    notes: list[Deviation]
    repaired: list[str]


class BackupPart(TypedDict):
    name: str
    bytes: int
    sha256: str


class StateBackup(TypedDict):
    project: str
    path: str
    bytes: int
    created_at: str
    sprints: dict[str, str]
    left_out: list[str]
    parts: list[BackupPart]


class StateRestore(TypedDict):
    project: str
    path: str
    was: str
    sprints: list[str]
    reopened: list[str]
    kept: str
    aside: list[str]


class AgentState(TypedDict):
    lines: list[Any]
    messages: list[str]


class WakeReport(TypedDict):
    agent: str
    cycle_number: int
    outcome: str
    last_cycle: int
    last_step: str
    last_step_result: str
    last_result: str
    reason: str
    artefacts: list[str]
    ended_at: str
    work_in_progress: str
    work_cycles: int
    slice_it: bool
    next_target: str
    stop: str
    text: str


class CycleState(TypedDict):
    agent: str
    cycle_number: int
    last_action: str
    last_action_result: str
    work_in_progress: str
    timestamp: str
    next_target: str
    status: str
    started_at: str
    heartbeat: str
    ended_at: str
    artefacts: list[str]
    reason: str
    result: str
    steps: int
    work_cycles: int
    holder: dict[str, Any] | None
    previous: dict[str, Any] | None
    seq: int


class CycleFiles(TypedDict):
    notices: list[str]
    state_file: str
    log_file: str


class CycleBegin(CycleFiles):
    report: WakeReport
    state: CycleState


class CycleAct(CycleFiles):
    state: CycleState
    stop: str


class CycleEnd(CycleFiles):
    state: CycleState


class CycleStatus(CycleFiles):
    report: WakeReport
    state: CycleState
    alive: bool


class CycleLog(CycleFiles):
    entries: list[dict[str, Any]]


class WrittenBreadcrumb(TypedDict):
    number: int
    pull: bool
    url: str
    comment: int | None
    section: bool
    done: int
    refused: list[str]


class CycleBreadcrumb(TypedDict):
    agent: str
    task: str
    key: str
    text: str
    cycle_number: int
    work_cycles: int
    slice_it: bool
    written: WrittenBreadcrumb | None


class CycleStop(TypedDict):
    agent: str
    stop: str


class Completion(TypedDict):
    shell: str
    script: str


class Parameter(TypedDict):
    name: str
    type: str
    required: bool
    multiple: bool
    choices: NotRequired[list[str]]


class Option(Parameter):
    aliases: list[str]
    metavar: str | None
    description: str
    default: Any


class CommandHelp(TypedDict):
    name: str
    description: str
    arguments: list[Parameter]
    options: list[Option]
    subcommands: list[CommandHelp]
    idempotent: NotRequired[bool]
    examples: list[str]


class Introspect(TypedDict):
    name: NotRequired[str]
    version: NotRequired[str]
    acli_version: str
    commands: NotRequired[list[CommandHelp]]


class Skill(TypedDict):
    path: str | None
    content: str


class Version(TypedDict):
    tool: str
    version: str
    acli_version: str


#: The data of each command by the name in its envelope; several types are alternatives.
COMMANDS: dict[str, type | tuple[type, ...]] = {
    "caloron": NextStep,
    "help": Help,
    "init": Init,
    "config.get": ConfigGet,
    "config.set": ConfigSet,
    "config.unset": ConfigSet,
    "config.edit": ConfigEdit,
    "config.list": ConfigList,
    "project.list": ProjectList,
    "project.switch": ProjectSwitch,
    "project.delete": ProjectDelete,
    "conventions.init": ConventionsInit,
    "conventions.show": Conventions,
    "conventions.validate": ConventionsValidate,
    "doctor": Doctor,
    "sprint": DrivenSprint,
    "resume": DrivenSprint,
    "attach": Attach,
    "stop": Stop,
    "tick": (Tick, LastTick, SkippedTick),
    "apply": Apply,
    "discard": Discard,
    "revert": Revert,
    "status": (Status, NoProject),
    "why": Why,
    "logs": Logs,
    "trace": Trace,
    "agents.list": AgentsList,
    "agents.show": AgentsShow,
    "report": Report,
    "inbox": Inbox,
    "history": History,
    "show": Show,
    "metrics": Metrics,
    "retro": Retro,
    "issue.list": IssueList,
    "issue.show": IssueShow,
    "issue.comment": IssueComment,
    "issue.create": Issue,
    "issue.edit": Issue,
    "issue.label": Issue,
    "issue.close": Issue,
    "issue.reopen": Issue,
    "pr.list": PrList,
    "pr.show": PrShow,
    "pr.checkout": PrCheckout,
    "pr.comment": IssueComment,
    "pr.diff": PrDiff,
    "pr.review": PrReview,
    "pr.merge": PrMerge,
    "pr.close": PullRequest,
    "graph.run": GraphRun,
    "graph.check": GraphCheck,
    "graph.plan": GraphPlan,
    "graph.id": GraphId,
    "graph.show": GraphShow,
    "graph.trace": (GraphTrace, GraphRuns),
    "graph.test": TestResults,
    "stage.list": StageList,
    "stage.show": StageShow,
    "stage.run": StageRun,
    "stage.add": StageAdd,
    "stage.test": TestResults,
    "noether.register": NoetherRegister,
    "schedule.run": ScheduleRun,
    "schedule.check": ScheduleCheck,
    "schedule.list": ScheduleList,
    "serve": Serve,
    "harness.start": HarnessStart,
    "state.show": StateShow,
    "state.verify": StateVerify,
    "state.backup": StateBackup,
    "state.restore": StateRestore,
    "agent-state": AgentState,
    "cycle.begin": CycleBegin,
    "cycle.act": CycleAct,
    "cycle.end": CycleEnd,
    "cycle.status": CycleStatus,
    "cycle.log": CycleLog,
    "cycle.recover": CycleEnd,
    "cycle.breadcrumb": CycleBreadcrumb,
    "cycle.stop": CycleStop,
    "clean": Clean,
    "completion": Completion,
    "introspect": Introspect,
    "skill": Skill,
    "version": Version,
}
