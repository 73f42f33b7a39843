"""GitHub, and GitHub Enterprise Server: its requests, and the meanings of its types.

Written from its official OpenAPI description; the documentation lists the requests that were never
sent to github.com itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from caloron.domain.model.merge import MergeStyle
from caloron.domain.model.snapshots import Verdict
from caloron.errors import NotFound
from caloron.forge.api import types
from caloron.forge.api.base import (
    BranchRules,
    Check,
    ForgeApi,
    Protection,
    lacking_scopes,
    segment,
)
from caloron.forge.http import Forbidden, ForgeHttp
from caloron.http import Params

#: Rules by which a branch cannot be made or moved.
_CLOSES = ("creation", "update")
_GREEN = ("success", "neutral", "skipped")


class GitHub(ForgeApi):
    """GitHub's REST API of 2022-11-28."""

    kind = "github"
    scheme = "Bearer"
    headers: Mapping[str, str] = {
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
        "User-Agent": "caloron",
    }
    page: Mapping[str, str | int] = {"per_page": 100}
    pull_pages = "pull"
    git_user = "x-access-token"
    longest_body = 65_536
    # Its lists are read from copies that may be behind.
    overlap_s = 30
    heads = "git/matching-refs/heads"
    diff_path = "pulls/{}"
    diff_type = "application/vnd.github.diff"
    events: Mapping[Verdict, str] = {
        "approved": "APPROVE",
        "changes_requested": "REQUEST_CHANGES",
        "commented": "COMMENT",
    }
    writers = ("admin", "maintain", "write")
    merge_styles: Mapping[MergeStyle, str] = {
        "merge": "allow_merge_commit",
        "squash": "allow_squash_merge",
        "rebase": "allow_rebase_merge",
    }
    merge_refusals = (
        (409, "base branch", "base"),
        (409, "", "head"),
        (405, "not mergeable", "unclear"),
        (405, "base branch was modified", "base"),
        (405, "approving review", "people"),
        (405, "code owner", "people"),
        (405, "review is required", "people"),
        (405, "changes requested", "people"),
    )
    grant = "give the account write access, and let it merge in the branch's protection or ruleset"

    def created_by(self, author: str) -> Params:
        return {"creator": author}

    def pulls_from(self, owner: str, branch: str, author: str) -> Params:
        return {"head": f"{owner}:{branch}"}

    def label_reference(self, label: types.Label) -> int | str:
        return label.name

    def statuses(self, http: ForgeHttp, head: str) -> list[Check]:
        """Commit statuses and check runs: CI reports its result as either."""
        checks = super().statuses(http, head)
        params = dict(self.page)
        while True:
            try:
                response = http.get(f"commits/{segment(head)}/check-runs", params)
            except Forbidden:
                # A fine-grained token has no right to them; `caloron init` warns about that.
                return checks
            runs = response.read(types.CheckRuns).check_runs
            checks += [Check(run.name, _state(run)) for run in runs]
            if not response.next_page:
                return checks
            params = {**self.page, **response.next_page}

    def sees_check_runs(self, http: ForgeHttp, commit: str) -> bool:
        try:
            http.get(f"commits/{segment(commit)}/check-runs", self.page)
        except Forbidden:
            return False
        return True

    def protection(self, http: ForgeHttp, main: str) -> Protection:
        branch = http.get(f"branches/{segment(main)}").read(types.Branch)
        old = branch.protection.required_status_checks if branch.protection else None
        checks, approvals = list(old.contexts if old else []), 0
        rules = self._rules(http, main)
        for rule in rules:
            parameters = rule.parameters or types.RuleParameters()
            checks += [check.context for check in parameters.required_status_checks]
            approvals = max(approvals, parameters.required_approving_review_count)
        return Protection(
            protected=branch.protected or bool(rules),
            required_checks=tuple(dict.fromkeys(checks)),
            required_approvals=approvals,
        )

    def _rules(self, http: ForgeHttp, main: str) -> list[types.Rule]:
        path = f"rules/branches/{segment(main)}"
        try:
            return [rule for _, page in http.pages(path, self.page, types.Rule) for rule in page]
        except NotFound:
            # An older Enterprise Server has no rulesets.
            return []

    def branch_rules(
        self, http: ForgeHttp, main: str, ours: tuple[str, ...], who: str
    ) -> BranchRules:
        """Rules are listed also for branches that do not exist yet, without their exemptions."""
        closed = [rule for name in ours for rule in self._rules(http, name) if rule.type in _CLOSES]
        signed = [
            rule
            for name in (main, *ours)
            for rule in self._rules(http, name)
            if rule.type == "required_signatures"
        ]
        sets = {rule.ruleset_id: self._ruleset(http, rule) for rule in (*closed, *signed)}
        return BranchRules(closed=_in_the_way(closed, sets), signed=_in_the_way(signed, sets))

    def _ruleset(self, http: ForgeHttp, rule: types.Rule) -> types.Ruleset:
        try:
            return http.get(f"rulesets/{rule.ruleset_id}").read(types.Ruleset)
        except NotFound:
            return types.Ruleset(name=f"ruleset {rule.ruleset_id}")

    def merge(self, http: ForgeHttp, number: int, head: str, style: str, message: str) -> None:
        title, _, rest = message.partition("\n")
        body = {"sha": head, "merge_method": style}
        if style != "rebase":
            body |= {"commit_title": title.strip(), "commit_message": rest.strip()}
        http.change("PUT", f"pulls/{number}/merge", body)

    def shows_pushed_merges(self, repository: types.Repository, style: MergeStyle) -> bool:
        # It looks for the commits of the pull request, which only a merge commit contains.
        return style == "merge"

    def check_scopes(self, http: ForgeHttp) -> None:
        # The rights of a fine-grained token cannot be read.
        header = http.get("").headers.get("x-oauth-scopes")
        if header is None:
            return
        scopes = {scope.strip() for scope in header.split(",")}
        if not scopes & {"repo", "public_repo"}:
            raise lacking_scopes(self.kind, f"it has {header or 'none'}")


def _state(run: types.CheckRun) -> str:
    if run.status != "completed":
        return "pending"
    return "success" if run.conclusion in _GREEN else "failure"


def _in_the_way(rules: list[types.Rule], sets: Mapping[int, types.Ruleset]) -> tuple[str, ...]:
    """The rulesets of these rules that our account is not exempt from."""
    rulesets = (sets[rule.ruleset_id] for rule in rules)
    exempt = ("always", "exempt")
    return tuple(dict.fromkeys(s.name for s in rulesets if s.current_user_can_bypass not in exempt))
