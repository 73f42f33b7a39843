"""`caloron issue` and `caloron pr`: a person takes part in a sprint through the forge."""

from __future__ import annotations

import getpass
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from caloron.cli.app import FC, Answer, DryRun, Number, attributes, group, planned
from caloron.cli.format import one_line
from caloron.cli.output import is_terminal
from caloron.cli.render import aligned, unmarked
from caloron.domain.model.snapshots import (
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Verdict,
    marker,
    marker_key,
    with_text,
)
from caloron.domain.rules.people.commands import APPROVE
from caloron.errors import PreconditionFailed, StaleBase, UsageError
from caloron.git.command import git
from caloron.ids import sprint_number
from caloron.ledger.locate import ProjectPaths, find_project, forge_kind
from caloron.ports import Forge, State
from caloron.store import log
from caloron.store.wake import Wake

if TYPE_CHECKING:
    from caloron.ledger.projects import Project

#: The account of the engine: the acts of a person must never look like its own.
_ENGINE = "caloron"
_MERGE_TRIES = 3
_MARKER_LINE = re.compile(r"\n*<!-- caloron:[^\s<>]+ -->|<!-- /?caloron-section:[^\s<>]+ -->\n?")
#: A zero-width space, which keeps agents' words from becoming mentions and references.
_ZERO_WIDTH = "\u200b"

_number = click.argument("number", type=Number(1))
_state = click.option(
    "--state",
    type=click.Choice(("open", "closed", "merged", "all")),
    default="all",
    show_default=True,
)


def person() -> str:
    """The user's name in git, else the login name, but never the engine's own."""
    for name in (_git_name(), _login_name()):
        if name and name.casefold() != _ENGINE:
            return name
    return "you"


def wake_engine(project: ProjectPaths) -> None:
    """Let a running engine poll the forge at once."""
    Wake(project.wake).poke()


def _git_name() -> str:
    try:
        process = subprocess.run(
            ["git", "config", "--get", "user.name"], capture_output=True, check=False
        )
    except OSError:
        # Git is not installed.
        return ""
    return process.stdout.decode("utf-8", "replace").strip()


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # The user has no name on this machine.
        return ""


@contextmanager
def _forge_of(project: str | None, *, changes: bool = False) -> Iterator[Forge]:
    """The forge of a project, acting as the user; after `changes` the engine is woken.

    On a remote forge the account of the project's token acts.
    """
    paths = find_project(project)
    with closing(_open(paths)) as forge:
        yield forge
    if changes:
        wake_engine(paths)


def _open(paths: ProjectPaths) -> Forge:
    if forge_kind(paths.config_file) == "local":
        from caloron.forge.local.forge import LocalForge

        return LocalForge(paths.path, actor=person())
    from caloron.engine.forge.connect import open_forge
    from caloron.ledger.projects import load_project

    return open_forge(load_project(paths.name))


def _body_options(command: FC) -> FC:
    """`--body` and `--body-file`, as `gh` has them."""
    for option in (
        click.option(
            "--body-file",
            "--file",
            "-F",
            type=Path,
            metavar="FILE",
            help="Read the text from FILE; `-`: from standard input.",
        ),
        click.option("--body", "-b", metavar="TEXT", help="The text; `-`: from standard input."),
    ):
        command = option(command)
    return command


def _labels(*names: str, help: str) -> Callable[[FC], FC]:
    """An option that may be repeated, or have several labels with commas between them."""

    def split(
        _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
    ) -> tuple[str, ...]:
        labels = [label.strip() for value in values for label in value.split(",")]
        if not all(labels):
            raise UsageError("a label is empty", hint="give its name, such as caloron:task")
        return tuple(labels)

    return click.option(*names, multiple=True, metavar="LABEL", callback=split, help=help)


def _body(*sources: str | Path | None) -> str | None:
    """The text from the one source that is used; None: there is none."""
    used = [source for source in sources if source is not None]
    if len(used) > 1:
        raise UsageError("the text is given twice", hint="use one of TEXT, --body and --body-file")
    if not used:
        return None
    if str(used[0]) == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    if isinstance(used[0], str):
        return used[0]
    try:
        return used[0].read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise UsageError(f"{used[0]} cannot be read: {error}") from error


@group(
    examples=[
        "caloron issue list --state open",
        'caloron issue create --title "Add a log-out button" --label caloron:task',
        "caloron issue comment 7 resolved",
    ]
)
def issue() -> None:
    """Create, read, change and close issues on the forge of a project.

    The engine reacts at once: an issue with the label `caloron:task` becomes a task of the running
    sprint, closing the issue of a task cancels the task, and the comment `resolved` on an
    escalation lets its task continue.
    """


@issue.command("list", project=True, examples=["caloron issue list --state open --output json"])
@_state
def list_issues(state: State, project: str | None) -> Answer:
    """List the issues."""
    with _forge_of(project) as forge:
        issues = forge.issues(state)
        data = [issue_data(issue, forge) for issue in issues]
    head = ("issue", "state", "title", "labels", "page")
    return Answer({"issues": data}, lambda: _table(head, issues, data) or "No issues.")


@issue.command("show", project=True, examples=["caloron issue show 3"])
@_number
def show_issue(number: int, project: str | None) -> Answer:
    """Show one issue with its comments."""
    with _forge_of(project) as forge:
        issue, comments = forge.issue(number), forge.comments(number)
        data = issue_data(issue, forge)
    data |= {"body": issue.body, "comments": [comment_data(c) for c in comments]}
    about = f"opened by {issue.author}"
    if issue.state == "closed" and issue.closed_by:
        about += f", closed by {issue.closed_by}"
    return Answer(data, lambda: _page(issue, data["url"], about, [], comments))


@issue.command(
    "create",
    project=True,
    dry_run=True,
    examples=[
        'caloron issue create --title "Add a log-out button" --label caloron:task',
        'caloron issue create --title "Round prices" --body-file notes.md',
    ],
)
@click.option("--title", "-t", required=True, help="The title.")
@_body_options
@_labels("--label", "-l", help="Add a label; repeat it for more.")
def create_issue(
    title: str,
    body: str | None,
    body_file: Path | None,
    label: tuple[str, ...],
    dry_run: bool,
    project: str | None,
) -> Answer | DryRun:
    """Open an issue; with the label `caloron:task` a running sprint adds it as a task."""
    text = with_text("", _body(body, body_file) or "")
    with _forge_of(project, changes=not dry_run) as forge:
        if dry_run:
            return DryRun(planned("open an issue", one_line(title), labels=list(label)))
        made = forge.create_issue(title, text, label)
        data = issue_data(made, forge)
    return Answer(data, f"Opened issue #{made.number} as {made.author}. {data['url']}".rstrip())


@issue.command(
    "edit",
    project=True,
    dry_run=True,
    examples=[
        'caloron issue edit 7 --title "Round prices to cents"',
        "caloron issue edit 7 --body-file - < notes.md",
    ],
)
@_number
@click.option("--title", "-t", help="Another title.")
@_body_options
@_labels("--add-label", help="Add a label; repeat it for more.")
@_labels("--remove-label", help="Remove a label; repeat it for more.")
def edit_issue(
    number: int,
    title: str | None,
    body: str | None,
    body_file: Path | None,
    add_label: tuple[str, ...],
    remove_label: tuple[str, ...],
    dry_run: bool,
    project: str | None,
) -> Answer | DryRun:
    """Change the title, the text or the labels of an issue.

    A task whose issue has another title or text is reviewed against the new text.
    """
    text = _body(body, body_file)
    if title is not None and not title.strip():
        raise UsageError(f"the title of #{number} is empty", hint="give some text")
    if title is None and text is None and not (add_label or remove_label):
        raise UsageError("nothing is to be changed", hint="give --title, --body or a label")
    with _forge_of(project, changes=not dry_run) as forge:
        issue = forge.issue(number)
        if dry_run:
            return DryRun(planned("edit", f"issue #{number}"))
        if title is not None or text is not None:
            new = issue.body if text is None else with_text(issue.body, text)
            issue = forge.edit_issue(number, new, title or "")
        return _labelled(forge, issue, add_label, remove_label)


@issue.command(
    "label",
    project=True,
    dry_run=True,
    examples=[
        "caloron issue label 7 --add caloron:task",
        "caloron issue label 7 --remove caloron:task",
    ],
)
@_number
@_labels("--add", help="Add a label; repeat it for more.")
@_labels("--remove", help="Remove a label; repeat it for more.")
def label_issue(
    number: int, add: tuple[str, ...], remove: tuple[str, ...], dry_run: bool, project: str | None
) -> Answer | DryRun:
    """Add or remove labels; `caloron:task` adds the issue to the running sprint."""
    if not (add or remove):
        raise UsageError("no label is named", hint="give --add LABEL or --remove LABEL")
    with _forge_of(project, changes=not dry_run) as forge:
        issue = forge.issue(number)
        if dry_run:
            changes = [f"+{name}" for name in add] + [f"-{name}" for name in remove]
            return DryRun(planned("label", f"issue #{number}: {' '.join(changes)}"))
        return _labelled(forge, issue, add, remove)


def _labelled(
    forge: Forge, issue: IssueSnapshot, add: Iterable[str], remove: Iterable[str]
) -> Answer:
    for name in add:
        issue = forge.label(issue.number, name)
    for name in remove:
        issue = forge.unlabel(issue.number, name)
    labels = f" [{', '.join(issue.labels)}]" if issue.labels else ""
    text = f"Issue #{issue.number}: {one_line(issue.title)}{labels}"
    return Answer(issue_data(issue, forge), text)


@issue.command(
    "comment",
    project=True,
    dry_run=True,
    examples=["caloron issue comment 7 resolved", "caloron issue comment 7 - < notes.md"],
)
@_number
@click.argument("text", required=False)
@_body_options
def comment_issue(
    number: int,
    text: str | None,
    body: str | None,
    body_file: Path | None,
    dry_run: bool,
    project: str | None,
) -> Answer | DryRun:
    """Comment on an issue; TEXT `-` is read from standard input."""
    return _comment("issue", number, _body(text, body, body_file), dry_run, project)


def _comment(
    kind: str, number: int, body: str | None, dry_run: bool, project: str | None
) -> Answer | DryRun:
    if not body or not body.strip():
        raise UsageError(f"the comment on #{number} is empty", hint="give some text")
    with _forge_of(project, changes=not dry_run) as forge:
        if dry_run:
            forge.comments(number)
            return DryRun(planned("comment on", f"{kind} #{number}"))
        written = forge.comment(number, body)
        data = {"number": number, "url": forge.url(number), "comment": comment_data(written)}
    return Answer(data, f"Commented on #{number} as {written.author}.")


@issue.command("close", project=True, dry_run=True, examples=["caloron issue close 3"])
@_number
def close_issue(number: int, dry_run: bool, project: str | None) -> Answer | DryRun:
    """Close an issue; closing the issue of a task cancels the task."""
    return _change_issue("close", number, dry_run, project)


@issue.command("reopen", project=True, dry_run=True, examples=["caloron issue reopen 3"])
@_number
def reopen_issue(number: int, dry_run: bool, project: str | None) -> Answer | DryRun:
    """Open a closed issue again."""
    return _change_issue("reopen", number, dry_run, project)


def _change_issue(verb: str, number: int, dry_run: bool, project: str | None) -> Answer | DryRun:
    with _forge_of(project, changes=not dry_run) as forge:
        if dry_run:
            forge.issue(number)
            return DryRun(planned(verb, f"issue #{number}"))
        changed = forge.close_issue(number) if verb == "close" else forge.reopen_issue(number)
        return Answer(issue_data(changed, forge), f"Issue #{number} is {changed.state}.")


@group(
    examples=[
        "caloron pr diff 5",
        'caloron pr review 5 --request-changes "Please keep the old name as an alias"',
    ]
)
def pr() -> None:
    """Read, review and merge pull requests on the forge of a project.

    The engine reacts at once: a task whose pull request you merge is done, and a task whose
    changes you request goes back to its agent with your text.
    """


@pr.command("list", project=True, examples=["caloron pr list --state merged"])
@_state
def list_pulls(state: State, project: str | None) -> Answer:
    """List the pull requests."""
    with _forge_of(project) as forge:
        pulls = forge.pulls(state)
        data = [pull_data(pull, forge) for pull in pulls]
    head = ("pull", "state", "title", "branch", "page")
    return Answer({"pull_requests": data}, lambda: _table(head, pulls, data) or "No pull requests.")


@pr.command("show", project=True, examples=["caloron pr show 5"])
@_number
def show_pull(number: int, project: str | None) -> Answer:
    """Show one pull request with its reviews and comments."""
    with _forge_of(project) as forge:
        pull = forge.pull(number)
        reviews, comments = forge.reviews(number), forge.comments(number)
        data = pull_data(pull, forge)
    data |= {
        "body": pull.body,
        "merge_commit": pull.merge_commit,
        "comments": [comment_data(c) for c in comments],
        "reviews": [review_data(r) for r in reviews],
    }
    about = f"opened by {pull.author}, head {pull.head[:12]}"
    if pull.state != "open" and pull.ended_by:
        about += f", {pull.state} by {pull.ended_by}"
    if pull.closes:
        about += f", closes {', '.join(f'#{n}' for n in pull.closes)}"
    return Answer(data, lambda: _page(pull, data["url"], about, reviews, comments))


@pr.command("diff", project=True, examples=["caloron pr diff 5 | less"])
@_number
def diff_pull(number: int, project: str | None) -> Answer:
    """Show the changes of a pull request."""
    with _forge_of(project) as forge:
        diff = forge.diff(number)
    return Answer({"number": number, "diff": diff}, diff.rstrip("\n"), raw=not is_terminal())


@pr.command(
    "comment",
    project=True,
    dry_run=True,
    examples=[
        'caloron pr comment 5 "Nice, and the name fits"',
        "caloron pr comment 5 --body-file notes.md",
    ],
)
@_number
@click.argument("text", required=False)
@_body_options
def comment_pull(
    number: int,
    text: str | None,
    body: str | None,
    body_file: Path | None,
    dry_run: bool,
    project: str | None,
) -> Answer | DryRun:
    """Comment on a pull request; TEXT `-` is read from standard input.

    To send the change back to its agent, use `caloron pr review NUMBER --request-changes TEXT`.
    """
    return _comment("pull request", number, _body(text, body, body_file), dry_run, project)


@pr.command(
    "checkout",
    project=True,
    dry_run=True,
    examples=["caloron pr checkout 5", "caloron pr checkout 5 --branch try-it"],
)
@_number
@click.option("--branch", "-b", metavar="NAME", help="The local branch (default: the same name).")
def checkout_pull(
    number: int, branch: str | None, dry_run: bool, project: str | None
) -> Answer | DryRun:
    """Check out the branch of a pull request in your repository.

    Creates a local branch, or fast-forwards the one of an earlier checkout. Refused, with nothing
    changed, if that branch has commits of its own or files in no commit would be overwritten.
    """
    from caloron.cli.commands.sprint.apply import users_repository
    from caloron.git.checkout import Checkout, Wanted
    from caloron.ledger.projects import load_project

    loaded = load_project(project, need_ledger=False)
    checkout = Checkout(users_repository(loaded))
    with closing(_open(loaded)) as forge:
        pull = forge.pull(number)
        ref = _fetched_head(loaded, forge, pull)
    # The branch of a fork has its owner before it.
    name = branch or pull.branch.replace(":", "/")
    preview = checkout.preview(Wanted(loaded.git_here, pull.head, ref, name))
    if dry_run:
        return DryRun(planned("check out", f"branch {name} at {pull.head[:12]} in {checkout.top}"))
    checkout.check_out(preview)
    data = {"number": number, "repo": str(checkout.top), "branch": name, "head": pull.head}
    target = quote(str(loaded.forge_git)) if not loaded.is_remote else "origin"
    push = f"git push {target} {quote(f'{name}:{pull.branch}')}"
    lines = [f"Checked out branch {name} at {pull.head[:12]} in {checkout.top}."]
    if pull.state == "open" and ":" not in pull.branch:
        lines.append(f"Add your commits to the pull request: {push}")
    return Answer(data, "\n".join(lines))


def _fetched_head(project: Project, forge: Forge, pull: PullSnapshot) -> str:
    """A ref of the repository on this disk that has the head of a pull request."""
    if project.is_remote:
        from caloron.engine.forge.connect import open_mirror

        with closing(open_mirror(project, forge)) as mirror:
            mirror.fetch_head(pull.head, pull.branch, pull.number)
    refs = ("refs/heads/", "refs/remotes/forge/", f"refs/remotes/forge-pulls/{pull.number}")
    holding = ("for-each-ref", "--count=1", "--format=%(refname)", f"--contains={pull.head}")
    ref = git(project.git_here, *holding, *refs, check=False)
    if not ref:
        raise PreconditionFailed(
            f"the commits of pull request #{pull.number} are gone: its branch was deleted",
            hint=f"caloron pr show {pull.number}",
        )
    return ref


@pr.command(
    "review",
    project=True,
    dry_run=True,
    examples=[
        "caloron pr review 5 --approve",
        'caloron pr review 5 --request-changes "An empty list must not crash"',
    ],
)
@_number
@click.option("--approve", is_flag=True, help="Approve the change as it is.")
@click.option("--request-changes", metavar="TEXT", help="Request changes; TEXT goes to the agent.")
@click.option("--comment", "remark", metavar="TEXT", help="Comment without a decision.")
def review_pull(
    number: int,
    approve: bool,
    request_changes: str | None,
    remark: str | None,
    dry_run: bool,
    project: str | None,
) -> Answer | DryRun:
    """Review the newest commit of a pull request."""
    verdict, body = _verdict(approve, request_changes, remark)
    with _open_pull(number, "reviewed", project, dry_run) as (forge, pull):
        if dry_run:
            return _planned(f"say {verdict} on", pull)
        written = _review(forge, pull, verdict, body)
    data = {"number": number, "review": review_data(written)}
    words = verdict.replace("_", " ")
    return Answer(data, f"Pull request #{number}: {words} at {pull.head[:12]}.")


@pr.command("merge", project=True, dry_run=True, examples=["caloron pr merge 5"])
@_number
def merge_pull(number: int, dry_run: bool, project: str | None) -> Answer | DryRun:
    """Merge a pull request as it is now, on your own responsibility."""
    with _open_pull(number, "merged", project, dry_run) as (forge, pull):
        if dry_run:
            return _planned("merge", pull)
        merged = _merge(forge, pull)
        data = pull_data(merged, forge) | {"merge_commit": merged.merge_commit}
    return Answer(data, f"Pull request #{number} is merged as {merged.merge_commit[:12]}.")


@pr.command("close", project=True, dry_run=True, examples=["caloron pr close 5"])
@_number
def close_pull(number: int, dry_run: bool, project: str | None) -> Answer | DryRun:
    """Close a pull request without merging it; its task goes back to work."""
    with _open_pull(number, "closed", project, dry_run) as (forge, pull):
        if dry_run:
            return _planned("close", pull)
        data = pull_data(forge.close_pull(number), forge)
    return Answer(data, f"Pull request #{number} is closed.")


@contextmanager
def _open_pull(
    number: int, act: str, project: str | None, dry_run: bool
) -> Iterator[tuple[Forge, PullSnapshot]]:
    """The forge and an open pull request of it that is to be changed."""
    with _forge_of(project, changes=not dry_run) as forge:
        pull = forge.pull(number)
        if pull.state != "open":
            raise PreconditionFailed(
                f"pull request #{number} is {pull.state} already; only an open one can be {act}",
                hint="caloron pr list --state open",
            )
        yield forge, pull


def _planned(action: str, pull: PullSnapshot) -> DryRun:
    target = f"pull request #{pull.number} ({pull.branch} at {pull.head[:12]})"
    return DryRun(planned(action, target))


def _verdict(approve: bool, request_changes: str | None, remark: str | None) -> tuple[Verdict, str]:
    texts: dict[Verdict, str | None] = {
        "approved": "" if approve else None,
        "changes_requested": request_changes,
        "commented": remark,
    }
    chosen = [(verdict, text) for verdict, text in texts.items() if text is not None]
    if len(chosen) != 1:
        raise UsageError(
            "a review has exactly one verdict",
            hint="use one of --approve, --request-changes TEXT, --comment TEXT",
        )
    verdict, body = chosen[0]
    if verdict != "approved" and not body.strip():
        raise UsageError("the text of the review is empty", hint="give some text")
    return verdict, body


def _review(forge: Forge, pull: PullSnapshot, verdict: Verdict, body: str) -> ReviewSnapshot:
    """Write a verdict; as a comment where the only account may not review its own pull requests."""
    by_comment = forge.about().reviews == "comment"
    if by_comment and verdict == "changes_requested":
        key = f"review/{pull.number}/{pull.head}/by-hand/{time.time_ns()}"
        body = f"CHANGES_NEEDED: {body}\n\n{marker(key)}"
    if not by_comment or verdict == "changes_requested":
        return forge.review(pull.number, pull.head, verdict, body)
    comment = forge.comment(pull.number, APPROVE if verdict == "approved" else body)
    return ReviewSnapshot(
        version=comment.version,
        id=-comment.id,
        pull=pull.number,
        head=pull.head,
        verdict=verdict,
        author=comment.author,
        body=comment.body,
    )


def _merge(forge: Forge, pull: PullSnapshot) -> PullSnapshot:
    """Merge into main as it is now, also when the engine merges something else meanwhile."""
    message = f"Merge pull request #{pull.number}: {pull.title}"
    tries = 0
    while True:
        tries += 1
        main = forge.branch(forge.main)
        if main is None:
            raise PreconditionFailed(
                f"the forge has no branch {forge.main}", hint=f"push one to {forge.remote().url}"
            )
        try:
            return forge.merge(pull.number, pull.head, main.commit, message).pull
        except StaleBase as error:
            if tries == _MERGE_TRIES:
                raise
            log.info("main moved; the merge is repeated", error=error, pull=pull.number)


def issue_data(issue: IssueSnapshot, forge: Forge) -> dict[str, Any]:
    data = attributes(issue, "number", "title", "state")
    data |= {"url": forge.url(issue.number), **attributes(issue, "author", "labels")}
    return data | _task_of(issue, forge)


def pull_data(pull: PullSnapshot, forge: Forge) -> dict[str, Any]:
    data = attributes(pull, "number", "title", "state")
    data |= {"url": forge.url(pull.number, pull=True)}
    return data | attributes(pull, "author", "branch", "head", "closes") | _task_of(pull, forge)


def _task_of(item: IssueSnapshot | PullSnapshot, forge: Forge) -> dict[str, Any]:
    """The task that our marker names; a marker on another author's object means nothing."""
    parts = marker_key(item.body).split("/")
    if item.author != forge.author or len(parts) < 3:
        return {}
    # `number` is that of the issue or pull request.
    return {"sprint_id": parts[1], "sprint_number": sprint_number(parts[1]), "task": parts[2]}


def comment_data(comment: CommentSnapshot) -> dict[str, Any]:
    return attributes(comment, "id", "author", "body")


def review_data(review: ReviewSnapshot) -> dict[str, Any]:
    return attributes(review, "id", "author", "verdict", "head", "body")


def _table(
    head: tuple[str, ...],
    items: Sequence[IssueSnapshot | PullSnapshot],
    data: Sequence[dict[str, Any]],
) -> str:
    """Issues or pull requests under their heads; only a remote forge has pages."""
    if not items:
        return ""
    rows = [head, *((*_cells(i), d["url"]) for i, d in zip(items, data, strict=True))]
    has_pages = any(d["url"] for d in data)
    return "\n".join(aligned(rows if has_pages else [row[:-1] for row in rows]))


def _cells(item: IssueSnapshot | PullSnapshot) -> tuple[str, ...]:
    last = ", ".join(item.labels) if isinstance(item, IssueSnapshot) else item.branch
    return f"#{item.number}", item.state, one_line(item.title), last


def _page(
    item: IssueSnapshot | PullSnapshot,
    url: str,
    about: str,
    reviews: Iterable[ReviewSnapshot],
    comments: Iterable[CommentSnapshot],
) -> list[str]:
    head = "\n".join(filter(None, ("  ".join(_cells(item)).rstrip(), url)))
    verdicts = [
        f"-- {r.author}: {r.verdict.replace('_', ' ')} ({r.head[:12]})\n{_prose(r.body)}".rstrip()
        for r in reviews
    ]
    replies = [f"-- {comment.author} wrote\n{_prose(comment.body)}" for comment in comments]
    parts = filter(None, [head, about, _prose(item.body), *verdicts, *replies])
    return "\n\n".join(parts).split("\n")


def _prose(body: str) -> str:
    return unmarked(_MARKER_LINE.sub("", body).replace(_ZERO_WIDTH, "")).strip()
