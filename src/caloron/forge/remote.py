"""The `Forge` port on a forge of another machine: Gitea or GitHub, told apart by a dialect."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from caloron.domain.observations import (
    BranchSeen,
    CommentSeen,
    IssueSeen,
    PullSeen,
    ReviewSeen,
    Verdict,
)
from caloron.errors import ForgeError, ForgeUnavailable, NotFound, StaleHead, UsageError
from caloron.forge import answers, remote_git, seen
from caloron.forge.connection import Answer
from caloron.forge.http import Refused
from caloron.forge.local_input import require_commit, require_storable, require_text
from caloron.forge.paths import segment
from caloron.forge.remote_looks import RemoteLooks
from caloron.forge.statuses import set_status
from caloron.forge.texts import (
    fitting_body,
    fitting_title,
    no_such,
    require_branch,
    require_number,
)
from caloron.ports import Merged

_FORBIDDEN = 403
#: Our own verdict on a commit, for those who look at the commit.
_REVIEW_STATUS = "caloron/review"
_STATUS_OF: dict[Verdict, str] = {
    "approved": "success",
    "changes_requested": "failure",
    "commented": "pending",
}


class RemoteForge(RemoteLooks):
    """Issues, pull requests, reviews and merges over HTTP; commits over git."""

    def create_issue(self, title: str, body: str, labels: tuple[str, ...] = ()) -> IssueSeen:
        require_text("the title of an issue", title)
        require_storable("the body of an issue", body)
        for label in labels:
            require_text("a label", label)
        wanted = self._labels.of(labels) if labels else []
        answer = self._http.change(
            "POST",
            "issues",
            {
                "title": fitting_title(title),
                "body": self._fitting(body),
                "labels": [self._dialect.label_reference(label) for label in wanted],
            },
        )
        made = self._reader.issue_seen(answer.read(answers.Issue), answer.began_ms)
        for label in labels:
            if label not in made.labels:
                # Somebody removed the label since we looked, and the forge dropped it.
                self._labels.forget()
                made = self.label(made.number, label)
        return made

    def comment(self, number: int, body: str) -> CommentSeen:
        require_text("a comment", body)
        answer = self._say(number, body)
        return seen.comment_seen(answer.read(answers.Comment), answer.began_ms, trusted=True)

    def _say(self, number: int, body: str) -> Answer:
        path, text = f"issues/{require_number(number)}/comments", {"body": self._fitting(body)}
        try:
            return self._http.change("POST", path, text)
        except NotFound:
            raise no_such(number, "issue or pull request") from None
        except ForgeUnavailable:
            # For an issue that is not there Gitea's answer is an error of its own.
            self._reader.require(number)
            raise

    def edit_comment(self, number: int, comment: int, body: str) -> CommentSeen:
        require_text("a comment", body)
        path = f"issues/comments/{comment}"
        require_number(number)
        try:
            held = self._http.get(path)
        except NotFound:
            self._reader.require(number)
            raise NotFound(f"#{number} has no comment {comment}") from None
        # Gitea has an empty answer for what is no ordinary comment.
        if not held.body or seen.number_of(held.read(answers.Comment)) != number:
            self._reader.require(number)
            raise NotFound(f"#{number} has no comment {comment}")
        answer = self._http.change("PATCH", path, {"body": self._fitting(body)})
        return seen.comment_seen(answer.read(answers.Comment), answer.began_ms, trusted=True)

    def edit_issue(self, number: int, body: str) -> IssueSeen:
        require_storable("the body of an issue", body)
        return self._patch_issue(number, {"body": self._fitting(body)})

    def label(self, number: int, label: str) -> IssueSeen:
        require_text("a label", label)
        self._reader.issue(number)
        why = self._put_label(number, label)
        if why is not None:
            # Removed by somebody since we looked: an id of nothing is dropped without a word.
            self._labels.forget()
            why = self._put_label(number, label)
        if why is not None:
            raise ForgeError(
                f"the forge did not put the label {label} on #{number}{f': {why}' if why else ''}"
            )
        return self._reader.issue(number)

    def _put_label(self, number: int, label: str) -> str | None:
        """Put it there; if it is not, why, as far as the forge says."""
        reference = self._dialect.label_reference(self._labels.of((label,))[0])
        try:
            answer = self._http.change("POST", f"issues/{number}/labels", {"labels": [reference]})
        except (NotFound, Refused) as refusal:
            if isinstance(refusal, Refused) and refusal.status == _FORBIDDEN:
                raise
            return str(refusal)
        return None if label in {one.name for one in answer.read(list[answers.Label])} else ""

    def unlabel(self, number: int, label: str) -> IssueSeen:
        issue, began = self._reader.issue_json(number)
        held = [one for one in seen.labels_of(issue) if one.name == label]
        if not held:
            return self._reader.issue_seen(issue, began)
        for one in held:
            reference = segment(str(self._dialect.label_reference(one)))
            self._http.change("DELETE", f"issues/{number}/labels/{reference}")
        return self._reader.issue(number)

    def close_issue(self, number: int) -> IssueSeen:
        return self._patch_issue(number, {"state": "closed"})

    def reopen_issue(self, number: int) -> IssueSeen:
        return self._patch_issue(number, {"state": "open"})

    def _patch_issue(self, number: int, change: dict[str, str]) -> IssueSeen:
        held = self._reader.issue(number)
        if held.state == change.get("state"):
            return held
        answer = self._http.change("PATCH", f"issues/{number}", change)
        return self._reader.issue_seen(answer.read(answers.Issue), answer.began_ms)

    def push(self, source: Path, branch: str, new: str, old: str) -> BranchSeen:
        require_branch(branch)
        require_commit(new)
        began_ms = self._http.line.now_there_ms()
        remote_git.push(self.remote(), source, branch, new, old)
        return seen.branch_seen(branch, new, began_ms)

    def open_pull(self, title: str, body: str, branch: str) -> PullSeen:
        require_text("the title of a pull request", title)
        require_storable("the body of a pull request", body)
        if require_branch(branch) == self.main:
            raise UsageError(
                f"{self.main} cannot be merged into itself", hint="push the work to its own branch"
            )
        asked = {
            "title": fitting_title(title),
            "body": self._fitting(body),
            "head": branch,
            "base": self.main,
        }
        try:
            answer = self._http.change("POST", "pulls", asked)
        except (NotFound, Refused):
            self._explain_unopened(branch)
            raise
        return self._reader.pull_seen(answer.read(answers.Pull), answer.began_ms)

    def _explain_unopened(self, branch: str) -> None:
        if self._reader.branch(branch) is None:
            raise NotFound(f"there is no branch {branch} to merge", hint="push it first")
        for other in self._reader.pulls("open"):
            if other.branch == branch:
                raise ForgeError(
                    f"branch {branch} already has the open pull request #{other.number}",
                    hint=f"use #{other.number}, or close it first",
                )

    def edit_pull(self, number: int, body: str) -> PullSeen:
        require_storable("the body of a pull request", body)
        self._reader.pull_json(number)
        asked = {"body": self._fitting(body)}
        answer = self._http.change("PATCH", f"pulls/{number}", asked)
        return self._reader.pull_seen(answer.read(answers.Pull), answer.began_ms)

    def close_pull(self, number: int) -> PullSeen:
        json, began = self._reader.pull_json(number)
        if json.state != "open":
            return self._reader.pull_seen(json, began)
        answer = self._http.change("PATCH", f"pulls/{number}", {"state": "closed"})
        return self._reader.pull_seen(answer.read(answers.Pull), answer.began_ms)

    def review(self, number: int, head: str, verdict: Verdict, body: str) -> ReviewSeen:
        """Say what we think of a head; an empty one means the current head."""
        if verdict not in get_args(Verdict):
            raise UsageError(
                f"{verdict!r} is no verdict", hint=f"use one of {', '.join(get_args(Verdict))}"
            )
        require_storable("the body of a review", body)
        head = require_commit(head or self._reader.pull(number).head)
        second = self._reader.review_http
        if second is None:
            return self._verdict_as_comment(number, head, verdict, body)
        asked = {
            "event": self._dialect.events[verdict],
            "body": self._fitting(body),
            "commit_id": head,
        }
        try:
            answer = second.change("POST", f"pulls/{number}/reviews", asked)
        except Refused:
            pull = self._reader.pull(number)
            if pull.head != head:
                raise StaleHead(f"#{number} is at {pull.head}, not at {head}") from None
            raise
        return seen.review_seen(answer.read(answers.Review), number, answer.began_ms, trusted=True)

    def _verdict_as_comment(
        self, number: int, head: str, verdict: Verdict, body: str
    ) -> ReviewSeen:
        """Nobody may review their own change: a comment, and a status of the commit."""
        require_text("a review", body)
        self._reader.pull(number)
        word = body.split("\n", 1)[0].strip()[:100]
        # First, because the comment is what a later look finds.
        state = _STATUS_OF[verdict]
        set_status(self._http, head, state, _REVIEW_STATUS, word)
        answer = self._say(number, body)
        return seen.comment_review(answer.read(answers.Comment), head, answer.began_ms)

    def merge(self, number: int, head: str, base: str, message: str) -> Merged:
        require_storable("the message of a merge", message)
        return self._merger.merge(number, head, base, message)

    def _fitting(self, body: str) -> str:
        return fitting_body(body, self._dialect.longest_body)
