"""The user's own repository as it is checked out: its state, and merges of finished work into it.

Git runs here with the user's own configuration: it is their repository, their identity and their
rules for what is ignored. Nothing is ever forced, and a preview writes nothing.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from caloron.errors import NotFound, PreconditionFailed, UsageError
from caloron.git.command import GitError, complaint, refuse_newer_format
from caloron.git.repository import (
    MERGE_TREE,
    Size,
    parse_merge_tree,
    parse_numstat,
    printable_names,
)

#: Variables that would send git to another repository.
_ELSEWHERE = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
)  # fmt: skip
_IN_THE_MIDDLE = {
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisection",
}


@dataclass(frozen=True)
class Uncommitted:
    """Files whose state is in no commit."""

    changed: tuple[str, ...]
    untracked: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.changed) + len(self.untracked)


@dataclass(frozen=True)
class MergePreview:
    """The result of a merge, computed without changing anything."""

    branch: str
    old: str
    new: str
    #: `nothing`: the branch has it all; `fast-forward`: it has nothing else; `merge`: both went on.
    how: str
    commits: int
    size: Size
    #: The first lines of what was merged, newest first.
    changes: tuple[str, ...] = ()


class Checkout:
    """A work tree of the user's, with the branch that is checked out in it."""

    def __init__(self, top: Path) -> None:
        self.top = top

    @classmethod
    def around(cls, folder: Path) -> Checkout | None:
        """The work tree that a folder is in; None outside of any repository."""
        done = _git(folder, ("rev-parse", "--show-toplevel"))
        if done.returncode == 0:
            return cls(Path(os.fsdecode(done.stdout.removesuffix(b"\n"))))
        stderr = _text(done.stderr)
        refuse_newer_format(folder, stderr)
        inside = _git(folder, ("rev-parse", "--absolute-git-dir"))
        if inside.returncode == 0:
            raise PreconditionFailed(
                f"{folder} is the inside of a repository, or a bare one: nothing is checked out",
                hint="go to a work tree of it, or: caloron init NAME --repo PATH",
            )
        if "dubious ownership" in stderr:
            raise PreconditionFailed(f"git does not look into {folder}: {stderr}")
        return None

    def require(self) -> None:
        """Refuse a folder that is not a work tree any more."""
        checkout = Checkout.around(self.top) if self.top.is_dir() else None
        if checkout is None:
            raise NotFound(
                f"{self.top} is not a git repository (any more)",
                hint="say where yours is: caloron config set repo PATH",
            )

    def head(self) -> str:
        """The commit that is checked out; refused where there is none yet."""
        commit = self._git("rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok=(0, 1, 128))
        if not commit:
            raise PreconditionFailed(
                f"{self.top} has no commit yet, so there is nothing to begin from",
                hint="commit something there first, if only: git commit --allow-empty -m start",
            )
        return commit

    def branch(self) -> str:
        """The branch that is checked out; empty when it is a commit without one."""
        return self._git("symbolic-ref", "--quiet", "--short", "HEAD", ok=(0, 1))

    def uncommitted(self) -> Uncommitted:
        """Changes that are in no commit; ignored files do not count."""
        listed = self._git("--no-optional-locks", "status", "--porcelain=v1", "-z", "-uall")
        changed: list[str] = []
        untracked: list[str] = []
        entries = iter(listed.split("\0"))
        for entry in entries:
            if not entry:
                continue
            (untracked if entry.startswith("??") else changed).append(entry[3:])
            if "R" in entry[:2] or "C" in entry[:2]:
                changed.append(next(entries))
        return Uncommitted(tuple(changed), tuple(untracked))

    def contains(self, *commits: str) -> bool:
        """True if HEAD contains all these commits; False where git fails."""
        done = _git(self.top, ("rev-list", "--count", *commits, "--not", "HEAD"))
        return done.returncode == 0 and done.stdout.strip() == b"0"

    def refuse_unready(self) -> str:
        """The branch to merge into; refused while another operation is unfinished there."""
        self.require()
        for file, operation in _IN_THE_MIDDLE.items():
            if Path(self.top, self._git("rev-parse", "--git-path", file)).exists():
                raise PreconditionFailed(
                    f"{self.top} is in the middle of {operation}",
                    hint="finish or abort that first; nothing was changed",
                )
        branch = self.branch()
        if not branch:
            raise PreconditionFailed(
                f"no branch is checked out in {self.top}, only a commit",
                hint="check out the branch that shall have it: git switch BRANCH",
            )
        self.head()
        return branch

    def preview_merge(self, source: Path, commit: str, main: str = "main") -> MergePreview:
        """Preview a merge of `commit` of the repository `source`; refuse if it is not possible."""
        branch, old = self.refuse_unready(), self.head()
        with _combined_objects(self._objects(), source / "objects") as environment:
            base = self._git("merge-base", old, commit, ok=(0, 1), environment=environment)
            if not base:
                raise PreconditionFailed(
                    f"{branch} in {self.top} has no commit in common with the project",
                    hint="check out the branch that the project was made from",
                )
            if base == commit:
                return MergePreview(branch, old, commit, "nothing", 0, Size(0, 0, 0))
            ahead = base != old
            by_hand = ("git", "-C", str(self.top), "pull", "--no-rebase", str(source), main)
            tree = self._merged_tree(old, commit, by_hand, environment) if ahead else commit
            self._refuse_overwriting(old, tree, environment)
            counted = self._git("rev-list", "--count", f"{old}..{commit}", environment=environment)
            size = parse_numstat(
                self._git("diff-tree", "-r", "-z", "--no-renames", "--numstat", old, tree,
                          environment=environment)
            )  # fmt: skip
            merged = self._git(
                "-c", "log.showSignature=false", "log", "--first-parent", "--format=%s",
                f"{old}..{commit}", environment=environment,
            )  # fmt: skip
        how = "merge" if ahead else "fast-forward"
        changes = tuple(merged.splitlines())
        return MergePreview(branch, old, commit, how, int(counted), size, changes)

    def apply(self, source: Path, preview: MergePreview, message: str, main: str = "main") -> str:
        """Merge as previewed into the branch that is checked out, and return the new commit."""
        self._git("fetch", "--quiet", "--no-tags", "--no-write-fetch-head",
                  "--no-recurse-submodules", "--update-shallow", str(source.resolve()),
                  f"refs/heads/{main}")  # fmt: skip
        how = ("--ff-only",) if preview.how == "fast-forward" else ("--no-ff", "-m", message)
        options = ("-c", "submodule.recurse=false", *self._without_hooks_of_the_project())
        arguments = ("merge", "--quiet", "--no-stat", "--no-autostash", *how, preview.new)
        done = _git(self.top, (*options, *arguments))
        if done.returncode != 0:
            if self._git("rev-parse", "--verify", "--quiet", "MERGE_HEAD", ok=(0, 1, 128)):
                _git(self.top, ("merge", "--abort"))
            reason = complaint(_text(done.stderr) or _text(done.stdout))
            raise PreconditionFailed(
                f"git did not merge into {preview.branch}: {reason}",
                hint="put that right, then try again; the branch is as it was",
            )
        return self.head()

    def _without_hooks_of_the_project(self) -> tuple[str, ...]:
        """Disable hooks that are files of the project: the merge may change them."""
        hooks = Path(self.top, self._git("rev-parse", "--git-path", "hooks")).resolve()
        inside = hooks.is_relative_to(self.top.resolve())
        private = Path(self.top, self._git("rev-parse", "--git-common-dir")).resolve()
        versioned = inside and not hooks.is_relative_to(private)
        return ("-c", "core.hooksPath=/dev/null") if versioned else ()

    def _objects(self) -> Path:
        return Path(self.top, self._git("rev-parse", "--git-path", "objects")).resolve()

    def _merged_tree(
        self, old: str, commit: str, by_hand: Sequence[str], environment: dict[str, str]
    ) -> str:
        if _git(self.top, ("var", "GIT_COMMITTER_IDENT")).returncode != 0:
            raise PreconditionFailed(
                "git does not know who you are, and a merge is a commit of yours",
                hint='git config --global user.name "…" and user.email "…", then try again',
            )
        done = _git(self.top, (*MERGE_TREE, old, commit), environment)
        merged = parse_merge_tree(done)
        if merged is None:
            raise GitError(MERGE_TREE, done.returncode, _text(done.stderr))
        if merged.conflicts is not None:
            raise PreconditionFailed(
                f"your branch and what was merged conflict in {_some(merged.conflicts)}",
                hint=f"nothing was changed; settle it yourself: {shlex.join(by_hand)}",
            )
        return merged.tree

    def _refuse_overwriting(self, old: str, tree: str, environment: dict[str, str]) -> None:
        """Refuse to overwrite files that are in no commit; git would overwrite ignored ones."""
        options = ("-r", "-z", "--no-renames", "--name-status")
        listed = self._git("diff-tree", *options, old, tree, environment=environment)
        words = listed.split("\0")
        changes = dict(zip(words[1::2], words[::2], strict=False))
        mine = self.uncommitted()
        lost = [name for name in changes if name in {*mine.changed, *mine.untracked}]
        lost += [
            name
            for name, kind in changes.items()
            if kind == "A" and name not in lost and self._in_the_way(name, changes)
        ]
        if lost:
            raise PreconditionFailed(
                f"{_some(tuple(lost))} in {self.top} would change, and what you have there is not "
                "committed",
                hint="commit it, stash it (git stash -u) or move it away; nothing was changed",
            )

    def _in_the_way(self, name: str, changes: dict[str, str]) -> bool:
        """True if a file of the user's is where a new file, or its folder, must go.

        A tracked file that makes room for it is among the changes.
        """
        path = Path(self.top, name)
        for folder in reversed(path.parents):
            below = folder.is_relative_to(self.top) and folder != self.top
            if below and os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
                return str(folder.relative_to(self.top)) not in changes
        if path.is_dir() and not path.is_symlink():
            return not any(other.startswith(f"{name}/") for other in changes)
        return os.path.lexists(path)

    def _git(
        self, *args: str, ok: tuple[int, ...] = (0,), environment: dict[str, str] | None = None
    ) -> str:
        done = _git(self.top, args, environment)
        if done.returncode not in ok:
            raise GitError(args, done.returncode, _text(done.stderr))
        return _text(done.stdout)


@contextmanager
def _combined_objects(*objects: Path) -> Iterator[dict[str, str]]:
    """An environment in which git sees the objects of all these folders and writes to none."""
    with tempfile.TemporaryDirectory(prefix="caloron-preview-") as temporary:
        for number, folder in enumerate(objects):
            # A path with a colon in it could not stand in the list.
            Path(temporary, str(number)).symlink_to(folder)
        (new := Path(temporary, "new")).mkdir()
        yield {
            "GIT_OBJECT_DIRECTORY": str(new),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(
                str(Path(temporary, str(number))) for number in range(len(objects))
            ),
        }


def _git(
    folder: Path, args: Sequence[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the user's git in the user's repository, without a question on the terminal."""
    own = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    own |= {"LC_ALL": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0", "GIT_MERGE_AUTOEDIT": "no"}
    try:
        return subprocess.run(
            ("git", "-C", str(folder), *args),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=own | (environment or {}),
            check=False,
        )
    except ValueError as error:
        raise UsageError(f"{str(folder)!r} is no path: {error}") from error
    except FileNotFoundError as error:
        raise PreconditionFailed("git is not installed", hint="caloron doctor") from error


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape").rstrip("\n")


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(printable_names(names[:5]))
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
