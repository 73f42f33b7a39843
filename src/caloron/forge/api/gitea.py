"""Gitea (and Forgejo): its requests, and the meanings of its types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from caloron.domain.model.merge import MergeStyle
from caloron.domain.model.snapshots import Verdict
from caloron.errors import NotFound
from caloron.forge.api import types
from caloron.forge.api.base import (
    BranchRules,
    ForgeApi,
    Protection,
    lacking_scopes,
    segment,
)
from caloron.forge.http import Forbidden, ForgeHttp, Refused
from caloron.http import Params

_SPECIAL = re.compile(r"[*?\[{\\]")
_SETS = re.compile(r"\[(!?)([^\]]+)\]")


class Gitea(ForgeApi):
    """The API of Gitea 1.20 and newer."""

    kind = "gitea"
    scheme = "token"
    headers: Mapping[str, str] = {"Accept": "application/json"}
    # More is silently cut to what the server allows, 50 unless it is set up otherwise.
    page: Mapping[str, str | int] = {"limit": 50}
    pull_pages = "pulls"
    git_user = "caloron"
    longest_body = 1 << 20
    overlap_s = 5
    heads = "git/refs/heads"
    diff_path = "pulls/{}.diff"
    diff_type = "text/plain"
    events: Mapping[Verdict, str] = {
        "approved": "APPROVED",
        "changes_requested": "REQUEST_CHANGES",
        "commented": "COMMENT",
    }
    writers = ("owner", "admin", "write")
    merge_styles: Mapping[MergeStyle, str] = {
        "merge": "allow_merge_commits",
        "squash": "allow_squash_merge",
        "rebase": "allow_rebase",
    }
    merge_refusals = (
        (405, "already merged", "merged"),
        # The answer while a push is being checked, and also for a conflict.
        (405, "try again later", "unclear"),
        (405, "enough approvals", "people"),
        (405, "requested changes", "people"),
        (405, "official review requests", "people"),
        (409, "head out of date", "head"),
        (409, "push out of date", "base"),
        (409, "pushrejected", "refused"),
        (409, "", "conflict"),
    )
    grant = "let the account merge in the protection of the branch, or give it write access"

    def created_by(self, author: str) -> Params:
        return {"created_by": author, "type": "issues"}

    def pulls_from(self, owner: str, branch: str, author: str) -> Params:
        # There is no filter for a branch; the author's newest come first.
        return {"poster": author}

    def head_name(self, pull: types.Pull) -> str:
        """Its `ref` becomes `refs/pull/…` once the branch is deleted; the label stays."""
        return pull.head.label or pull.head.ref

    def label_reference(self, label: types.Label) -> int | str:
        # A name that it does not know is dropped without a word; an id is not.
        return label.id

    def is_required(self, name: str, wanted: str) -> bool:
        # What is required may be a pattern, or a plain name with brackets in it.
        return name == wanted or fnmatchcase(name, wanted)

    def protection(self, http: ForgeHttp, main: str) -> Protection:
        branch = http.get(f"branches/{segment(main)}").read(types.Branch)
        contexts = branch.status_check_contexts or []
        return Protection(
            protected=branch.protected,
            can_merge=branch.user_can_merge,
            required_checks=tuple(contexts) if branch.enable_status_check else (),
            required_approvals=branch.required_approvals,
        )

    def branch_rules(
        self, http: ForgeHttp, main: str, ours: tuple[str, ...], who: str
    ) -> BranchRules:
        try:
            listed = http.get("branch_protections").read(list[types.GiteaRule])
        except Forbidden:
            # Only administrators may read them.
            return BranchRules(unreadable=True)
        rules = sorted(listed, key=lambda rule: rule.priority)
        ruling = [rule for branch in ours if (rule := _first_for(rules, branch))]
        signed = [rule for rule in ruling if rule.require_signed_commits]
        of_main = _first_for(rules, main)
        if of_main and of_main.require_signed_commits and not self._signs(http):
            signed.append(of_main)
        return BranchRules(
            closed=_names(rule for rule in ruling if not rule.lets_push(who)),
            signed=_names(signed),
            outdated=_names([of_main] if of_main and of_main.block_on_outdated_branch else []),
        )

    def _signs(self, http: ForgeHttp) -> bool:
        """True if the forge has a key to sign merges with."""
        try:
            http.get("/signing-key.gpg", accept="text/plain")
        except NotFound:
            return False
        return True

    def known_to_write(self, http: ForgeHttp, user: str) -> bool:
        # The accounts that an issue can be assigned to may write, and every account may list them.
        writers = http.get("assignees").read(list[types.User])
        return user.casefold() in {user.login.casefold() for user in writers}

    def merge(self, http: ForgeHttp, number: int, head: str, style: str, message: str) -> None:
        title, _, rest = message.partition("\n")
        body = {
            "Do": style,
            "head_commit_id": head,
            "MergeTitleField": title.strip(),
            "MergeMessageField": rest.strip(),
        }
        http.change("POST", f"pulls/{number}/merge", body)

    def shows_pushed_merges(self, repository: types.Repository, style: MergeStyle) -> bool:
        # Without this setting such a pull request stays open for ever; older versions hide it.
        return repository.allow_manual_merge

    def mark_merged(self, http: ForgeHttp, number: int, commit: str) -> None:
        body = {"Do": "manually-merged", "MergeCommitID": commit}
        http.change("POST", f"pulls/{number}/merge", body)

    def check_scopes(self, http: ForgeHttp) -> None:
        try:
            # There is no issue 0: a token without the right is refused before the look-up.
            http.change("PATCH", "issues/0", {"state": "open"})
        except Forbidden as refusal:
            raise lacking_scopes(self.kind, refusal.reason) from None
        except (NotFound, Refused):
            return


def _first_for(rules: list[types.GiteaRule], branch: str) -> types.GiteaRule | None:
    """Only the first rule for a branch counts."""
    return next((rule for rule in rules if is_for(rule.rule_name, branch)), None)


def _names(rules: Iterable[types.GiteaRule]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rule.rule_name for rule in rules))


def is_for(rule: str, branch: str) -> bool:
    """True if a rule of this name, or pattern in which `*` ends at a slash, is for a branch."""
    if not _SPECIAL.search(rule):
        return rule.casefold() == branch.casefold()
    try:
        return re.fullmatch(_expression(rule), branch) is not None
    except re.error:
        # What is no pattern is a name.
        return rule == branch


def _expression(rule: str) -> str:
    expression, at, depth = "", 0, 0
    while at < len(rule):
        rest = rule[at:]
        if rest.startswith("**"):
            part, length = ".*", 2
        elif rest[0] == "\\":
            part, length = re.escape(rest[1:2]), 2
        elif one_of := _SETS.match(rest):
            inside = one_of[2].replace("\\", "\\\\").replace("^", "\\^")
            part, length = f"[{'^' if one_of[1] else ''}{inside}]", one_of.end()
        elif rest[0] == "{":
            part, length, depth = "(?:", 1, depth + 1
        elif rest[0] == "}" and depth:
            part, length, depth = ")", 1, depth - 1
        elif rest[0] == "," and depth:
            part, length = "|", 1
        else:
            part = {"*": "[^/]*", "?": "[^/]"}.get(rest[0], re.escape(rest[0]))
            length = 1
        expression, at = expression + part, at + length
    return expression
