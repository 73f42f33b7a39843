"""`caloron issue`: a person takes part in a sprint through its issues."""

from __future__ import annotations

import sys

import click

from caloron.cli.forge_view import (
    STATES,
    comment_data,
    issue_data,
    issue_page,
    issue_table,
    person_at_forge,
)
from caloron.cli.options import dry_run_option, output_option, project_option
from caloron.cli.output import dry_run as answer_dry_run
from caloron.cli.output import success
from caloron.cli.person import poke
from caloron.errors import UsageError
from caloron.ports import State

NUMBER = click.IntRange(min=1)


@click.group()
def issue() -> None:
    """Read, comment and close issues on the forge of a project.

    The engine notices what you do at once: closing the issue of a task cancels the task,
    and the comment `resolved` on an escalation lets its task go on.

    \b
    Examples:
      caloron issue list --state open
      caloron issue comment 7 resolved
    """


@issue.command("list")
@click.option("--state", type=click.Choice(STATES), default="all", show_default=True)
@project_option
@output_option
def list_issues(state: State, project: str | None) -> None:
    """List the issues.

    \b
    Example:
      caloron issue list --state open --output json
    """
    with person_at_forge(project) as (_, forge):
        issues = forge.issues(state)
        data = {"issues": [issue_data(i, forge) for i in issues]}
        text = issue_table(issues, forge) if issues else "No issues."
    success("issue.list", data, text)


@issue.command()
@click.argument("number", type=NUMBER)
@project_option
@output_option
def show(number: int, project: str | None) -> None:
    """Show one issue with its comments.

    \b
    Example:
      caloron issue show 3
    """
    with person_at_forge(project) as (_, forge):
        found, comments = forge.issue(number), forge.comments(number)
        data = issue_data(found, forge) | {
            "body": found.body,
            "comments": [comment_data(c) for c in comments],
        }
    success("issue.show", data, issue_page(found, comments, data["url"]))


@issue.command()
@click.argument("number", type=NUMBER)
@click.argument("text")
@dry_run_option
@project_option
@output_option
def comment(number: int, text: str, dry_run: bool, project: str | None) -> int:
    """Comment on an issue or a pull request; TEXT `-` is read from standard input.

    \b
    Examples:
      caloron issue comment 7 resolved
      caloron issue comment 7 - < notes.md
    """
    body = sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else text
    if not body.strip():
        raise UsageError(f"the comment on #{number} is empty", hint="say something")
    with person_at_forge(project) as (paths, forge):
        if dry_run:
            forge.comments(number)
            return answer_dry_run("issue.comment", [_act("comment on", number)])
        written = forge.comment(number, body)
        data = {
            "number": number,
            "url": forge.url(number),
            "comment": comment_data(written),
        }
    poke(paths)
    success("issue.comment", data, f"Commented on #{number} as {written.author}.")
    return 0


@issue.command()
@click.argument("number", type=NUMBER)
@dry_run_option
@project_option
@output_option
def close(number: int, dry_run: bool, project: str | None) -> int:
    """Close an issue; a task whose issue a person closes is cancelled.

    \b
    Example:
      caloron issue close 3
    """
    with person_at_forge(project) as (paths, forge):
        if dry_run:
            forge.issue(number)
            return answer_dry_run("issue.close", [_act("close", number)])
        data = issue_data(forge.close_issue(number), forge)
    poke(paths)
    success("issue.close", data, f"Issue #{number} is closed.")
    return 0


@issue.command()
@click.argument("number", type=NUMBER)
@dry_run_option
@project_option
@output_option
def reopen(number: int, dry_run: bool, project: str | None) -> int:
    """Open a closed issue again.

    \b
    Example:
      caloron issue reopen 3
    """
    with person_at_forge(project) as (paths, forge):
        if dry_run:
            forge.issue(number)
            return answer_dry_run("issue.reopen", [_act("reopen", number)])
        data = issue_data(forge.reopen_issue(number), forge)
    poke(paths)
    success("issue.reopen", data, f"Issue #{number} is open.")
    return 0


def _act(action: str, number: int) -> dict[str, str]:
    return {"action": action, "target": f"issue #{number}"}
