"""A repository on this disk: its commits, files, changes, branches and merges.

Trees never change, so that the file lists of the last ones are remembered.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO, NamedTuple

from caloron.errors import CaloronError
from caloron.git.command import (
    IDENTITY,
    GitError,
    git_environment,
    git_process,
    is_commit_id,
    retry_on_lock,
    start_git,
)
from caloron.git.objects import ObjectReader
from caloron.store import log

#: A file or folder takes at least one block, however small it is.
_BLOCK = 4096
MERGE_TREE = ("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z")
_REMEMBERED_TREES = 8
_CONFLICT_MARKERS = r"^(<<<<<<<|>>>>>>>) "


class TooLarge(CaloronError):
    """A commit whose files would take more disk than is allowed."""


class Commit(NamedTuple):
    """The fields of a commit that callers use."""

    parents: tuple[str, ...]
    committer: str
    email: str
    subject: str


@dataclass(frozen=True)
class Size:
    """The number of files and lines that a change touches."""

    files: int
    added: int
    removed: int


class MergedTree(NamedTuple):
    """The tree of a merge, and the files in conflict; None: there is no conflict."""

    tree: str
    conflicts: tuple[str, ...] | None


class Files(NamedTuple):
    """The files of a commit."""

    #: Paths with the ids of their content; submodules among them.
    ids: dict[str, str]
    submodules: tuple[str, ...]
    disk_bytes: int


class Repository:
    """Runs git in one repository, with our own settings only."""

    def __init__(
        self, path: Path, identity: tuple[str, str] = IDENTITY, options: Sequence[str] = ()
    ) -> None:
        self.path = path
        self.objects = ObjectReader(path, options)
        self._options = tuple(options)
        self._identity = identity
        self._files: OrderedDict[str, Files] = OrderedDict()
        self._files_lock = threading.Lock()
        self._last_merge: tuple[tuple[str, ...], MergedTree | None] = ((), None)

    def close(self) -> None:
        self.objects.close()

    def process(
        self, *arguments: str, stdin: bytes | None = None, environment: dict[str, str] | None = None
    ) -> CompletedProcess[bytes]:
        """Run git and return its output and exit code."""
        own = environment or git_environment(self._identity)
        return git_process(self.path, *self._options, *arguments, stdin=stdin, environment=own)

    def failure(self, arguments: Sequence[str], code: int, stderr: str) -> CaloronError:
        """The error for a git command that failed."""
        return GitError(arguments, code, stderr)

    def output(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        ok: tuple[int, ...] = (0,),
        environment: dict[str, str] | None = None,
    ) -> bytes:
        done = self.process(*arguments, stdin=stdin, environment=environment)
        if done.returncode not in ok:
            raise self.failure(arguments, done.returncode, done.stderr.decode("utf-8", "replace"))
        return done.stdout

    def git(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        ok: tuple[int, ...] = (0,),
        environment: dict[str, str] | None = None,
    ) -> str:
        """Run git and return its output as text, without the last newline."""
        printed = self.output(*arguments, stdin=stdin, ok=ok, environment=environment)
        return printed.decode("utf-8", "replace").rstrip("\n")

    def resolve(self, name: str) -> str:
        """The commit that a ref or an abbreviated id stands for."""
        return self._peeled(f"{name}^{{commit}}")

    def tree(self, commit: str) -> str:
        return self._peeled(f"{commit}^{{tree}}")

    def _peeled(self, expression: str) -> str:
        try:
            info = self.objects.info(expression)
        except GitError as error:
            raise self.failure(("cat-file",), error.returncode, error.stderr) from error
        # For an unknown name git itself prints the reason.
        return info.id if info else self.git("rev-parse", "--verify", expression)

    def has(self, commit: str) -> bool:
        try:
            return self.objects.info(f"{commit}^{{commit}}") is not None
        except GitError as error:
            log.debug("a commit cannot be read", error=error, commit=commit)
            return False

    def commit(self, name: str) -> Commit:
        form = "--format=%P%x00%cn%x00%ce%x00%s"
        parents, *fields = self.git("log", "-1", form, f"{name}^{{commit}}", "--").split("\0")
        return Commit(tuple(parents.split()), *fields)

    def parents(self, commit: str) -> tuple[str, ...]:
        return self.commit(commit).parents

    def subject(self, commit: str) -> str:
        """The first line of a commit's message."""
        return self.commit(commit).subject

    def read(self, commit: str, path: str, limit: int = 1 << 20) -> str:
        """The beginning of a file of a commit; empty if there is none."""
        try:
            info = self.objects.info(f"{commit}:{path}")
        except GitError as error:
            log.warning("a file of a commit cannot be read", error=error, commit=commit, path=path)
            return ""
        if info is None or info.type != "blob":
            return ""
        with start_git(self.path, (*self._options, "cat-file", "blob", info.id)) as process:
            assert process.stdout is not None
            data = process.stdout.read(limit)
            process.kill()
        if len(data) < min(info.size, limit):
            log.warning("a file of a commit is damaged", commit=commit, path=path)
        return data.decode("utf-8", "replace")

    def files(self, commit: str, limit: int | None = None) -> dict[str, str]:
        """The files of a commit with the ids of their content; submodules among them.

        `TooLarge` if a checkout would take more than `limit` bytes.
        """
        return self._listing(commit, limit).ids

    def submodules(self, commit: str) -> tuple[str, ...]:
        return self._listing(commit, None).submodules

    def _listing(self, commit: str, limit: int | None) -> Files:
        # Commits with the same files are frequent: a merge of a change that is on top of main.
        tree = self.tree(commit)
        with self._files_lock:
            files = self._files.get(tree)
        if files is None or (limit is not None and files.disk_bytes > limit):
            files = list_files(self.path, commit, limit)
            self._remember(tree, files)
        return files

    def _remember(self, tree: str, files: Files) -> None:
        with self._files_lock:
            self._files[tree] = files
            while len(self._files) > _REMEMBERED_TREES:
                self._files.popitem(last=False)

    def conflict_markers(self, commit: str, files: Sequence[str]) -> tuple[str, ...]:
        """Return the files that contain conflict markers in a commit."""
        if not files:
            return ()
        environment = git_environment() | {"GIT_LITERAL_PATHSPECS": "1"}
        search = ("grep", "--text", "-l", "-z", "-E", _CONFLICT_MARKERS, commit, "--", *files)
        printed = self.output(*search, ok=(0, 1), environment=environment)
        names = printed.decode("utf-8", "surrogateescape").split("\0")
        return tuple(name.removeprefix(f"{commit}:") for name in names if name)

    def roots(self, commit: str) -> tuple[str, ...]:
        """The commits that a history began with; none where there is no such commit."""
        if not self.has(commit):
            return ()
        return tuple(self.git("rev-list", "--max-parents=0", commit, "--").split())

    def log(self, commit: str, count: int) -> list[list[str]]:
        """The last commits: abbreviated id, first line, author and day of each."""
        form = "--format=%h%x00%s%x00%an%x00%as"
        lines = self.git("log", f"-{count}", "--abbrev=8", form, commit).splitlines()
        return [line.split("\0") for line in lines]

    def merge_base(self, a: str, b: str) -> str:
        """The newest commit that both have; empty if there is none."""
        return self.git("merge-base", a, b, ok=(0, 1, 128))

    def commits_ahead(self, base: str, head: str) -> int:
        """The number of commits that `head` has and `base` has not."""
        return int(self.git("rev-list", "--count", f"{base}..{head}"))

    def is_ancestor(self, a: str, b: str) -> bool:
        """True if everything in `a` is in `b`."""
        if a == b and self.has(a):
            return True
        arguments = ("merge-base", "--is-ancestor", a, b)
        done = self.process(*arguments)
        if done.returncode not in (0, 1):
            stderr = done.stderr.decode("utf-8", "replace")
            raise self.failure(arguments, done.returncode, stderr)
        return done.returncode == 0

    def diff(self, base: str, head: str, limit: int = 200_000) -> str:
        """The changes of `head` since it left `base`; of a long diff the beginning and the end."""
        options = ("--no-color", "--no-ext-diff", "--no-textconv", "--find-renames")
        # Commits without a common history are compared with each other.
        for revisions in (f"{base}...{head}", f"{base}..{head}"):
            arguments = ("-c", "core.quotePath=false", "diff", *options, revisions, "--")
            with start_git(self.path, (*self._options, *arguments)) as process:
                assert process.stdout is not None
                text = _clipped(process.stdout, limit)
            if process.returncode == 0:
                return text
        raise GitError(("diff", revisions), process.returncode, "is one of the commits missing?")

    def size(self, base: str, head: str) -> Size:
        """The size of the changes of `head` since it left `base`."""
        options = ("--no-ext-diff", "--no-textconv", "--no-renames", "--numstat", "-z")
        return parse_numstat(self.git("diff", *options, "--merge-base", base, head, "--"))

    def merge_tree(self, base: str, head: str, *options: str) -> MergedTree:
        """Merge two commits without a work tree; the result of the last pair is remembered."""
        arguments = (*MERGE_TREE, *options, base, head)
        last, merged = self._last_merge
        if last == arguments and merged is not None:
            return merged
        done = self.process(*arguments)
        merged = parse_merge_tree(done)
        if merged is None:
            stderr = done.stderr.decode("utf-8", "replace")
            raise self.failure(arguments, done.returncode, stderr)
        if is_commit_id(base) and is_commit_id(head):
            self._last_merge = (arguments, merged)
        return merged

    def commit_tree(
        self,
        tree: str,
        parents: Iterable[str],
        message: str,
        environment: dict[str, str] | None = None,
    ) -> str:
        """Create a commit that is on no branch yet."""
        named = [option for parent in parents for option in ("-p", parent)]
        text = message.encode("utf-8", "replace")
        arguments = ("commit-tree", tree, *named, "-F", "-")
        return self.git(*arguments, stdin=text, environment=environment)

    def commit_readme(self, text: str, environment: dict[str, str] | None = None) -> str:
        """Create the first commit of a repository: nothing but a README."""
        blob = self.git("hash-object", "-w", "--stdin", stdin=text.encode())
        tree = self.git("mktree", stdin=f"100644 blob {blob}\tREADME.md\n".encode())
        return self.commit_tree(tree, (), "Start of the project", environment)

    def keep(self, ref: str, commit: str) -> None:
        """Point a ref to a commit, so that the commit can be found and is never lost."""
        retry_on_lock(self.path, lambda: self.git("update-ref", ref, commit))

    def newest_numbered(self, prefix: str) -> str:
        """The commit of the ref below `prefix` with the highest number; empty if there is none."""
        listed = self.git("for-each-ref", "--format=%(refname) %(objectname)", prefix)
        refs = [line.split() for line in listed.splitlines()]
        numbered = [(int(name.rpartition("/")[2]), commit) for name, commit in refs]
        return max(numbered, default=(0, ""))[1]


def parse_merge_tree(done: CompletedProcess[bytes]) -> MergedTree | None:
    """Read the result of `git merge-tree`; None: it failed."""
    # An unknown commit ends with 1 as a conflict does, but prints no tree.
    if done.returncode not in (0, 1) or not done.stdout:
        return None
    tree, *files = done.stdout.decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
    return MergedTree(tree, tuple(dict.fromkeys(files)) if done.returncode == 1 else None)


def parse_numstat(output: str) -> Size:
    """Read the output of `--numstat -z`; lines of binary files do not count."""
    rows = [line.split("\t")[:2] for line in output.split("\0") if line]
    added = sum(int(count) for count, _ in rows if count != "-")
    removed = sum(int(count) for _, count in rows if count != "-")
    return Size(len(rows), added, removed)


def printable_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of files as text: git allows bytes that are none, and we carry those as surrogates."""
    return tuple(
        name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        for name in names
    )


def list_files(
    repository: Path,
    commit: str,
    limit: int | None,
    environment: dict[str, str] | None = None,
    errors: str = "replace",
) -> Files:
    """List the files of a commit, or raise `TooLarge`.

    A few objects can stand for any number of files, so the listing ends as soon as it is too long.
    """
    form = "--format=%(objectmode) %(objectname) %(objectsize)%x09%(path)"
    arguments = ("ls-tree", "-r", "-t", "-z", "--full-tree", form, commit)
    used, count, rest = 0, 0, b""
    ids: dict[str, str] = {}
    submodules: list[str] = []
    with start_git(repository, arguments, environment) as process:
        assert process.stdout is not None
        while limit is None or used <= limit:
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                break
            *entries, rest = (rest + chunk).split(b"\0")
            count += len(entries)
            for entry in entries:
                about, _, path = entry.partition(b"\t")
                mode, name, size = about.split()
                used += max(_BLOCK, int(size)) if size.isdigit() else _BLOCK
                if mode == b"040000":
                    continue
                text = path.decode("utf-8", errors)
                ids[text] = name.decode()
                if mode == b"160000":
                    submodules.append(text)
        if limit is not None and used > limit:
            process.kill()
    if limit is not None and used > limit:
        raise TooLarge(
            f"the files of {commit[:10]} take more than {limit >> 20} MB on disk: at least"
            f" {count} files and folders with {used >> 20} MB",
            hint="keep build results and large data out of the repository, or raise disk_mb",
        )
    if process.returncode != 0:
        raise GitError(arguments, process.returncode, "is the commit missing?")
    return Files(ids, tuple(submodules), used)


def _clipped(stream: IO[bytes], limit: int) -> str:
    """The text of a stream; of a long stream the first and the last half of `limit` bytes."""
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
