"""`caloron pr`: a person takes part in a sprint through its pull requests."""

from __future__ import annotations

import time

import click

from caloron.cli.forge_view import (
    STATES,
    comment_data,
    person_at_forge,
    pull_data,
    pull_page,
    pull_table,
    review_data,
)
from caloron.cli.options import dry_run_option, output_option, project_option
from caloron.cli.output import dry_run as answer_dry_run
from caloron.cli.output import is_terminal, success
from caloron.cli.person import poke
from caloron.domain.commands import APPROVE
from caloron.domain.observations import PullSeen, ReviewSeen, Verdict, marker
from caloron.errors import PreconditionFailed, StaleBase, UsageError
from caloron.ports import Forge, State
from caloron.store import log

NUMBER = click.IntRange(min=1)
_MERGE_TRIES = 3


@click.group()
def pr() -> None:
    """Read, review and merge pull requests on the forge of a project.

    The engine notices what you do at once: a task whose pull request you merge is done, and
    one whose changes you request goes back to its agent with your words.

    \b
    Examples:
      caloron pr diff 5
      caloron pr review 5 --request-changes "Please keep the old name as an alias"
    """


@pr.command("list")
@click.option("--state", type=click.Choice(STATES), default="all", show_default=True)
@project_option
@output_option
def list_pulls(state: State, project: str | None) -> None:
    """List the pull requests.

    \b
    Example:
      caloron pr list --state merged
    """
    with person_at_forge(project) as (_, forge):
        pulls = forge.pulls(state)
        data = {"pull_requests": [pull_data(p, forge) for p in pulls]}
        text = pull_table(pulls, forge) if pulls else "No pull requests."
    success("pr.list", data, text)


@pr.command()
@click.argument("number", type=NUMBER)
@project_option
@output_option
def show(number: int, project: str | None) -> None:
    """Show one pull request with its reviews and comments.

    \b
    Example:
      caloron pr show 5
    """
    with person_at_forge(project) as (_, forge):
        pull = forge.pull(number)
        reviews, comments = forge.reviews(number), forge.comments(number)
        data = pull_data(pull, forge) | {
            "body": pull.body,
            "merge_commit": pull.merge_commit,
            "comments": [comment_data(c) for c in comments],
            "reviews": [review_data(r) for r in reviews],
        }
    success("pr.show", data, pull_page(pull, reviews, comments, data["url"]))


@pr.command()
@click.argument("number", type=NUMBER)
@project_option
@output_option
def diff(number: int, project: str | None) -> None:
    """Show what a pull request changes.

    \b
    Example:
      caloron pr diff 5 | less
    """
    with person_at_forge(project) as (_, forge):
        changes = forge.diff(number)
    text = changes.rstrip("\n")
    data = {"number": number, "diff": changes}
    success("pr.diff", data, text, raw=not is_terminal())


@pr.command()
@click.argument("number", type=NUMBER)
@click.option("--approve", is_flag=True, help="The change is good as it is.")
@click.option("--request-changes", metavar="TEXT", help="What must change; goes to the agent.")
@click.option("--comment", "remark", metavar="TEXT", help="A remark that decides nothing.")
@dry_run_option
@project_option
@output_option
def review(
    number: int,
    approve: bool,
    request_changes: str | None,
    remark: str | None,
    dry_run: bool,
    project: str | None,
) -> int:
    """Review the newest commit of a pull request.

    \b
    Examples:
      caloron pr review 5 --approve
      caloron pr review 5 --request-changes "An empty list must not crash"
    """
    verdict, body = _verdict(approve, request_changes, remark)
    with person_at_forge(project) as (paths, forge):
        pull = _open_pull(forge, number, "reviewed")
        if dry_run:
            return answer_dry_run("pr.review", [_act(f"say {verdict} on", pull)])
        say = _say if forge.about().reviews == "comment" else _review
        written = say(forge, pull, verdict, body)
    poke(paths)
    data = {"number": number, "review": review_data(written)}
    said = verdict.replace("_", " ")
    success("pr.review", data, f"Pull request #{number}: {said} at {pull.head[:12]}.")
    return 0


@pr.command()
@click.argument("number", type=NUMBER)
@dry_run_option
@project_option
@output_option
def merge(number: int, dry_run: bool, project: str | None) -> int:
    """Merge a pull request as it is now, on your own responsibility.

    \b
    Example:
      caloron pr merge 5
    """
    with person_at_forge(project) as (paths, forge):
        pull = _open_pull(forge, number, "merged")
        if dry_run:
            return answer_dry_run("pr.merge", [_act("merge", pull)])
        merged = _merge(forge, pull)
        data = pull_data(merged, forge) | {"merge_commit": merged.merge_commit}
    poke(paths)
    success("pr.merge", data, f"Pull request #{number} is merged as {merged.merge_commit[:12]}.")
    return 0


@pr.command()
@click.argument("number", type=NUMBER)
@dry_run_option
@project_option
@output_option
def close(number: int, dry_run: bool, project: str | None) -> int:
    """Close a pull request without merging it; its task goes back to work.

    \b
    Example:
      caloron pr close 5
    """
    with person_at_forge(project) as (paths, forge):
        pull = _open_pull(forge, number, "closed")
        if dry_run:
            return answer_dry_run("pr.close", [_act("close", pull)])
        data = pull_data(forge.close_pull(number), forge)
    poke(paths)
    success("pr.close", data, f"Pull request #{number} is closed.")
    return 0


def _act(action: str, pull: PullSeen) -> dict[str, str]:
    target = f"pull request #{pull.number} ({pull.branch} at {pull.head[:12]})"
    return {"action": action, "target": target}


def _verdict(approve: bool, request_changes: str | None, remark: str | None) -> tuple[Verdict, str]:
    given: list[tuple[Verdict, str]] = []
    if approve:
        given.append(("approved", ""))
    if request_changes is not None:
        given.append(("changes_requested", request_changes))
    if remark is not None:
        given.append(("commented", remark))
    if len(given) != 1:
        raise UsageError(
            "a review says exactly one thing",
            hint="give one of --approve, --request-changes TEXT, --comment TEXT",
        )
    verdict, body = given[0]
    if verdict != "approved" and not body.strip():
        raise UsageError("the text of the review is empty", hint="say what you mean")
    return verdict, body


def _review(forge: Forge, pull: PullSeen, verdict: Verdict, body: str) -> ReviewSeen:
    return forge.review(pull.number, pull.head, verdict, body)


def _say(forge: Forge, pull: PullSeen, verdict: Verdict, body: str) -> ReviewSeen:
    """A verdict of the one account there is, which may not review its own pull requests."""
    if verdict == "changes_requested":
        key = f"review/{pull.number}/{pull.head}/by-hand/{time.time_ns()}"
        return _review(forge, pull, verdict, f"CHANGES_NEEDED: {body}\n\n{marker(key)}")
    words = APPROVE if verdict == "approved" else body
    said = forge.comment(pull.number, words)
    return ReviewSeen(
        version=said.version,
        id=-said.id,
        pull=pull.number,
        head=pull.head,
        verdict=verdict,
        author=said.author,
        body=said.body,
    )


def _open_pull(forge: Forge, number: int, act: str) -> PullSeen:
    pull = forge.pull(number)
    if pull.state != "open":
        raise PreconditionFailed(
            f"pull request #{number} is {pull.state} already; only an open one can be {act}",
            hint="caloron pr list --state open",
        )
    return pull


def _merge(forge: Forge, pull: PullSeen) -> PullSeen:
    """Merge into main as it is now, also when the engine merges something else meanwhile."""
    message = f"Merge pull request #{pull.number}: {pull.title}"
    for _ in range(_MERGE_TRIES - 1):
        try:
            return forge.merge(pull.number, pull.head, _base(forge), message).pull
        except StaleBase as error:
            log.info("main moved; the merge is repeated", error=error, pull=pull.number)
    return forge.merge(pull.number, pull.head, _base(forge), message).pull


def _base(forge: Forge) -> str:
    main = forge.branch(forge.main)
    if main is None:
        raise PreconditionFailed(
            f"the forge has no branch {forge.main}", hint=f"push one to {forge.remote().url}"
        )
    return main.commit
