"""The `Forge` port on a forge of another machine; a `ForgeApi` knows its kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Verdict,
)
from caloron.domain.model.sprint import BRANCHES
from caloron.errors import ForgeError, ForgeUnavailable, NotFound, StaleHead
from caloron.forge.api import types
from caloron.forge.api.base import BranchRules, ForgeApi, segment
from caloron.forge.http import Forbidden, ForgeHttp, ForgeResponse, Refused
from caloron.forge.remote import git as remote_git
from caloron.forge.remote import snapshots
from caloron.forge.remote.labels import Labels
from caloron.forge.remote.merge import Merger
from caloron.forge.remote.poll import Poller
from caloron.forge.remote.reader import Reader
from caloron.forge.validate import (
    no_branch,
    no_such,
    require_commit,
    require_issue,
    require_number,
    require_pull,
    require_remote_branch,
    require_review,
    require_storable,
    require_text,
    second_pull,
    truncate_body,
    truncate_title,
)
from caloron.ports import Merged, Poll, Remote, RepositoryInfo, VerifiedMerge

#: The name of the status that shows our verdict on a commit.
_REVIEW_STATUS = "caloron/review"
_STATUS_OF: dict[Verdict, str] = {
    "approved": "success",
    "changes_requested": "failure",
    "commented": "pending",
}


class RemoteForge(Reader):
    """Issues, pull requests, reviews and merges over HTTP; commits over git.

    Reads are those of the `Reader`; here are changes, polls and merges.
    """

    def __init__(
        self,
        http: ForgeHttp,
        reviewer: ForgeHttp | None,
        api: ForgeApi,
        people: tuple[str, ...],
        *,
        web: str,
        git_remote: Callable[[], Remote],
        close: Callable[[], None],
    ) -> None:
        super().__init__(http, reviewer, api, people)
        self._web = f"{web}/{http.repo}"
        self._git_remote = git_remote
        self._close = close
        self._poller = Poller(self)
        self._labels = Labels(http, api)
        self._merger = Merger(self, git_remote)

    def __repr__(self) -> str:
        return f"RemoteForge({self._web!r})"

    def close(self) -> None:
        self._close()

    def remote(self) -> Remote:
        return self._git_remote()

    def url(self, number: int, *, pull: bool = False) -> str:
        return f"{self._web}/{self.api.pull_pages if pull else 'issues'}/{number}"

    def about(self) -> RepositoryInfo:
        repository = self.fetch_repository()
        rights = repository.permissions or types.Rights()
        empty = repository.empty or self.branch(repository.default_branch) is None
        rules = None if empty else self.api.protection(self.http, repository.default_branch)
        can_push = rights.push and not repository.archived
        branches = BranchRules()
        if can_push:
            main = repository.default_branch
            branches = self.api.branch_rules(self.http, main, BRANCHES, self.author)
        return RepositoryInfo(
            kind=self.api.kind,
            # The address that the forge reports may not be reachable from here.
            url=self._web,
            description=repository.description or "",
            open_issues=repository.open_issues_count,
            empty=empty,
            can_push=can_push,
            can_merge=can_push and (rules is None or rules.can_merge),
            protected=rules is not None and rules.protected,
            required_checks=rules.required_checks if rules else (),
            required_approvals=rules.required_approvals if rules else 0,
            reviewer_can_push=self.reviewer_can_push(),
            switched_off=_switched_off(repository),
            archived=repository.archived,
            push_blocked_by=branches.closed,
            signatures_required_by=branches.signed,
            up_to_date_required_by=branches.outdated,
            sees_rules=not branches.unreadable,
            sees_check_runs=empty or self.api.sees_check_runs(self.http, repository.default_branch),
            reviews="review" if self.review_http else "comment",
        )

    def check_scopes(self) -> None:
        """Refuse a token that may read but not write, as far as the forge shows that."""
        self.api.check_scopes(self.http)

    def poll(self, cursor: str) -> Poll:
        return self._poller.poll(cursor)

    def mergeable(self, number: int) -> bool:
        return self._merger.mergeable(number)

    def diff(self, number: int) -> str:
        try:
            return self.api.diff(self.http, require_number(number, "pull request"))
        except NotFound:
            raise no_such(number, "pull request") from None

    def create_issue(self, title: str, body: str, labels: tuple[str, ...] = ()) -> IssueSnapshot:
        require_issue(title, body, labels)
        wanted = self._labels.of(labels) if labels else []
        response = self.http.change(
            "POST",
            "issues",
            {
                "title": truncate_title(title),
                "body": self._truncated(body),
                "labels": [self.api.label_reference(label) for label in wanted],
            },
        )
        made = self.issue_snapshot(response.read(types.Issue), response.began_ms)
        for label in labels:
            if label not in made.labels:
                # The label was deleted since we listed the labels, and the forge dropped it.
                self._labels.forget()
                made = self.label(made.number, label)
        return made

    def comment(self, number: int, body: str) -> CommentSnapshot:
        require_text("a comment", body)
        response = self._post_comment(number, body)
        return snapshots.comment_snapshot(
            response.read(types.Comment), response.began_ms, trusted=True
        )

    def _post_comment(self, number: int, body: str) -> ForgeResponse:
        path, text = f"issues/{require_number(number)}/comments", {"body": self._truncated(body)}
        try:
            return self.http.change("POST", path, text)
        except NotFound:
            raise no_such(number, "issue or pull request") from None
        except ForgeUnavailable:
            # Gitea answers with an internal error for an issue that does not exist.
            self.require(number)
            raise

    def edit_comment(self, number: int, comment: int, body: str) -> CommentSnapshot:
        require_text("a comment", body)
        path = f"issues/comments/{comment}"
        require_number(number)
        try:
            response = self.http.get(path)
        except NotFound:
            self.require(number)
            raise NotFound(f"#{number} has no comment {comment}") from None
        # Gitea answers with an empty body for anything but an ordinary comment.
        if not response.body or snapshots.number_of(response.read(types.Comment)) != number:
            self.require(number)
            raise NotFound(f"#{number} has no comment {comment}")
        response = self.http.change("PATCH", path, {"body": self._truncated(body)})
        return snapshots.comment_snapshot(
            response.read(types.Comment), response.began_ms, trusted=True
        )

    def edit_issue(self, number: int, body: str, title: str = "") -> IssueSnapshot:
        require_storable("the body of an issue", body)
        require_storable("the title of an issue", title)
        change = {"body": self._truncated(body)}
        return self._patch_issue(
            number, change | ({"title": truncate_title(title)} if title else {})
        )

    def label(self, number: int, label: str) -> IssueSnapshot:
        require_text("a label", label)
        self.issue(number)
        failure = self._put_label(number, label)
        if failure is not None:
            # The label was deleted since we listed the labels: Gitea ignores an unknown id.
            self._labels.forget()
            failure = self._put_label(number, label)
        if failure is not None:
            reason = f": {failure}" if failure else ""
            raise ForgeError(f"the forge did not put the label {label} on #{number}{reason}")
        return self.issue(number)

    def _put_label(self, number: int, label: str) -> str | None:
        """Add the label; return the reason if that failed, empty if the forge names none."""
        reference = self.api.label_reference(self._labels.of((label,))[0])
        try:
            response = self.http.change("POST", f"issues/{number}/labels", {"labels": [reference]})
        except Forbidden:
            raise
        except (NotFound, Refused) as refusal:
            return str(refusal)
        return None if label in {item.name for item in response.read(list[types.Label])} else ""

    def unlabel(self, number: int, label: str) -> IssueSnapshot:
        issue, began = self.issue_json(number)
        present = [item for item in snapshots.labels_of(issue) if item.name == label]
        if not present:
            return self.issue_snapshot(issue, began)
        for item in present:
            reference = segment(str(self.api.label_reference(item)))
            self.http.change("DELETE", f"issues/{number}/labels/{reference}")
        return self.issue(number)

    def close_issue(self, number: int) -> IssueSnapshot:
        return self._patch_issue(number, {"state": "closed"})

    def reopen_issue(self, number: int) -> IssueSnapshot:
        return self._patch_issue(number, {"state": "open"})

    def _patch_issue(self, number: int, change: dict[str, str]) -> IssueSnapshot:
        issue = self.issue(number)
        if issue.state == change.get("state"):
            return issue
        response = self.http.change("PATCH", f"issues/{number}", change)
        return self.issue_snapshot(response.read(types.Issue), response.began_ms)

    def _patch_pull(self, number: int, change: dict[str, str]) -> PullSnapshot:
        json, began = self.pull_json(number)
        if json.state == change.get("state"):
            return self.pull_snapshot(json, began)
        response = self.http.change("PATCH", f"pulls/{number}", change)
        return self.pull_snapshot(response.read(types.Pull), response.began_ms)

    def push(self, source: Path, branch: str, new: str, old: str) -> BranchSnapshot:
        require_remote_branch(branch)
        require_commit(new)
        began_ms = self.http.breaker.server_time_ms()
        remote_git.push(self.remote(), source, branch, new, old)
        return snapshots.branch_snapshot(branch, new, began_ms)

    def open_pull(self, title: str, body: str, branch: str) -> PullSnapshot:
        require_pull(title, body, require_remote_branch(branch), self.main)
        body_json = {
            "title": truncate_title(title),
            "body": self._truncated(body),
            "head": branch,
            "base": self.main,
        }
        try:
            response = self.http.change("POST", "pulls", body_json)
        except (NotFound, Refused):
            self._explain_unopened(branch)
            raise
        return self.pull_snapshot(response.read(types.Pull), response.began_ms)

    def _explain_unopened(self, branch: str) -> None:
        if self.branch(branch) is None:
            raise no_branch(branch)
        for other in self.pulls("open"):
            if other.branch == branch:
                raise second_pull(branch, other.number)

    def edit_pull(self, number: int, body: str) -> PullSnapshot:
        require_storable("the body of a pull request", body)
        return self._patch_pull(number, {"body": self._truncated(body)})

    def close_pull(self, number: int) -> PullSnapshot:
        return self._patch_pull(number, {"state": "closed"})

    def review(self, number: int, head: str, verdict: Verdict, body: str) -> ReviewSnapshot:
        """Review a head; an empty one means the current head."""
        require_review(verdict, body)
        head = require_commit(head or self.pull(number).head)
        second = self.review_http
        if second is None:
            return self._verdict_as_comment(number, head, verdict, body)
        body_json = {
            "event": self.api.events[verdict],
            "body": self._truncated(body),
            "commit_id": head,
        }
        try:
            response = second.change("POST", f"pulls/{number}/reviews", body_json)
        except Refused:
            pull = self.pull(number)
            if pull.head != head:
                raise StaleHead(f"#{number} is at {pull.head}, not at {head}") from None
            raise
        return snapshots.review_snapshot(
            response.read(types.Review), number, response.began_ms, trusted=True
        )

    def _verdict_as_comment(
        self, number: int, head: str, verdict: Verdict, body: str
    ) -> ReviewSnapshot:
        """Comment, and set a status of the commit: an account may not review its own change."""
        require_text("a review", body)
        self.pull(number)
        summary = body.split("\n", 1)[0].strip()[:100]
        # The status goes first: after a crash, the comment proves that both were done.
        status = {
            "state": _STATUS_OF[verdict],
            "context": _REVIEW_STATUS,
            "description": summary,
        }
        self.http.change("POST", f"statuses/{segment(head)}", status)
        response = self._post_comment(number, body)
        return snapshots.comment_review(response.read(types.Comment), head, response.began_ms)

    def merge(
        self,
        number: int,
        head: str,
        base: str,
        message: str,
        verified: VerifiedMerge | None = None,
    ) -> Merged:
        require_storable("the message of a merge", message)
        return self._merger.merge(number, head, base, message, verified)

    def mark_merged(self, number: int, commit: str) -> PullSnapshot:
        return self._merger.mark_merged(number, commit)

    def _truncated(self, body: str) -> str:
        return truncate_body(body, self.api.longest_body)


def _switched_off(repository: types.Repository) -> tuple[str, ...]:
    parts = {
        "issues": repository.has_issues and repository.external_tracker is None,
        "pull requests": repository.has_pull_requests,
    }
    return tuple(name for name, there in parts.items() if not there)
