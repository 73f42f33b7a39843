"""Gitea (and Forgejo): how it is asked, and what its answers mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from caloron.domain.observations import Verdict
from caloron.errors import NotFound
from caloron.forge import answers
from caloron.forge.connection import Params
from caloron.forge.dialect import BranchRules, Check, Protection
from caloron.forge.http import Http, Refused
from caloron.forge.paths import segment
from caloron.forge.patterns import is_for
from caloron.forge.statuses import statuses_of

_FORBIDDEN = 403
#: What it says about a merge that a person's yes is missing for.
_MISSING_PEOPLE = ("enough approvals", "requested changes", "official review requests")


class Gitea:
    """The dialect of Gitea 1.20 and newer."""

    kind = "gitea"
    scheme = "token"
    headers: Mapping[str, str] = {"Accept": "application/json"}
    # More is silently cut to what the server allows, 50 unless it is set up otherwise.
    page: Mapping[str, str | int] = {"limit": 50}
    writers: tuple[str, ...] = ("owner", "admin", "write")
    pull_pages = "pulls"
    git_user = "caloron"
    longest_body = 1 << 20
    overlap_s = 5
    heads = "git/refs/heads"
    events: Mapping[Verdict, str] = {
        "approved": "APPROVED",
        "changes_requested": "REQUEST_CHANGES",
        "commented": "COMMENT",
    }
    grant = "let the account merge in the protection of the branch, or give it write access"

    def created_by(self, author: str) -> Params:
        return {"created_by": author, "type": "issues"}

    def pulls_from(self, owner: str, branch: str, author: str) -> Params:
        # There is no filter for a branch; the author's newest come first.
        return {"poster": author}

    def head_name(self, pull: answers.Pull) -> str:
        """Its `ref` becomes `refs/pull/…` once the branch is deleted; the label stays."""
        return pull.head.label or pull.head.ref

    def diff(self, http: Http, number: int) -> str:
        answer = http.get(f"pulls/{number}.diff", accept="text/plain")
        return answer.body.decode("utf-8", "replace")

    def label_reference(self, label: answers.Label) -> int | str:
        # A name that it does not know is dropped without a word; an id is not.
        return label.id

    def statuses(self, http: Http, head: str) -> list[Check]:
        found = statuses_of(http, head, self.page)
        return [Check(one.context, one.status or one.state) for one in found]

    def sees_check_runs(self, http: Http, commit: str) -> bool:
        # Its CI tells everything as statuses.
        return True

    def is_required(self, name: str, wanted: str) -> bool:
        # What is required may be a pattern, or a plain name with brackets in it.
        return name == wanted or fnmatchcase(name, wanted)

    def protection(self, http: Http, main: str) -> Protection:
        branch = http.get(f"branches/{segment(main)}").read(answers.Branch)
        contexts = branch.status_check_contexts or []
        return Protection(
            protected=branch.protected,
            can_merge=branch.user_can_merge,
            required_checks=tuple(contexts) if branch.enable_status_check else (),
            required_approvals=branch.required_approvals,
        )

    def branch_rules(self, http: Http, main: str, ours: tuple[str, ...], who: str) -> BranchRules:
        try:
            listed = http.get("branch_protections").read(list[answers.GiteaRule])
        except Refused as refusal:
            if refusal.status != _FORBIDDEN:
                raise
            # Only administrators may look.
            return BranchRules(unseen=True)
        rules = sorted(listed, key=lambda rule: rule.priority)
        found = [_first_for(rules, branch) for branch in ours]
        held = [rule for rule in found if rule]
        signed = [rule for rule in held if rule.require_signed_commits]
        of_main = _first_for(rules, main)
        if of_main and of_main.require_signed_commits and not self._signs(http):
            signed.append(of_main)
        return BranchRules(
            closed=_names(rule for rule in held if not rule.lets_push(who)),
            signed=_names(signed),
            outdated=_names([of_main] if of_main and of_main.block_on_outdated_branch else []),
        )

    def _signs(self, http: Http) -> bool:
        """Whether it has a key to sign merges with."""
        try:
            http.get("/signing-key.gpg", accept="text/plain")
        except NotFound:
            return False
        return True

    def known_to_write(self, http: Http, user: str) -> bool:
        # Who could be given an issue can write, and that list is for everybody.
        writers = http.get("assignees").read(list[answers.User])
        return user.casefold() in {one.login.casefold() for one in writers}

    def merge_style(self, repository: answers.Repository) -> str:
        ways = {
            "merge": repository.allow_merge_commits,
            "squash": repository.allow_squash_merge,
            "rebase": repository.allow_rebase,
        }
        return next((way for way, allowed in ways.items() if allowed), "merge")

    def merge(self, http: Http, number: int, head: str, style: str, message: str) -> None:
        title, _, rest = message.partition("\n")
        body = {
            "Do": style,
            "head_commit_id": head,
            "MergeTitleField": title.strip(),
            "MergeMessageField": rest.strip(),
        }
        http.change("POST", f"pulls/{number}/merge", body)

    def merge_refusal(self, status: int, said: str) -> str:
        words = said.casefold()
        if status == 405 and "already merged" in words:
            return "merged"
        if status == 405 and "try again later" in words:
            # It says so while it looks at a push, and also when it has found a conflict.
            return "unclear"
        if status == 405 and any(missing in words for missing in _MISSING_PEOPLE):
            return "people"
        if status == 409 and "head out of date" in words:
            return "head"
        if status == 409 and "push out of date" in words:
            return "base"
        if status == 409 and "pushrejected" not in words:
            return "conflict"
        return "refused"


def _first_for(rules: list[answers.GiteaRule], branch: str) -> answers.GiteaRule | None:
    """Only the first rule for a branch counts."""
    return next((rule for rule in rules if is_for(rule.rule_name, branch)), None)


def _names(rules: Iterable[answers.GiteaRule]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rule.rule_name for rule in rules))
