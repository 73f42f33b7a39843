"""Where agents may work: repositories and worktrees inside one root, never where an agent was."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from caloron.errors import CaloronError, PreconditionFailed
from caloron.git.command import git_process


class NotAllowed(CaloronError):
    """A place that the shell does not work in."""


def repository_in(root: Path, repo: str, workspaces: Iterable[Path]) -> Path:
    """The repository that a request means.

    It is named by its path, in the root or absolute. A shell that runs in a repository also
    takes the name that this one has on its forge, as callers of old wrote it.
    """
    if is_repository(root) and repo in _names_of(root):
        return root
    found = _inside(root, repo, "repo")
    if not is_repository(found):
        raise NotAllowed(f"repo {repo!r} is no git repository in {root}")
    _refuse_agents(found, workspaces, "repo")
    return found


def worktrees_in(root: Path, base: str, workspaces: Iterable[Path]) -> Path:
    """The folder that worktrees are to be made in."""
    found = _inside(root, base, "worktree_base")
    if found == root:
        raise NotAllowed("worktree_base is the root itself: name a folder in it")
    _refuse_agents(found, workspaces, "worktree_base")
    return found


def is_repository(path: Path) -> bool:
    """Whether git could work there, without asking git: it would run what it finds configured."""
    return (path / ".git").exists() or (
        (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir()
    )


def main_branch(repository: Path) -> str:
    """The branch that is checked out, which agents begin from."""
    done = git_process(repository, "symbolic-ref", "--short", "HEAD")
    if done.returncode != 0:
        raise PreconditionFailed(f"{repository} has no branch checked out")
    return done.stdout.decode("utf-8", "replace").strip()


def _inside(root: Path, given: str, name: str) -> Path:
    found = (root / given).resolve()
    if not found.is_relative_to(root):
        raise NotAllowed(f"{name} {given!r} lies outside {root}")
    if ".git" in found.relative_to(root).parts:
        raise NotAllowed(f"{name} {given!r} lies inside a repository's own files")
    return found


def _refuse_agents(path: Path, workspaces: Iterable[Path], name: str) -> None:
    for workspace in workspaces:
        if path.is_relative_to(workspace):
            raise NotAllowed(f"{name} lies in {workspace}, where an agent works")


def _names_of(root: Path) -> set[str]:
    """What the repository of the root may be called: its folder, or its name on its forge."""
    names = {".", root.name}
    done = git_process(root, "config", "--get", "remote.origin.url")
    url = done.stdout.decode("utf-8", "replace").strip().removesuffix(".git")
    parts = url.replace(":", "/").rstrip("/").split("/")
    if len(parts) > 1:
        names |= {parts[-1], "/".join(parts[-2:])}
    return names
