"""The parts of the JSON of Gitea and GitHub that Caloron reads."""

from __future__ import annotations

from datetime import datetime

import msgspec


class User(msgspec.Struct):
    login: str = ""


class Label(msgspec.Struct):
    name: str
    id: int = 0


class Present(msgspec.Struct):
    """A field whose presence is all that matters."""


class Issue(msgspec.Struct, kw_only=True):
    number: int
    title: str
    body: str | None = None
    state: str
    user: User | None = None
    labels: list[Label | str] | None = None
    updated_at: datetime
    closed_by: User | None = None
    #: Set on pull requests only: both kinds share one list and one numbering.
    pull_request: Present | None = None


class Comment(msgspec.Struct, kw_only=True):
    id: int
    body: str | None = None
    user: User | None = None
    created_at: datetime
    updated_at: datetime
    issue_url: str = ""
    pull_request_url: str = ""


class RepoName(msgspec.Struct):
    full_name: str


class PullBranch(msgspec.Struct, kw_only=True):
    """One of the two branches of a pull request."""

    label: str | None = None
    ref: str
    sha: str = ""
    #: None: the fork is gone.
    repo: RepoName | None = None


class Pull(msgspec.Struct, kw_only=True):
    number: int
    title: str
    body: str | None = None
    state: str
    user: User | None = None
    head: PullBranch
    base: PullBranch
    updated_at: datetime
    merged: bool = False
    merged_at: datetime | None = None
    merged_by: User | None = None
    merge_commit_sha: str | None = None
    #: Gitea alone: the commit that both branches have.
    merge_base: str = ""
    #: None: it is being computed.
    mergeable: bool | None = None


class Review(msgspec.Struct, kw_only=True):
    id: int
    user: User | None = None
    body: str | None = None
    state: str
    commit_id: str | None = None
    dismissed: bool = False
    submitted_at: datetime | None = None
    updated_at: datetime | None = None
    #: How many lines were commented on; None: unknown.
    comments_count: int | None = None


class LineComment(msgspec.Struct, kw_only=True):
    path: str = ""
    body: str = ""
    position: int | None = None
    line: int | None = None
    original_line: int | None = None


class Rights(msgspec.Struct):
    push: bool = False


class Repository(msgspec.Struct, kw_only=True):
    full_name: str
    description: str | None = None
    default_branch: str = "main"
    empty: bool = False
    archived: bool = False
    open_issues_count: int | None = None
    has_issues: bool = True
    has_pull_requests: bool = True
    #: Gitea alone: issues are on another site.
    external_tracker: Present | None = None
    permissions: Rights | None = None
    #: Ways to merge: Gitea's names, then GitHub's.
    allow_merge_commits: bool | None = None
    allow_squash_merge: bool | None = None
    allow_rebase: bool | None = None
    allow_merge_commit: bool | None = None
    allow_rebase_merge: bool | None = None
    #: Gitea alone: people may mark a pull request as merged by a commit that they pushed.
    allow_manual_merge: bool = False


class Commit(msgspec.Struct):
    #: Gitea's name of it, then GitHub's.
    id: str = ""
    sha: str = ""


class RequiredChecks(msgspec.Struct):
    contexts: list[str] = []


class GithubProtection(msgspec.Struct):
    required_status_checks: RequiredChecks | None = None


class Branch(msgspec.Struct, kw_only=True):
    name: str
    commit: Commit
    protected: bool = False
    # Gitea
    required_approvals: int = 0
    enable_status_check: bool = False
    status_check_contexts: list[str] | None = None
    user_can_merge: bool = True
    # GitHub
    protection: GithubProtection | None = None


class GitObject(msgspec.Struct):
    sha: str


class Ref(msgspec.Struct):
    ref: str
    object: GitObject


class Status(msgspec.Struct, kw_only=True):
    context: str = ""
    #: Gitea's name of it, then GitHub's.
    status: str = ""
    state: str = ""


class CombinedStatus(msgspec.Struct):
    statuses: list[Status] | None = None


class CheckRun(msgspec.Struct):
    name: str
    status: str
    conclusion: str | None = None


class CheckRuns(msgspec.Struct):
    check_runs: list[CheckRun]


class Permission(msgspec.Struct):
    permission: str


class RuleParameters(msgspec.Struct):
    required_approving_review_count: int = 0
    required_status_checks: list[Status] = []


class Rule(msgspec.Struct):
    type: str
    parameters: RuleParameters | None = None
    ruleset_id: int = 0


class Ruleset(msgspec.Struct):
    name: str
    current_user_can_bypass: str = "never"


class GiteaRule(msgspec.Struct, kw_only=True):
    """The protection of all branches of a name, or of a pattern."""

    rule_name: str
    priority: int = 0
    enable_push: bool = True
    enable_push_whitelist: bool = False
    push_whitelist_usernames: list[str] | None = None
    push_whitelist_teams: list[str] | None = None
    require_signed_commits: bool = False
    block_on_outdated_branch: bool = False

    def lets_push(self, who: str) -> bool:
        """True if a user may push; members of a team are unknown, so a team allows all users."""
        names = [name.casefold() for name in self.push_whitelist_usernames or []]
        listed = who.casefold() in names or bool(self.push_whitelist_teams)
        return self.enable_push and (not self.enable_push_whitelist or listed)
