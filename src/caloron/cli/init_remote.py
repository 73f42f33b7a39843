"""`caloron init` on a forge of the network: everything is looked at before anything is made."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from caloron.cli.init import init_data, last_lines
from caloron.cli.output import dry_run as answer_dry_run
from caloron.cli.output import printable, success
from caloron.engine.forges import (
    counted,
    look,
    main_by_git,
    notes_on,
    reach,
    refuse_unfit,
    review_mode,
)
from caloron.engine.tokens import tokens_of
from caloron.engine.workshop import identity
from caloron.errors import UsageError
from caloron.git.checkout import Checkout
from caloron.git.mirror import Mirror
from caloron.ledger.given import shown
from caloron.ledger.locate import is_clone_of, project_path
from caloron.ledger.projects import create_project, set_active
from caloron.ledger.settings import ProjectConfig
from caloron.ports import About, Forge, Remote
from caloron.stages.kickoff import RepoContext, fetch_repo_context


class Found(NamedTuple):
    """A repository on its forge that a project can be made for."""

    forge: Forge
    about: About

    @property
    def first_commit(self) -> str:
        """What is put into a repository that has no commit."""
        return f"a first commit (README.md) on {self.forge.main}" if self.about.empty else ""


@contextmanager
def _found(config: ProjectConfig) -> Iterator[Found]:
    """Open the forge and look at the repository; refused with what has to be put right."""
    if config.forge == "gitea" and not config.host:
        raise UsageError(
            "--forge gitea needs --host", hint="such as --host https://git.example.org"
        )
    _check_name(config)
    forge = reach(config)
    try:
        about = look(config, forge)
        if tokens_of(config).reviewer and forge.reviewer == forge.author:
            raise UsageError(
                f"both tokens belong to {forge.author}, who cannot approve its own pull requests",
                hint="name the token of another account, or none: then verdicts are comments",
            )
        refuse_unfit(config, forge, about)
        if about.empty:
            _refuse_unrelated(config, None, "")
        yield Found(forge, about)
    finally:
        forge.close()


def _check_name(config: ProjectConfig) -> None:
    """Refuse what cannot be the name of a repository, and say what was probably meant."""
    repo = config.repo
    if not repo:
        raise UsageError(f"--forge {config.forge} needs --repo", hint="such as --repo ada/shop")
    parts = repo.removesuffix("/").removesuffix(".git").split("/")
    if repo.count("/") == 1 and all(parts) and not repo.endswith(".git"):
        return
    meant = "/".join(parts[-2:])
    known = len(parts) > 1 and all(parts[-2:]) and "@" not in meant and ":" not in meant
    raise UsageError(
        f"--repo {shown('repo', repo)} is no repository on a forge",
        hint="give it as OWNER/NAME" + (f": --repo {meant}" if known else ""),
    )


def _refuse_unrelated(config: ProjectConfig, mirror: Mirror | None, main: str) -> None:
    """A checkout is of this repository: it was cloned from there, or began with the same commit."""
    if not config.checkout or is_clone_of(msgspec.structs.asdict(config), Path(config.checkout)):
        return
    checkout = Checkout.around(Path(config.checkout))
    theirs = set(Mirror(checkout.top, Remote("")).roots("HEAD")) if checkout else set()
    if mirror is None or not theirs & set(mirror.roots(main)):
        what = f"is no clone of {config.repo}" if checkout else "is no git repository"
        raise UsageError(
            f"--checkout {config.checkout} {what}", hint="give the folder of a clone of it, or none"
        )


def would_make(config: ProjectConfig) -> int:
    """The answer of a dry run: all is checked, and nothing is changed here or there."""
    with _found(config) as found, tempfile.TemporaryDirectory(prefix="caloron-init-") as place:
        actions: list[dict[str, Any]] = []
        if found.first_commit:
            actions.append({"action": f"push {found.first_commit} to", "target": found.about.url})
        else:
            _look(config, found, Path(place))
        actions.append({"action": "make project", "target": str(project_path(config.name))})
        about = f"{found.about.url}, {review_mode(found.about, found.forge)}"
        actions.append({"action": "work on", "target": about})
        actions.append({"action": "switch to project", "target": config.name})
    return answer_dry_run("init", actions)


def make(config: ProjectConfig) -> int:
    """Make the project; a repository without a commit gets its first one."""
    seen: list[RepoContext] = []
    with _found(config) as found:

        def furnish(directory: Path) -> None:
            if found.first_commit:
                _begin_repository(config, found, directory)
            seen.append(_look(config, found, directory))

        project = create_project(config, furnish)
        set_active(config.name)
        data = init_data(project) | _data(found, seen[0])
        text = _text(config, found, seen[0])
    success("init", data, printable(f"Project {project.name} is ready, and active.\n{text}"))
    return 0


def _begin_repository(config: ProjectConfig, found: Found, directory: Path) -> None:
    mirror = _mirror(found, directory)
    readme = f"# {config.repo.partition('/')[2]}\n"
    commit = mirror.first_commit(readme, identity(config))
    found.forge.push(mirror.path, found.forge.main, commit, "")


def _mirror(found: Found, directory: Path) -> Mirror:
    mirror = Mirror(directory / "mirror.git", found.forge.remote(), found.forge.main)
    mirror.ensure()
    return mirror


def _look(config: ProjectConfig, found: Found, directory: Path) -> RepoContext:
    """Fetch main, which shows that git is let in too, and see what is in it."""
    mirror = _mirror(found, directory)
    commit = main_by_git(mirror, found.about.kind)
    if not found.first_commit:
        _refuse_unrelated(config, mirror, commit)
    about = found.about
    return fetch_repo_context(
        mirror, commit, description=about.description, open_issues=about.open_issues
    )


def _data(found: Found, context: RepoContext) -> dict[str, Any]:
    seen = msgspec.to_builtins(context)
    rules = [{"kind": rule["kind"], "path": rule["path"]} for rule in seen["rules"]]
    return {
        "url": found.about.url,
        "account": found.forge.author,
        "reviewer": found.forge.reviewer,
        "reviews": found.about.reviews,
        "review_mode": review_mode(found.about, found.forge),
        "first_commit": bool(found.first_commit),
        "protected": found.about.protected,
        "required_checks": list(found.about.required_checks),
        "required_approvals": found.about.required_approvals,
        "notes": notes_on(found.forge, found.about),
        "repository": seen | {"rules": rules},
    }


def _text(config: ProjectConfig, found: Found, context: RepoContext) -> str:
    forge = found.forge
    lines = [
        f"  Forge      {config.forge}: {found.about.url}",
        f"  Account    {forge.author}",
        f"  Reviews    {review_mode(found.about, forge)}",
        f"  Framework  {config.framework}",
        f"  Branch     {forge.main}, {counted(context.files, 'file')}{_languages(context)}",
    ]
    if found.first_commit:
        lines.append(f"  Made       {found.first_commit}: the repository had none")
    if context.ci:
        lines.append(f"  CI         {', '.join(context.ci)}")
    if context.rules:
        lines.append(f"  Rules      {', '.join(rule.path for rule in context.rules)}")
    lines += [f"  Note       {note}" for note in notes_on(forge, found.about)]
    return "\n".join([*lines, *last_lines(config)])


def _languages(context: RepoContext) -> str:
    named = [f"{name} {count}" for name, count in context.languages.items()]
    return f" ({', '.join(named[:4])})" if named else ""
