"""The protocols that are the architecture: what the engine needs from the outside world."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from caloron.domain.model.merge import MergeStyle
from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Snapshot,
    Verdict,
)

State = Literal["open", "closed", "merged", "all"]


class Clock(Protocol):
    """Wall time for people and thresholds; leases use the database's clock instead."""

    def now(self) -> float: ...


class Poll(msgspec.Struct, frozen=True):
    """The changes on the forge since a cursor, and the cursor for the next call."""

    snapshots: tuple[Snapshot, ...]
    cursor: str


class Remote(msgspec.Struct, frozen=True):
    """The address that git fetches from and pushes to, with the settings for access."""

    #: A path or an address; no secret is ever part of it.
    url: str
    #: Settings of git for this remote alone, such as its certificates or its credential helper.
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    #: Environment of git for this remote alone: the only place where its token stands.
    env: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Remote({self.url!r})"


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the forge's own CI for a commit, without our own statuses."""

    state: Literal["none", "pending", "green", "red"]
    #: The checks that are not green, in one line.
    detail: str = ""


class RepositoryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A repository on its forge as our account sees it: what is there, and what we may do."""

    #: `local`, `gitea` or `github`.
    kind: str
    #: Its page, or its folder.
    url: str
    description: str = ""
    #: None: unknown.
    open_issues: int | None = None
    #: It has no commit yet.
    empty: bool = False
    can_push: bool = True
    #: Our account may merge into main, which may be protected.
    can_merge: bool = True
    protected: bool = False
    required_checks: tuple[str, ...] = ()
    required_approvals: int = 0
    #: The second account may write there; otherwise its reviews do not count.
    reviewer_can_push: bool = True
    #: Features that a sprint needs and that are switched off: issues, pull requests.
    switched_off: tuple[str, ...] = ()
    #: Nothing in it can be changed.
    archived: bool = False
    #: Rules by which our account may not push to the branches of tasks.
    push_blocked_by: tuple[str, ...] = ()
    #: Rules by which only signed commits are taken.
    signatures_required_by: tuple[str, ...] = ()
    #: Rules by which a change that is behind main is not merged.
    up_to_date_required_by: tuple[str, ...] = ()
    #: Our account may read such rules.
    sees_rules: bool = True
    #: Our token may read all results of the forge's CI, not only statuses of commits.
    sees_check_runs: bool = True
    #: The form of verdicts: a review by the second account, or a comment with a commit status.
    reviews: Literal["review", "comment"] = "review"


class VerifiedMerge(msgspec.Struct, frozen=True):
    """A commit for main whose files were verified, in a repository of ours that git can push from.

    A forge that makes the merge by itself is asked for the style.
    """

    commit: str
    source: Path
    style: MergeStyle = "merge"


class Merged(msgspec.Struct, frozen=True):
    """A merged pull request; `did_it`: this very call merged it."""

    pull: PullSnapshot
    did_it: bool


class Forge(Protocol):
    """Issues, pull requests, reviews and merges on the user's own forge.

    Reads raise `NotFound` for an unknown number and `ForgeUnavailable` when the forge does not
    answer (`ForgePaused` if it says until when). Changes are made by the effect executor alone.
    """

    @property
    def author(self) -> str:
        """The account that our own objects carry; a marker counts only on its objects."""
        ...

    @property
    def reviewer(self) -> str:
        """The account that our reviews carry: the second one, or the same."""
        ...

    @property
    def main(self) -> str:
        """The branch that everything is merged into."""
        ...

    def remote(self) -> Remote: ...

    def about(self) -> RepositoryInfo: ...

    def close(self) -> None:
        """Close files and connections."""
        ...

    def url(self, number: int, *, pull: bool = False) -> str:
        """The page of an issue or a pull request; empty where the forge has no pages."""
        ...

    def poll(self, cursor: str) -> Poll: ...

    def issue(self, number: int) -> IssueSnapshot: ...
    def issues(self, state: State = "all", label: str = "") -> list[IssueSnapshot]:
        """All in a state, or those of them that carry a label; the oldest first."""
        ...

    def comments(self, number: int) -> list[CommentSnapshot]: ...
    def pull(self, number: int) -> PullSnapshot: ...
    def pulls(self, state: State = "all") -> list[PullSnapshot]: ...
    def reviews(self, number: int) -> list[ReviewSnapshot]: ...
    def branch(self, name: str) -> BranchSnapshot | None: ...
    def mergeable(self, number: int) -> bool: ...

    def diff(self, number: int) -> str:
        """Return the changes of a pull request, also of a merged one."""
        ...

    def checks(self, head: str) -> Checks:
        """Return the result of the forge's own CI; missing required checks are pending."""
        ...

    def find_issue(self, key: str) -> IssueSnapshot | None:
        """Our own issue with this marker key, in any state."""
        ...

    def find_comment(self, number: int, key: str) -> CommentSnapshot | None: ...

    def find_pull(self, branch: str, key: str) -> PullSnapshot | None:
        """Our own pull request from this branch with this marker key, in any state."""
        ...

    def find_review(self, number: int, key: str) -> ReviewSnapshot | None: ...

    def create_issue(self, title: str, body: str, labels: tuple[str, ...]) -> IssueSnapshot: ...
    def comment(self, number: int, body: str) -> CommentSnapshot: ...

    def edit_comment(self, number: int, comment: int, body: str) -> CommentSnapshot:
        """Put another text in the place of a comment of ours on this issue."""
        ...

    def edit_issue(self, number: int, body: str, title: str = "") -> IssueSnapshot:
        """Replace the body, and the title unless it is empty."""
        ...

    def label(self, number: int, label: str) -> IssueSnapshot: ...
    def unlabel(self, number: int, label: str) -> IssueSnapshot: ...
    def close_issue(self, number: int) -> IssueSnapshot: ...
    def reopen_issue(self, number: int) -> IssueSnapshot: ...

    def push(self, source: Path, branch: str, new: str, old: str) -> BranchSnapshot:
        """Move a branch from `old` (empty: it must not exist) to `new`, or raise `StaleHead`."""
        ...

    def open_pull(self, title: str, body: str, branch: str) -> PullSnapshot: ...
    def edit_pull(self, number: int, body: str) -> PullSnapshot: ...
    def close_pull(self, number: int) -> PullSnapshot: ...

    def review(self, number: int, head: str, verdict: Verdict, body: str) -> ReviewSnapshot: ...

    def merge(
        self,
        number: int,
        head: str,
        base: str,
        message: str,
        verified: VerifiedMerge | None = None,
    ) -> Merged:
        """Merge `head` into `base`: `StaleHead`, `StaleBase`, `MergeConflict`.

        Where our account may push to main, main moves from `base` to exactly the commit of
        `verified`, or not at all. Elsewhere the forge makes the merge. It cannot be told the base,
        so main may move just before the merge: the result must be compared with the verified one.
        """
        ...

    def mark_merged(self, number: int, commit: str) -> PullSnapshot:
        """Have the forge show a pull request as merged by `commit`, which is on main already.

        `NotYet` if the forge needs more time for that.
        """
        ...


Network = Literal["full", "none", "model", "public"]
#: The rights of an agent inside its sandbox: only answer, also edit files, or use all tools.
Permissions = Literal["answer", "edit", "full"]
Trouble = Literal["", "auth", "quota", "rate_limit", "overflow", "budget", "crash"]


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one sandbox; the shim limits output and time."""

    memory_mb: int = 4096
    processes: int = 512
    file_mb: int = 2048
    disk_mb: int = 10_240


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The files, hosts and resources that one process may use."""

    #: The folder of the host that the process may change.
    workspace: Path
    #: Its HOME, private to this attempt; None: an empty one, deleted with the sandbox.
    home: Path | None = None
    #: Files and folders that it may read, at the paths they have outside.
    read_only: tuple[Path, ...] = ()
    #: Files and folders besides the workspace that it may change, at the paths they have outside.
    writable: tuple[Path, ...] = ()
    network: Network = "none"
    #: With `model` what may be reached, with `public` what may be reached besides public hosts:
    #: `host`, `host:port`, `*.domain` or `127.0.0.1:port`.
    hosts: tuple[str, ...] = ()
    #: The whole environment that it gets, besides PATH, HOME, language and time zone.
    env: dict[str, str] = msgspec.field(default_factory=dict)
    caps: Caps = Caps()


class SandboxedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command that starts a process confined from its first instruction."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    #: Files to be open for reading at these descriptors when argv is started.
    files: dict[int, Path] = msgspec.field(default_factory=dict)
    #: A process to run beside it, outside, for as long as it lives: the filtering proxy.
    sidecar: tuple[str, ...] = ()
    #: How many generations of processes belong to the sandbox itself: they get no signals.
    sandbox_depth: int = 0


class Sandbox(Protocol):
    """Confines processes to a workspace."""

    name: str

    def check(self) -> None:
        """Start a sandbox; `PreconditionFailed` with the remedy where that is not possible."""
        ...

    def confine(self, argv: tuple[str, ...], spec: SandboxSpec) -> SandboxedCommand: ...

    def inside(self, workspace: Path) -> Path:
        """Return the path of a workspace inside the sandbox."""
        ...

    def sandbox_home(self, home: Path) -> Path:
        """Return the path of a private home inside the sandbox."""
        ...

    def give_ownership(self, *folders: Path) -> None:
        """Let the confined process own these folders and everything in them."""
        ...


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a model to one question, with its usage."""

    text: str
    #: The model as its provider names it.
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    #: None: unknown.
    cost_usd: float | None = None


class Model(Protocol):
    """Answers questions with text: no tools, no memory of earlier questions."""

    #: The provider, as it is configured.
    name: str

    def ask(
        self, prompt: str, *, seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> ModelAnswer:
        """Return the answer, or raise `ModelError`; `stopped` cancels the request."""
        ...


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one agent: its role, its prompt and its folders."""

    role: str
    task: str
    prompt: str
    #: As the agent sees it.
    workspace: Path
    #: A private directory of this attempt, outside the workspace and outside the sandbox.
    run_dir: Path
    #: The agent's HOME as we see it, and as the agent sees it.
    home: Path
    sandbox_home: Path
    #: Caloron's instructions for every agent, besides those of the repository.
    instructions: str = ""
    model: str = ""
    #: The budget of this run; None: no limit.
    budget_usd: float | None = None
    permissions: Permissions = "full"
    #: A conversation to continue: its id, and the folder where `save_session` put it.
    session: str = ""
    sessions: Path | None = None


class AgentCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command that starts an agent, with the files and hosts that it needs."""

    argv: tuple[str, ...]
    env: dict[str, str] = msgspec.field(default_factory=dict)
    #: Environment that must never be stored: keys and tokens of the model.
    secrets: dict[str, str] = msgspec.field(default_factory=dict)
    stdin: str = ""
    #: The framework's installation and files, readable inside at the same paths.
    read_only: tuple[Path, ...] = ()
    #: Hosts of its model.
    hosts: tuple[str, ...] = ()


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer and the usage of an agent in one attempt, read from its output."""

    #: Its last words: an answer, a plan, a verdict.
    text: str = ""
    tools: dict[str, int] = msgspec.field(default_factory=dict)
    turns: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    #: Read again from the provider's cache; not part of `tokens_in`.
    tokens_cached: int = 0
    #: None: unknown.
    cost_usd: float | None = None
    model: str = ""
    session: str = ""
    stop_reason: str = ""
    trouble: Trouble = ""
    #: One line on the trouble, as the provider put it.
    detail: str = ""
    #: When a quota or a rate limit is over, in seconds since 1970.
    reset_at: float | None = None


class CliInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one agent CLI that the rest of Caloron looks up."""

    #: The name in the setting `framework`, and the name for people.
    name: str
    title: str
    #: The program on PATH, and the variable that names another one; empty: nothing to find.
    program: str = ""
    program_env: str = ""
    #: The command that installs it.
    install: str = ""
    #: Variables with the key of its provider; the first one that is set counts.
    key_vars: tuple[str, ...] = ()
    #: Prefixes of the environment variables that configure it.
    env_prefixes: tuple[str, ...] = ()
    #: The hosts of its provider.
    hosts: tuple[str, ...] = ()
    #: Manifests put it before the name of a model.
    model_prefix: str = ""
    #: Its reports say what a run cost.
    reports_cost: bool = False
    #: A model answers for sure; a `command` or the scripted agent may have none.
    uses_model: bool = True
    #: Arguments that print its version and do nothing else; empty: there are none.
    version_args: tuple[str, ...] = ("--version",)
    #: Its name in CALORON_LLM_PROVIDER; empty: it cannot be asked as a model.
    provider: str = ""
    #: The model that is asked unless another one is configured.
    default_model: str = ""
    #: The variable with the address of its provider, and the address unless that is set.
    base_url_env: str = ""
    base_url: str = ""
    #: Setting this variable lets it use its tools where it is asked as a model.
    full_access_env: str = ""


class AgentCli(Protocol):
    """A coding-agent program: turns a request into a command, and its output into a report."""

    info: CliInfo

    def check(self) -> None:
        """Raise `PreconditionFailed` if it is not installed or has no credential."""
        ...

    def command(self, request: AgentRequest) -> AgentCommand: ...

    def read_report(self, run_dir: Path) -> AgentReport:
        """Read `output.log` (and `home/`) of an attempt, also of one that was cut short."""
        ...

    def save_session(
        self, home: Path, sessions: Path, session: str, clean: Callable[[bytes], bytes] = bytes
    ) -> bool:
        """Copy a conversation from an agent's home for a later attempt; False: there is none.

        `clean` removes what must not be stored.
        """
        ...

    @staticmethod
    def format_line(line: str) -> str:
        """Return one line of output for people to read; empty: not worth showing."""
        ...
