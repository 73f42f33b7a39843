"""Stages that read or write a forge."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from caloron.domain.model.snapshots import ReviewSnapshot
from caloron.errors import CaloronError
from caloron.git.mirror import Mirror
from caloron.git.repository_context import RepoContext, read_repository_context
from caloron.graph.json_text import Json
from caloron.ports import Forge
from caloron.stages.forge_access import key_of, marked_text, open_forge, redactor
from caloron.stages.values import in_process, to_json

_CONTEXT_FIELDS = (
    "description",
    "open_issues",
    "recent_commits",
    "languages",
    "default_branch",
    "ci",
)


def fetch_repo_context(inputs: Json) -> Json:
    """Return the context of a repository for planning."""
    with open_forge(inputs) as forge, TemporaryDirectory(prefix="caloron-context-") as folder:
        context = to_json(_repository_context(forge, Path(folder)))
    return {name: context[name] for name in _CONTEXT_FIELDS}


def _repository_context(forge: Forge, folder: Path) -> RepoContext:
    about = forge.about()
    if about.empty:
        return RepoContext(description=about.description, default_branch=forge.main)
    mirror = Mirror(folder / "mirror.git", forge.remote(), forge.main)
    mirror.ensure()
    return read_repository_context(
        mirror, mirror.fetch_main(), description=about.description, open_issues=about.open_issues
    )


def github_poll_events(inputs: Json) -> Json:
    """Return the changes on the forge since a cursor; in a tick, the facts in the inbox.

    Each snapshot has a version, so a lost or repeated one changes nothing.
    """
    if inputs.get("facts") is not None:
        return {"events": inputs["facts"], "polled_at": inputs.get("since") or ""}
    with open_forge(inputs) as forge:
        poll = forge.poll(inputs.get("since") or "")
    return {"events": in_process(poll.snapshots), "polled_at": poll.cursor}


def get_pr_status(inputs: Json) -> Json:
    """Return the state of a pull request and the verdicts on its current head."""
    number = int(inputs["pr_number"])
    with open_forge(inputs) as forge:
        pull, reviews = forge.pull(number), forge.reviews(number)
    verdicts = _latest_verdicts([review for review in reviews if review.head == pull.head])
    return {
        "state": pull.state,
        "merged": pull.state == "merged",
        "review_state": _overall_verdict(verdicts.values()),
        "reviewers": sorted(verdicts),
        "verdicts": dict(sorted(verdicts.items())),
    }


def _latest_verdicts(reviews: list[ReviewSnapshot]) -> dict[str, str]:
    """Return the last verdict of each trusted reviewer; a comment does not replace a verdict."""
    verdicts: dict[str, str] = {}
    for review in sorted(reviews, key=lambda review: (review.version, review.id)):
        if review.trusted and (review.verdict != "commented" or review.author not in verdicts):
            verdicts[review.author] = review.verdict
    return verdicts


def _overall_verdict(verdicts: Iterable[str]) -> str:
    present = set(verdicts)
    for verdict in ("changes_requested", "approved"):
        if verdict in present:
            return verdict
    return "pending"


def github_create_issue(inputs: Json) -> Json:
    """Open an issue, unless the same call opened it before."""
    key = key_of("issue", inputs, "title", "body")
    labels = tuple(inputs.get("labels") or ())
    with open_forge(inputs) as forge:
        issue = forge.find_issue(key)
        if issue is None:
            body = marked_text(key, inputs["body"])
            issue = forge.create_issue(redactor()(inputs["title"]), body, labels)
        return {"issue_number": issue.number, "url": forge.url(issue.number)}


def github_post_comment(inputs: Json) -> Json:
    """Comment on an issue or a pull request, unless the same call did so before."""
    number, key = int(inputs["issue_number"]), key_of("comment", inputs, "body")
    if not inputs["body"].strip():
        raise ValueError(f"the comment on #{number} is empty")
    with open_forge(inputs) as forge:
        comment = forge.find_comment(number, key)
        if comment is None:
            comment = forge.comment(number, marked_text(key, inputs["body"]))
        return {"comment_id": comment.id, "url": forge.url(number)}


def github_add_label(inputs: Json) -> Json:
    """Put a label on an issue; a failure is an answer, because a label rarely matters more."""
    try:
        with open_forge(inputs) as forge:
            forge.label(int(inputs["issue_number"]), inputs["label"])
    except CaloronError as error:
        return {"ok": False, "error": str(error)}
    return {"ok": True, "error": None}


def github_merge_pr(inputs: Json) -> Json:
    """Merge a pull request; one that is merged already counts as merged.

    With `head`, only that commit is merged, also if another one was pushed since.
    """
    number, head = int(inputs["pr_number"]), inputs.get("head") or ""
    try:
        with open_forge(inputs) as forge:
            merged = forge.merge(number, head or forge.pull(number).head, "", "")
    except CaloronError as error:
        return {"merged": False, "merge_commit": "", "error": str(error)}
    return {"merged": True, "merge_commit": merged.pull.merge_commit, "error": None}
