"""GitHub, and GitHub Enterprise Server: how it is asked, and what its answers mean.

Written from its official OpenAPI description; which requests were never sent to github.com itself
stands in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping

from caloron.domain.observations import Verdict
from caloron.errors import NotFound
from caloron.forge import answers
from caloron.forge.connection import Params
from caloron.forge.dialect import BranchRules, Check, Protection
from caloron.forge.http import Http, Refused
from caloron.forge.paths import segment
from caloron.forge.statuses import statuses_of

_FORBIDDEN = 403
#: What it says about a merge that a person's yes is missing for.
_MISSING_PEOPLE = ("approving review", "code owner", "review is required", "changes requested")
#: Rules by which a branch cannot be made or moved.
_CLOSES = ("creation", "update")
_GREEN = ("success", "neutral", "skipped")


class GitHub:
    """The dialect of GitHub's REST API of 2022-11-28."""

    kind = "github"
    scheme = "Bearer"
    headers: Mapping[str, str] = {
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
        "User-Agent": "caloron",
    }
    page: Mapping[str, str | int] = {"per_page": 100}
    writers: tuple[str, ...] = ("admin", "maintain", "write")
    pull_pages = "pull"
    git_user = "x-access-token"
    longest_body = 65_536
    # Its lists are read from copies that may be behind.
    overlap_s = 30
    heads = "git/matching-refs/heads"
    events: Mapping[Verdict, str] = {
        "approved": "APPROVE",
        "changes_requested": "REQUEST_CHANGES",
        "commented": "COMMENT",
    }
    grant = "give the account write access, and let it merge in the branch's protection or ruleset"

    def created_by(self, author: str) -> Params:
        return {"creator": author}

    def pulls_from(self, owner: str, branch: str, author: str) -> Params:
        return {"head": f"{owner}:{branch}"}

    def head_name(self, pull: answers.Pull) -> str:
        return pull.head.ref

    def diff(self, http: Http, number: int) -> str:
        answer = http.get(f"pulls/{number}", accept="application/vnd.github.diff")
        return answer.body.decode("utf-8", "replace")

    def label_reference(self, label: answers.Label) -> int | str:
        return label.name

    def statuses(self, http: Http, head: str) -> list[Check]:
        """Commit statuses and check runs: CI tells its result as either."""
        found = [Check(one.context, one.state) for one in statuses_of(http, head, self.page)]
        asked = dict(self.page)
        while True:
            try:
                answer = http.get(f"commits/{segment(head)}/check-runs", asked)
            except Refused as refusal:
                if refusal.status != _FORBIDDEN:
                    raise
                # A fine-grained token has no right to them; that is said when it is set up.
                return found
            runs = answer.read(answers.CheckRuns).check_runs
            found += [Check(run.name, _state(run)) for run in runs]
            if not answer.next_page:
                return found
            asked = {**self.page, **answer.next_page}

    def sees_check_runs(self, http: Http, commit: str) -> bool:
        try:
            http.get(f"commits/{segment(commit)}/check-runs", self.page)
        except Refused as refusal:
            if refusal.status != _FORBIDDEN:
                raise
            return False
        return True

    def is_required(self, name: str, wanted: str) -> bool:
        # Here a name with an asterisk or a bracket means just that.
        return name == wanted

    def protection(self, http: Http, main: str) -> Protection:
        branch = http.get(f"branches/{segment(main)}").read(answers.Branch)
        old = branch.protection.required_status_checks if branch.protection else None
        checks, approvals = list(old.contexts if old else []), 0
        rules = self._rules(http, main)
        for rule in rules:
            told = rule.parameters or answers.RuleParameters()
            checks += [one.context for one in told.required_status_checks]
            approvals = max(approvals, told.required_approving_review_count)
        return Protection(
            protected=branch.protected or bool(rules),
            required_checks=tuple(dict.fromkeys(checks)),
            required_approvals=approvals,
        )

    def _rules(self, http: Http, main: str) -> list[answers.Rule]:
        path = f"rules/branches/{segment(main)}"
        try:
            return [rule for _, page in http.pages(path, self.page, answers.Rule) for rule in page]
        except NotFound:
            # An older Enterprise Server has no rulesets.
            return []

    def branch_rules(self, http: Http, main: str, ours: tuple[str, ...], who: str) -> BranchRules:
        """Rules are told for branches that are not there yet, too; not who is exempt from them."""
        closed = [rule for name in ours for rule in self._rules(http, name) if rule.type in _CLOSES]
        signed = [
            rule
            for name in (main, *ours)
            for rule in self._rules(http, name)
            if rule.type == "required_signatures"
        ]
        sets = {rule.ruleset_id: self._ruleset(http, rule) for rule in (*closed, *signed)}
        return BranchRules(closed=_in_the_way(closed, sets), signed=_in_the_way(signed, sets))

    def _ruleset(self, http: Http, rule: answers.Rule) -> answers.Ruleset:
        try:
            return http.get(f"rulesets/{rule.ruleset_id}").read(answers.Ruleset)
        except NotFound:
            return answers.Ruleset(name=f"ruleset {rule.ruleset_id}")

    def known_to_write(self, http: Http, user: str) -> bool:
        return False

    def merge_style(self, repository: answers.Repository) -> str:
        ways = {
            "merge": repository.allow_merge_commit,
            "squash": repository.allow_squash_merge,
            "rebase": repository.allow_rebase_merge,
        }
        return next((way for way, allowed in ways.items() if allowed), "merge")

    def merge(self, http: Http, number: int, head: str, style: str, message: str) -> None:
        title, _, rest = message.partition("\n")
        body = {"sha": head, "merge_method": style}
        if style != "rebase":
            body |= {"commit_title": title.strip(), "commit_message": rest.strip()}
        http.change("PUT", f"pulls/{number}/merge", body)

    def merge_refusal(self, status: int, said: str) -> str:
        words = said.casefold()
        if status == 409:
            return "base" if "base branch" in words else "head"
        if status == 405 and "not mergeable" in words:
            return "unclear"
        if status == 405 and "base branch was modified" in words:
            return "base"
        if status == 405 and any(missing in words for missing in _MISSING_PEOPLE):
            return "people"
        return "refused"


def _state(run: answers.CheckRun) -> str:
    if run.status != "completed":
        return "pending"
    return "success" if run.conclusion in _GREEN else "failure"


def _in_the_way(rules: list[answers.Rule], sets: Mapping[int, answers.Ruleset]) -> tuple[str, ...]:
    """The rulesets of these rules that our account is not exempt from."""
    found = (sets[rule.ruleset_id] for rule in rules)
    exempt = ("always", "exempt")
    return tuple(dict.fromkeys(s.name for s in found if s.current_user_can_bypass not in exempt))
