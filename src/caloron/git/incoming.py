"""Takes the commits of an agent into our own repository, after checking them.

The objects stay in a folder beside the mirror until every check has passed, so that nothing of a
refused bundle remains. No check runs in the agent's repository, where its own settings apply.
"""

from __future__ import annotations

import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO

import msgspec

from caloron.errors import CaloronError
from caloron.git.command import (
    IDENTITY,
    GitError,
    git,
    git_argv,
    git_environment,
    is_commit_id,
    start_git,
    wait_or_end,
)
from caloron.git.mirror import Mirror
from caloron.git.repository import Files, list_files
from caloron.ports import Caps
from caloron.store.redact import forms_of

#: In this order: git uses a pack as soon as its index is there.
_PACK_FILES = ("pack", "rev", "idx")
_CHUNK = 1 << 20
_OBJECT_TYPES = ("blob", "tree", "commit")
#: Git itself only warns of these names in a tree; no honest commit has one.
_NAMES = ("hasDot", "hasDotdot", "hasDotgit", "emptyName", "fullPathname")
_STRICT = "--strict=" + ",".join(f"{name}=error" for name in _NAMES)
_BUNDLE_HEADER_BYTES = 1 << 16


class BundleRefused(CaloronError):
    """Commits that an agent handed over are too large or not sound; nothing was taken."""


class HandOverCancelled(CaloronError):
    """The sprint stops before an agent's work is taken; the work stays in its workspace."""

    def __init__(self) -> None:
        super().__init__("the work is not taken yet: the sprint is being stopped")


class SecretInCommits(CaloronError):
    """An agent committed a key: nothing of it is taken."""


def never() -> bool:
    """For a hand-over that no stop cancels."""
    return False


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for the commits of an agent."""

    #: The commit that the agent began with, and the newest one of main: what is in them is not
    #: the agent's work. Empty: no commit leaves.
    base: str = ""
    main: str = ""
    #: For what it did not commit itself, and for the one commit that replaces commits by another
    #: author, or with files to leave out.
    message: str
    identity: tuple[str, str] = IDENTITY
    #: The `Agent:` line that each commit must have; empty: none.
    agent: str = ""
    #: Files and folders whose new content is not the agent's work.
    leave_out: Sequence[str] = ()
    #: Values that no commit may hold, by the name of the secret.
    secrets: Mapping[str, str] = {}
    #: How large the bundle may be, and how much a checkout or all new objects may take.
    cap_bytes: int = 512 << 20
    disk_mb: int = Caps().disk_mb
    #: Whether to give up: the checks read everything that an agent wrote, which may take minutes.
    cancelled: Callable[[], bool] = never


def receive(mirror: Mirror, bundle: Path, ref: str, terms: Terms) -> str:
    """Keep the HEAD of a bundle under `ref`; `terms.base` if it brings no commit of its own."""
    with _quarantine(mirror, bundle) as objects:
        arrived = _Arrived(mirror.path, objects, bundle, terms)
        if arrived.is_empty:
            return terms.base
        files = arrived.list_files(arrived.head, terms.disk_mb << 20)
        arrived.refuse_bulk()
        arrived.refuse_secrets()
        strays = arrived.strays(files)
        replaced = bool(strays) or arrived.is_foreign() or arrived.had_strays()
        for kind in _PACK_FILES:
            for file in (objects / "pack").glob(f"*.{kind}"):
                file.rename(mirror.path / "objects" / "pack" / file.name)
    head = _one_commit(mirror, arrived.head, strays, terms) if replaced else arrived.head
    mirror.keep(ref, head)
    return head


@contextmanager
def _quarantine(mirror: Mirror, bundle: Path) -> Iterator[Path]:
    """Make a folder for objects that borrows those of the mirror; nothing of it stays."""
    # A crash may have left the folder.
    objects = bundle.with_name(f"{bundle.name}.objects")
    shutil.rmtree(objects, ignore_errors=True)
    (objects / "info").mkdir(parents=True)
    (objects / "pack").mkdir()
    alternates = objects / "info" / "alternates"
    alternates.write_text(f"{mirror.path.absolute() / 'objects'}\n", "utf-8")
    try:
        yield objects.absolute()
    finally:
        shutil.rmtree(objects)


class _Arrived:
    """The commits of a bundle, with its objects in a folder of their own."""

    def __init__(self, repository: Path, objects: Path, bundle: Path, terms: Terms) -> None:
        self._repository = repository
        self._terms = terms
        self.environment = git_environment(terms.identity) | {
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_NO_REPLACE_OBJECTS": "1",
        }
        self.head = unpack(repository, bundle, terms.cap_bytes, self.environment, terms.cancelled)
        self._new = (self.head, "--not", terms.base, terms.main)
        line = "%H%x00%P%x00%an <%ae> %cn <%ce>"
        if terms.agent:
            line += "%(trailers:key=Agent,valueonly,separator=%x2C)"
        try:
            arguments = ("log", f"--format={line}", *self._new, "--")
            listed = git(repository, *arguments, environment=self.environment)
        except GitError as error:
            raise BundleRefused("git refused the commits: HEAD is not among them") from error
        rows = [line.split("\0", 2) for line in listed.split("\n") if line]
        #: The commits that are neither in main nor in the agent's base, with their authors,
        #: committers and agents.
        self._own = {commit: authors for commit, _, authors in rows}
        parents = {parent for _, named, _ in rows for parent in named.split()}
        self._is_unrelated = parents <= self._own.keys()

    @property
    def is_empty(self) -> bool:
        return not self._own

    def refuse_bulk(self) -> None:
        """Count all versions of all files: the history is read as well."""
        limit = self._terms.disk_mb
        with self._objects(self._new) as names:
            sizes = self._printed(("cat-file", "--batch-check=%(objectsize)"), names)
            total = sum(map(int, b"".join(sizes).split()))
        if total > limit << 20:
            raise BundleRefused(
                f"the commits hold {total >> 20} MB, of {limit} allowed (disk_mb)",
                hint="keep build results and large data out of the commits",
            )

    def refuse_secrets(self) -> None:
        """Search every new object for secrets: files, their names, messages, authors."""
        secrets = self._terms.secrets.items()
        forms = [(form, name) for name, value in secrets for form in forms_of(value)]
        leaked = self._secrets_in(forms, self._new)
        # A value that was in the base already was not leaked by this agent.
        again = [(form, name) for form, name in forms if name in leaked]
        leaked -= self._secrets_in(again, (f"{self._terms.base}^{{tree}}",))
        if leaked:
            raise SecretInCommits(
                f"the commits hold the value of {min(leaked)}: nothing of them is taken",
                hint="change that key if the agent could have shown it to others",
            )

    def _secrets_in(
        self, secrets: Sequence[tuple[bytes, str]], revisions: Sequence[str]
    ) -> set[str]:
        """The names of the secrets that are in the objects of some revisions."""
        names: set[str] = set()
        if not secrets:
            return names
        longest = max(len(form) for form, _ in secrets)
        window = b""
        with self._objects(revisions) as ids:
            for chunk in self._printed(("cat-file", "--batch"), ids):
                window += chunk
                names |= {name for form, name in secrets if form in window}
                window = window[-longest:]
        return names

    def is_foreign(self) -> bool:
        """True if a commit is by another author or agent, or of a history without our own."""
        terms = self._terms
        author = _as_git_writes(terms.identity)
        if set(self._own.values()) != {f"{author} {author}{terms.agent}"}:
            return True
        return self._is_unrelated

    def list_files(self, commit: str, limit: int | None) -> Files:
        """The files of a commit, with names that are not text kept as they are."""
        return list_files(self._repository, commit, limit, self.environment, "surrogateescape")

    def strays(self, files: Files) -> set[bytes]:
        """The new paths to leave out: of folders that are not the agent's, and submodules."""
        paths = self._left_out(files)
        if paths:
            for known in (self._terms.base, self._terms.main):
                paths -= self._left_out(self.list_files(known, None))
        return {path.encode("utf-8", "surrogateescape") for path in paths}

    def _left_out(self, files: Files) -> set[str]:
        folders = tuple(self._terms.leave_out)
        below = tuple(f"{folder}/" for folder in folders)
        listed = {path for path in files.ids if path in folders or path.startswith(below)}
        return listed | set(files.submodules)

    def had_strays(self) -> bool:
        """True if an earlier commit has a path that is left out, though the last commit has not."""
        terms = self._terms
        known = (terms.base, terms.main)
        pairs = [(c, path) for c in (*known, *self._own) for path in terms.leave_out]
        if not pairs or len(self._own) == 1:
            # The files of the last commit are known already.
            return False
        # No folder is opened for that.
        names = "".join(f"{commit}:{path}\n" for commit, path in pairs)
        text = names.encode("utf-8", "surrogateescape")
        kinds = ("cat-file", "--batch-check=%(objecttype)")
        rows = git(self._repository, *kinds, stdin=text, environment=self.environment).split("\n")
        present = [pair for pair, row in zip(pairs, rows, strict=False) if row in _OBJECT_TYPES]
        before = {path for commit, path in present if commit in known}
        return any(path not in before for commit, path in present if commit not in known)

    @contextmanager
    def _objects(self, revisions: Sequence[str]) -> Iterator[int]:
        """A file with the name of each object of some revisions, once: a bomb has few."""
        with tempfile.TemporaryFile() as names:
            listed = ("rev-list", "--objects", "--no-object-names", *revisions, "--")
            for chunk in self._printed(listed, subprocess.DEVNULL):
                names.write(chunk)
            names.seek(0)
            yield names.fileno()

    def _printed(self, arguments: Sequence[str], stdin: int) -> Iterator[bytes]:
        with start_git(self._repository, arguments, self.environment, stdin) as process:
            assert process.stdout is not None
            while chunk := process.stdout.read(_CHUNK):
                if self._terms.cancelled():
                    process.kill()
                    raise HandOverCancelled
                yield chunk
        if process.returncode != 0:
            raise GitError(arguments, process.returncode, "is an object missing?")


def _one_commit(mirror: Mirror, head: str, strays: set[bytes], terms: Terms) -> str:
    """Commit the files of `head` without the strays, by the user; a merge stays a merge."""
    new_main = not mirror.is_ancestor(terms.main, terms.base)
    merged = new_main and mirror.is_ancestor(terms.main, head)
    parents = (terms.base, terms.main) if merged else (terms.base,)
    tree = _without(mirror, head, strays) if strays else mirror.tree(head)
    return mirror.commit_tree(tree, parents, terms.message, git_environment(terms.identity))


@lru_cache(maxsize=8)
def _as_git_writes(identity: tuple[str, str]) -> str:
    """An author as commits name them: git drops some characters at the ends of a name."""
    text = git(Path("/"), "var", "GIT_COMMITTER_IDENT", environment=git_environment(identity))
    return text.rsplit(" ", 2)[0]


def _without(mirror: Mirror, commit: str, paths: set[bytes]) -> str:
    """The tree of a commit without some paths."""
    with tempfile.TemporaryDirectory(prefix="caloron-index-") as folder:
        environment = git_environment() | {"GIT_INDEX_FILE": f"{folder}/index"}
        git(mirror.path, "read-tree", commit, environment=environment)
        nothing = b"0" * len(commit)
        removed = b"".join(b"0 %s\t%s\0" % (nothing, path) for path in sorted(paths))
        index = ("update-index", "-z", "--index-info")
        git(mirror.path, *index, stdin=removed, environment=environment)
        return git(mirror.path, "write-tree", environment=environment)


def unpack(
    repository: Path,
    path: Path,
    cap_bytes: int,
    environment: dict[str, str],
    cancelled: Callable[[], bool] = never,
) -> str:
    """Index the objects of a bundle after checking each; the commit that it calls HEAD."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise BundleRefused(f"{path} is not a file")
    if status.st_size > cap_bytes:
        raise BundleRefused(
            f"the commits are {status.st_size} bytes, more than the {cap_bytes} allowed",
            hint="keep build results and large data out of the commits",
        )
    with path.open("rb", buffering=0) as file:
        head = _skip_header(file)
        # Not `git fetch`: it takes a bundle's objects unchecked before git 2.46.
        process = subprocess.Popen(
            git_argv(repository, ("index-pack", "--stdin", "--fix-thin", _STRICT)),
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,
        )
    stderr = wait_or_end(process, cancelled)
    if process.returncode < 0 and cancelled():
        raise HandOverCancelled
    if process.returncode < 0:
        raise GitError(("index-pack",), process.returncode, "it was killed")
    if process.returncode != 0:
        reason = stderr.decode("utf-8", "replace").strip()
        raise BundleRefused(f"git refused the commits: {reason}")
    return head


def _skip_header(bundle: IO[bytes]) -> str:
    """Read a bundle up to its objects; the commit that it calls HEAD."""
    start = bundle.read(_BUNDLE_HEADER_BYTES)
    end = start.find(b"\n\n")
    lines = start[:end].decode("utf-8", "replace").split("\n")
    heads = [line[:-5] for line in lines[1:] if line.endswith(" HEAD") and line[0] not in "-@"]
    if end < 0 or not lines[0].endswith(" git bundle") or len(heads) != 1:
        raise BundleRefused("the agent's commits are not a bundle with one HEAD")
    if not is_commit_id(heads[0]):
        raise BundleRefused(f"the bundle's HEAD is not a commit id: {heads[0]}")
    bundle.seek(end + 2)
    return heads[0]
