"""Writes a whole repository as one pack and a list of refs, and reads it back.

Objects never change and nothing of ours removes one, so that a backup may write the objects any
time after the refs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from caloron.git.command import git, git_bytes


def refs_of(repository: Path) -> dict[str, str]:
    """Every ref with its object."""
    listed = git(repository, "for-each-ref", "--format=%(refname) %(objectname)")
    return dict(line.split() for line in listed.splitlines())


def object_format(repository: Path) -> str:
    return git(repository, "rev-parse", "--show-object-format")


def shallow_of(repository: Path) -> list[str]:
    """The commits whose parents are missing, in a shallow clone."""
    try:
        return (repository / "shallow").read_text("ascii").split()
    except FileNotFoundError:
        return []


def objects_of(repository: Path) -> set[bytes]:
    """Every object, also those that hang on no ref: the heads of closed pull requests do not."""
    form = "--batch-check=%(objectname)"
    listed = git_bytes(repository, "cat-file", "--batch-all-objects", "--unordered", form)
    return set(listed.split())


def write_pack(repository: Path, objects: Iterable[bytes], target: Path) -> None:
    """Write objects into one pack that needs no other."""
    names = b"\n".join(sorted(objects)) + b"\n"
    arguments = ("pack-objects", "--stdout", "--quiet", "--threads=1")
    with target.open("wb") as file:
        git_bytes(repository, *arguments, stdin=names, stdout=file)


def add_pack(repository: Path, pack: Path) -> None:
    """Add the objects of a pack, after checking each."""
    with pack.open("rb") as file:
        git_bytes(repository, "index-pack", "--stdin", "--threads=1", stdin=file)


def set_refs(repository: Path, refs: Mapping[str, str]) -> None:
    """Create refs in a repository that has none; refused if an object is missing."""
    lines = "".join(f"create {name} {value}\n" for name, value in refs.items())
    git(repository, "update-ref", "--stdin", stdin=lines.encode())


def check_connectivity(repository: Path) -> None:
    """Raise `GitError` if an object that a ref needs is missing."""
    git(repository, "rev-list", "--quiet", "--objects", "--all")


def missing(repository: Path, commits: Iterable[str]) -> set[str]:
    """Return the objects that the repository does not have."""
    wanted = sorted(set(commits))
    if not wanted:
        return set()
    text = "\n".join(wanted).encode() + b"\n"
    lines = git(repository, "cat-file", "--batch-check=%(objectname)", stdin=text).splitlines()
    return {line.split()[0] for line in lines if line.endswith(" missing")}
