"""What the commits of a repository say: files, changes, how they stand to each other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from caloron.errors import CaloronError
from caloron.git.command import GitError, git, git_argv, git_environment, git_process
from caloron.store import log

#: A file or folder takes at least one block, however small it is.
_BLOCK = 4096
_MARKERS = r"^(<<<<<<<|>>>>>>>) "


class TooLarge(CaloronError):
    """A commit whose files would take more disk than is allowed."""


@dataclass(frozen=True)
class Size:
    """How much a change changes."""

    files: int
    added: int
    removed: int


def shown(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of files as text: git allows bytes that are none, and we carry those as surrogates."""
    return tuple(
        name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        for name in names
    )


class Commits:
    """A repository of ours, to look at."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def parents(self, commit: str) -> tuple[str, ...]:
        return tuple(self._git("show", "--no-patch", "--format=%P", commit).split())

    def roots(self, commit: str) -> tuple[str, ...]:
        """The commits that its history began with; none where there is no such commit."""
        try:
            return tuple(self._git("rev-list", "--max-parents=0", commit, "--").split())
        except GitError as error:
            log.debug("a commit is not there", error=error, commit=commit)
            return ()

    def subject(self, commit: str) -> str:
        """The first line of a commit's message."""
        return self._git("show", "--no-patch", "--format=%s", commit)

    def diff(self, base: str, head: str, limit: int = 200_000) -> str:
        """What `head` changed since it left `base`, with the middle of a long one left out."""
        related = git_process(self.path, "merge-base", base, head).returncode == 0
        range_ = f"{base}...{head}" if related else f"{base}..{head}"
        options = ("--no-color", "--no-ext-diff", "--no-textconv", "--find-renames")
        argv = git_argv(self.path, ("-c", "core.quotePath=false", "diff", *options, range_, "--"))
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=git_environment(),
            process_group=0,
        ) as process:
            assert process.stdout is not None
            text = _clipped(process.stdout, limit)
        if process.returncode != 0:
            raise GitError(("diff", range_), process.returncode, "is one of the commits missing?")
        return text

    def size(self, base: str, head: str) -> Size:
        """How much `head` changed since it left `base`; lines of binary files do not count."""
        options = ("--no-ext-diff", "--no-textconv", "--no-renames", "--numstat", "-z")
        listed = self._git("diff", *options, "--merge-base", base, head, "--")
        rows = [line.split("\t")[:2] for line in listed.split("\0") if line]
        return Size(
            len(rows),
            sum(int(added) for added, _ in rows if added != "-"),
            sum(int(removed) for _, removed in rows if removed != "-"),
        )

    def files(self, commit: str) -> dict[str, str]:
        """The files of a commit with git's names of their content; submodules among them."""
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", commit)
        entries = (line.partition("\t") for line in listed.split("\0") if line)
        return {path: about.split()[2] for about, _, path in entries}

    def log(self, commit: str, count: int) -> list[list[str]]:
        """The last commits: abbreviated id, first line, author and day of each."""
        form = "--format=%h%x00%s%x00%an%x00%as"
        lines = self._git("log", f"-{count}", "--abbrev=8", form, commit).splitlines()
        return [line.split("\0") for line in lines]

    def submodules(self, commit: str) -> list[str]:
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", commit)
        entries = (line.partition("\t") for line in listed.split("\0") if line)
        return [path for about, _, path in entries if about.startswith("160000")]

    def read(self, commit: str, path: str, limit: int = 1 << 20) -> str:
        """The beginning of a file of a commit; empty if there is none."""
        done = git_process(self.path, "cat-file", "blob", f"{commit}:{path}")
        return done.stdout[:limit].decode("utf-8", "replace") if done.returncode == 0 else ""

    def marked(self, commit: str, files: Sequence[str]) -> tuple[str, ...]:
        """Those of the files that hold conflict markers in a commit."""
        if not files:
            return ()
        environment = git_environment() | {"GIT_LITERAL_PATHSPECS": "1"}
        search = ("grep", "--text", "-l", "-z", "-E", _MARKERS, commit, "--", *files)
        done = git_process(self.path, *search, environment=environment)
        if done.returncode not in (0, 1):
            raise GitError(search, done.returncode, done.stderr.decode("utf-8", "replace"))
        found = done.stdout.decode("utf-8", "surrogateescape").split("\0")
        return tuple(name.removeprefix(f"{commit}:") for name in found if name)

    def newest(self, prefix: str) -> str:
        """The commit of the ref below `prefix` with the highest number; empty if there is none."""
        listed = self._git("for-each-ref", "--format=%(refname) %(objectname)", prefix)
        refs = [line.split() for line in listed.splitlines()]
        numbered = [(int(name.rpartition("/")[2]), commit) for name, commit in refs]
        return max(numbered, default=(0, ""))[1]

    def merge_base(self, a: str, b: str) -> str:
        """The newest commit that both have; empty if there is none."""
        return git(self.path, "merge-base", a, b, check=False)

    def ahead(self, base: str, head: str) -> int:
        """How many commits `head` has that `base` has not."""
        return int(self._git("rev-list", "--count", f"{base}..{head}"))

    def is_ancestor(self, a: str, b: str) -> bool:
        """Whether everything in `a` is in `b`."""
        done = git_process(self.path, "merge-base", "--is-ancestor", a, b)
        if done.returncode not in (0, 1):
            raise GitError(
                ("merge-base", "--is-ancestor", a, b),
                done.returncode,
                done.stderr.decode("utf-8", "replace"),
            )
        return done.returncode == 0

    def tree(self, commit: str) -> str:
        return self._git("rev-parse", "--verify", f"{commit}^{{tree}}")

    def resolve(self, name: str) -> str:
        """The commit that a ref or an abbreviated id stands for."""
        return self._git("rev-parse", "--verify", f"{name}^{{commit}}")

    def has(self, commit: str) -> bool:
        return has(self.path, commit)

    def _git(self, *args: str) -> str:
        return git(self.path, *args)


def has(repository: Path, commit: str) -> bool:
    return git_process(repository, "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0


def refuse_large(
    repository: Path, commit: str, limit: int, environment: dict[str, str] | None = None
) -> None:
    """Refuse a commit that would take more than `limit` bytes when it is checked out.

    A few objects can stand for any number of files, so the listing ends as soon as it is too long.
    """
    listed = ("ls-tree", "-r", "-t", "-z", "--format=%(objectsize)", "--full-tree", commit)
    used, entries, rest = 0, 0, b""
    with subprocess.Popen(
        git_argv(repository, listed),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment or git_environment(),
        process_group=0,
    ) as process:
        assert process.stdout is not None
        while used <= limit and (chunk := os.read(process.stdout.fileno(), 1 << 16)):
            *sizes, rest = (rest + chunk).split(b"\0")
            entries += len(sizes)
            used += sum(max(_BLOCK, int(size)) if size.isdigit() else _BLOCK for size in sizes)
        if used > limit:
            process.kill()
    if used > limit:
        raise TooLarge(
            f"the files of {commit[:10]} take more than {limit >> 20} MB on disk: at least"
            f" {entries} files and folders with {used >> 20} MB",
            hint="keep build results and large data out of the repository, or raise disk_mb",
        )
    if process.returncode != 0:
        raise GitError(listed, process.returncode, "is the commit missing?")


def _clipped(stream: IO[bytes], limit: int) -> str:
    """The text of a stream; of a long one its first and its last half of `limit` bytes."""
    head = stream.read(limit)
    tail = b""
    total = len(head)
    while chunk := stream.read(1 << 20):
        total += len(chunk)
        tail = (tail + chunk)[-(limit // 2) :]
    if total <= limit:
        return head.decode("utf-8", "replace")
    tail = (head + tail)[-(limit // 2) :]
    head = head[: limit // 2]
    omitted = total - len(head) - len(tail)
    note = f"\n[... {omitted} bytes of this diff left out ...]\n"
    return head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")
