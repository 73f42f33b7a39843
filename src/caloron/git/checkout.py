"""The user's own repository: its state, and finished work on its way into a branch.

Git runs here with the user's own configuration: it is their repository, their identity and their
rules for what is ignored. Nothing is ever forced, and a preview writes nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

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
#: The lines that name what a commit was made of: everything up to a commit, or one change.
SQUASHED, PICKED = "Caloron-Applied: ", "(cherry picked from commit "
_SQUASHED = re.compile(f"^{SQUASHED}([0-9a-f]{{40,64}})$", re.MULTILINE)
_PICKED = re.compile(rf"^{re.escape(PICKED)}([0-9a-f]{{40,64}})\)$", re.MULTILINE)
CO_AUTHOR = "Co-authored-by"
#: The author of commits that only a preview needs.
_PREVIEWER = {
    f"GIT_{role}_{field}": "caloron"
    for role in ("AUTHOR", "COMMITTER")
    for field in ("NAME", "EMAIL")
}
#: A squash is looked for among so many of the user's own commits.
_SEARCHED = 500


@dataclass(frozen=True)
class Uncommitted:
    """Files whose state is in no commit."""

    changed: tuple[str, ...]
    untracked: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.changed) + len(self.untracked)


@dataclass(frozen=True)
class Wanted:
    """A commit of another repository, and the form in which a branch is to get it."""

    source: Path
    commit: str
    #: A ref of the source that contains the commit.
    ref: str
    #: The branch that gets it; empty: the one that is checked out.
    branch: str = ""
    #: One commit with all changes, instead of the commits themselves.
    squash: bool = False
    #: One commit with only what was changed since this commit.
    since: str = ""


How = Literal["nothing", "create", "fast-forward", "merge", "squash", "pick"]


@dataclass(frozen=True)
class Preview:
    """What a branch would get, computed without changing anything."""

    wanted: Wanted
    branch: str
    #: The tip of the branch; empty: there is no such branch yet.
    old: str
    #: True if the branch is checked out here, so that files change.
    here: bool
    how: How = "nothing"
    #: The commit below a new one, and what both sides of it are compared with.
    parent: str = ""
    base: str = ""
    commits: int = 0
    size: Size = field(default=Size(0, 0, 0))
    #: The messages of what was merged, newest first, and the agents that share in it.
    messages: tuple[str, ...] = ()
    co_authors: tuple[str, ...] = ()

    @property
    def makes_commit(self) -> bool:
        """True if one new commit has all the changes."""
        return self.how in ("squash", "pick")


class Checkout:
    """A work tree of the user's, with the branch that is checked out in it."""

    def __init__(self, top: Path, environment: dict[str, str] | None = None) -> None:
        self.top = top
        self._environment = environment or {}

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

    def contains(self, source: Path, *commits: str, tip: str = "HEAD") -> bool:
        """True if a branch has these commits of a repository, or commits made of them.

        False where git fails.
        """
        with self._with_objects_of(source) as both:
            return both._contains(tip, *commits)

    def _contains(self, tip: str, *commits: str) -> bool:
        done = self.process("rev-list", "--count", *commits, "--not", tip)
        if done.returncode != 0 or done.stdout.strip() == b"0":
            return done.returncode == 0
        squashed, picked = self._applied(tip, *commits)
        rest = [commit for commit in commits if commit not in picked]
        done = self.process("rev-list", "--count", *rest, "--not", *squashed[:1])
        return not rest or (bool(squashed) and done.stdout.strip() == b"0")

    def _applied(self, tip: str, *theirs: str) -> tuple[list[str], list[str]]:
        """The commits that own commits name as squashed, the last one first, and as picked.

        A line in a commit of the project itself means nothing: an agent may have written it.
        """
        own = self.process("log", f"-{_SEARCHED}", "--format=%B", tip, "--not", *theirs)
        lines = _text(own.stdout) if own.returncode == 0 else ""
        return _SQUASHED.findall(lines), _PICKED.findall(lines)

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

    def preview(self, wanted: Wanted) -> Preview:
        """Compute what the branch would get; refuse if that is not possible."""
        branch, old, here = self.target(wanted.branch)
        start = Preview(wanted, branch, old, here, parent=old or self.head())
        with self._with_objects_of(wanted.source) as both:
            preview = both._compared(start)
            if preview.how == "nothing":
                return preview
            tree = both._tree(preview)
            own = both._git("rev-parse", f"{preview.parent}^{{tree}}")
            if preview.makes_commit and tree == own:
                return replace(preview, how="nothing", commits=0)
            if preview.here:
                both._refuse_overwriting(preview.old, tree)
            diff = ("diff-tree", "-r", "-z", "--no-renames", "--numstat", preview.parent, tree)
            return replace(preview, size=parse_numstat(both._git(*diff)))

    def target(self, name: str) -> tuple[str, str, bool]:
        """The branch that gets the work, its tip, and whether it is checked out here."""
        self.require()
        if not name or name == self.branch():
            return self.refuse_unready(), self.head(), True
        ref = f"refs/heads/{name}"
        if name.startswith("-") or self.process("check-ref-format", ref).returncode != 0:
            raise UsageError(f"{name!r} cannot be the name of a branch", hint="choose another name")
        worktrees = self._git("worktree", "list", "--porcelain", "-z").split("\0\0")
        for worktree in worktrees:
            if f"branch {ref}" in worktree.split("\0"):
                place = worktree.partition("\0")[0].removeprefix("worktree ")
                raise PreconditionFailed(
                    f"branch {name} is checked out in {place}",
                    hint=f"run this in {shlex.quote(place)}, or choose another name",
                )
        old = self._git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", ok=(0, 1, 128))
        return name, old, False

    def _compared(self, preview: Preview) -> Preview:
        """Compare the branch with what it is to get."""
        wanted, old, parent = preview.wanted, preview.old, preview.parent
        commit = wanted.commit
        base = wanted.since or self._base(parent, commit, squash=wanted.squash)
        how: How = "pick" if wanted.since else "squash"
        if not (wanted.since or wanted.squash):
            how = "create" if not old else "fast-forward" if base == old else "merge"
        has_it = base == commit or (wanted.since and self._contains(parent, commit))
        if has_it and how != "create":
            return preview
        if how == "merge" and not preview.here:
            self._refuse_own_commits(preview.branch)
        range_ = (commit, "--not", wanted.since or parent, base)
        log = ("-c", "log.showSignature=false", "log")
        messages = self._git(*log, "--first-parent", "--format=%B%x00", *range_).split("\0")
        authors = f"--format=%(trailers:key={CO_AUTHOR},valueonly,unfold)"
        return replace(
            preview,
            how=how,
            base=base,
            commits=int(self._git("rev-list", "--count", *range_)),
            messages=tuple(message.strip() for message in messages if message.strip()),
            co_authors=tuple(dict.fromkeys(self._git(*log, authors, *range_).split("\n"))),
        )

    def _base(self, ours: str, theirs: str, *, squash: bool) -> str:
        """The last commit whose work both have; after a squash, the one that was squashed."""
        done = self.process("merge-base", ours, theirs)
        if done.returncode != 0:
            raise PreconditionFailed(
                f"your branch in {self.top} has no commit in common with the project",
                hint="check out the branch that the project was made from",
            )
        for last in self._applied(ours, theirs)[0] if squash else ():
            if self.process("merge-base", "--is-ancestor", last, theirs).returncode == 0:
                return last
        return _text(done.stdout)

    def apply(self, preview: Preview, message: str) -> str:
        """Do what was previewed; returns the new tip of the branch."""
        wanted = preview.wanted
        self._git("fetch", "--quiet", "--no-tags", "--no-write-fetch-head",
                  "--no-recurse-submodules", "--update-shallow", str(wanted.source.resolve()),
                  wanted.ref)  # fmt: skip
        if preview.how == "merge":
            self._merge(preview.branch, "--no-ff", "-m", message, wanted.commit)
            return self.head()
        commit = self._commit(preview, message) if preview.makes_commit else wanted.commit
        if preview.here:
            self._merge(preview.branch, "--ff-only", commit)
        else:
            self._move(preview.branch, preview.old, commit)
        return commit

    def undo(self, preview: Preview) -> str:
        """The command that takes back what was applied."""
        git, branch = f"git -C {shlex.quote(str(self.top))}", shlex.quote(preview.branch)
        if preview.here:
            return f"{git} reset --keep {preview.old[:12]}"
        if preview.old:
            return f"{git} branch --force {branch} {preview.old[:12]}"
        return f"{git} branch -D {branch}"

    def check_out(self, preview: Preview) -> None:
        """Create or fast-forward a branch and switch to it; all of that or nothing is done."""
        wanted = preview.wanted
        if preview.how == "merge":
            self._refuse_own_commits(preview.branch)
        if not preview.here:
            self.refuse_unready()
            with self._with_objects_of(wanted.source) as both:
                tip = preview.old if preview.how == "nothing" else wanted.commit
                both._refuse_overwriting(self.head(), tip)
        if preview.how != "nothing":
            self.apply(preview, "")
        if not preview.here:
            options = ("-c", "submodule.recurse=false", *self._without_hooks_of_the_project())
            switch = ("switch", "--quiet", "--no-overwrite-ignore", preview.branch)
            self._refuse_failure(self.process(*options, *switch), "did not check it out")

    def _refuse_own_commits(self, branch: str) -> None:
        raise PreconditionFailed(
            f"branch {branch} has commits that the project does not have",
            hint=f"choose a new branch, or merge there yourself: git switch {shlex.quote(branch)}",
        )

    def _merge(self, branch: str, *how: str) -> None:
        options = ("-c", "submodule.recurse=false", *self._without_hooks_of_the_project())
        done = self.process(*options, "merge", "--quiet", "--no-stat", "--no-autostash", *how)
        if done.returncode != 0 and self._git(
            "rev-parse", "--verify", "--quiet", "MERGE_HEAD", ok=(0, 1, 128)
        ):
            self.process("merge", "--abort")
        self._refuse_failure(done, f"did not merge into {branch}")

    def _move(self, branch: str, old: str, commit: str) -> None:
        """Create a branch, or move it if it is still at the old commit."""
        ref, before = f"refs/heads/{branch}", old or "0" * len(commit)
        done = self.process("update-ref", "-m", "caloron", ref, commit, before)
        self._refuse_failure(done, f"did not change branch {branch}")

    def _refuse_failure(self, done: subprocess.CompletedProcess[bytes], what: str) -> None:
        if done.returncode != 0:
            reason = complaint(_text(done.stderr) or _text(done.stdout))
            raise PreconditionFailed(
                f"git {what}: {reason}",
                hint="fix that, then try again; the branch is as it was",
            )

    def _commit(self, preview: Preview, message: str) -> str:
        """Create the one commit of a squash or of a task, in the user's name."""
        signed = self._git("config", "--type=bool", "--get", "commit.gpgSign", ok=(0, 1)) == "true"
        sign = ("-S",) if signed else ()
        tree = self._tree(preview)
        return self._git("commit-tree", *sign, "-p", preview.parent, "-m", message, tree)

    def _without_hooks_of_the_project(self) -> tuple[str, ...]:
        """Disable hooks that are files of the project: the merge may change them."""
        hooks = Path(self.top, self._git("rev-parse", "--git-path", "hooks")).resolve()
        inside = hooks.is_relative_to(self.top.resolve())
        private = Path(self.top, self._git("rev-parse", "--git-common-dir")).resolve()
        versioned = inside and not hooks.is_relative_to(private)
        return ("-c", "core.hooksPath=/dev/null") if versioned else ()

    def _tree(self, preview: Preview) -> str:
        """The files of the branch afterwards; refused if both sides changed the same lines."""
        wanted, pair = preview.wanted, (preview.parent, preview.wanted.commit)
        if not (preview.makes_commit or preview.how == "merge"):
            return wanted.commit
        if self.process("var", "GIT_COMMITTER_IDENT").returncode != 0:
            raise PreconditionFailed(
                "git does not know who you are, and this makes a commit of yours",
                hint='git config --global user.name "…" and user.email "…", then try again',
            )
        if preview.makes_commit:
            # Git compares two commits with the one below both.
            pair = (self._on_top_of(preview.base, pair[0]), self._on_top_of(preview.base, pair[1]))
        done = self.process(*MERGE_TREE, *pair)
        merged = parse_merge_tree(done)
        if merged is None:
            raise GitError(MERGE_TREE, done.returncode, _text(done.stderr))
        if merged.conflicts is not None:
            self._refuse_conflict(preview, merged.conflicts)
        return merged.tree

    def _on_top_of(self, base: str, commit: str) -> str:
        """A commit with the same files and another parent."""
        own = Checkout(self.top, self._environment | _PREVIEWER)
        return own._git("commit-tree", "-p", base, "-m", "Preview", f"{commit}^{{tree}}")

    def _refuse_conflict(self, preview: Preview, files: tuple[str, ...]) -> None:
        git, wanted = ("git", "-C", str(self.top)), preview.wanted
        source, branch = str(wanted.source), wanted.ref.removeprefix("refs/heads/")
        if preview.how == "pick":
            fetch = shlex.join((*git, "fetch", source, branch))
            by_hand = f"{fetch} && {shlex.join((*git, 'cherry-pick', '-m', '1', wanted.commit))}"
        else:
            squash = ("--squash",) if wanted.squash else ()
            by_hand = shlex.join((*git, "pull", "--no-rebase", *squash, source, branch))
        raise PreconditionFailed(
            f"your branch and what was merged conflict in {_some(files)}",
            hint=f"nothing was changed; settle it yourself: {by_hand}",
        )

    def _refuse_overwriting(self, old: str, tree: str) -> None:
        """Refuse to overwrite files that are in no commit; git would overwrite ignored ones."""
        options = ("-r", "-z", "--no-renames", "--name-status")
        listed = self._git("diff-tree", *options, old, tree)
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

    def process(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        return _git(self.top, args, self._environment)

    def _git(self, *args: str, ok: tuple[int, ...] = (0,)) -> str:
        done = self.process(*args)
        if done.returncode not in ok:
            raise GitError(args, done.returncode, _text(done.stderr))
        return _text(done.stdout)

    @contextmanager
    def _with_objects_of(self, source: Path) -> Iterator[Checkout]:
        """The same work tree with the objects of both repositories; new ones are temporary."""
        own = Path(self.top, self._git("rev-parse", "--git-path", "objects")).resolve()
        with tempfile.TemporaryDirectory(prefix="caloron-preview-") as temporary:
            folders = [Path(temporary, name) for name in ("own", "source")]
            for link, objects in zip(folders, (own, source / "objects"), strict=True):
                # A path with a colon in it could not stand in the list.
                link.symlink_to(objects)
            (new := Path(temporary, "new")).mkdir()
            environment = {
                "GIT_OBJECT_DIRECTORY": str(new),
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(map(str, folders)),
            }
            yield Checkout(self.top, self._environment | environment)


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
