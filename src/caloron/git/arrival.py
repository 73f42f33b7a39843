"""Checks the commits of an agent where they arrive: in our own repository, before it keeps them.

The objects stay in a folder beside the mirror until every check has passed, so that nothing of a
refused bundle remains. No check runs in the agent's repository, where its own settings apply.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from caloron.errors import CaloronError
from caloron.git.bundle import BundleRefused, HandOverCancelled, never, unpack
from caloron.git.command import GitError, git, git_argv, git_bytes, git_environment
from caloron.git.commits import refuse_large
from caloron.git.mirror import CALORON_IDENTITY, Mirror

#: In this order: git uses a pack as soon as its index is there.
_PACK_FILES = ("pack", "rev", "idx")
_CHUNK = 1 << 20


class SecretInCommits(CaloronError):
    """An agent committed a key: nothing of it is taken."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the commits of an agent have to keep to."""

    #: The commit that the agent began with, and the newest one of main: what is in them is not
    #: the agent's work.
    base: str
    main: str
    #: For the one commit that replaces commits in another name, or with what is left out.
    message: str
    identity: tuple[str, str] = CALORON_IDENTITY
    #: The `Agent:` line that each commit must have; empty: none.
    agent: str = ""
    #: Files and folders whose new content is not the agent's work.
    leave_out: Sequence[str] = ()
    #: What no commit may hold, each with the name of its secret.
    secrets: Sequence[tuple[bytes, str]] = ()
    #: How large the bundle may be, and how much a checkout or all new objects may take.
    cap_bytes: int
    disk_bytes: int
    #: Whether to give up: everything that an agent wrote is read, which may take minutes.
    cancelled: Callable[[], bool] = never


def receive(mirror: Mirror, bundle: Path, ref: str, terms: Terms) -> str:
    """Keep the HEAD of a bundle under `ref`; `terms.base` if it brings no commit of its own."""
    with _quarantine(mirror, bundle) as objects:
        arrived = _Arrived(mirror.path, objects, bundle, terms)
        if not arrived.own:
            return terms.base
        refuse_large(mirror.path, arrived.head, terms.disk_bytes, arrived.environment)
        arrived.refuse_bulk()
        arrived.refuse_secrets()
        strays = arrived.strays()
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
    # A crash may have left one.
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
        try:
            #: The commits that are neither in main nor in what the agent began with.
            self.own = self._git("rev-list", *self._new, "--").split()
        except GitError as error:
            raise BundleRefused("git refused the commits: HEAD is not among them") from error

    def refuse_bulk(self) -> None:
        """Count all versions of all files: the history is read as well."""
        limit = self._terms.disk_bytes
        with self._objects(self._new) as names:
            sizes = self._printed(("cat-file", "--batch-check=%(objectsize)"), names)
            total = sum(map(int, b"".join(sizes).split()))
        if total > limit:
            raise BundleRefused(
                f"the commits hold {total >> 20} MB, of {limit >> 20} allowed (disk_mb)",
                hint="keep build results and large data out of the commits",
            )

    def refuse_secrets(self) -> None:
        """Look for secrets in every new object: files, their names, messages, authors."""
        found = self._holds(self._terms.secrets, self._new)
        # A value that was there before is not given away by this agent.
        again = [(form, name) for form, name in self._terms.secrets if name in found]
        found -= self._holds(again, (f"{self._terms.base}^{{tree}}",))
        if found:
            raise SecretInCommits(
                f"the commits hold the value of {min(found)}: nothing of them is taken",
                hint="change that key if the agent could have shown it to others",
            )

    def _holds(self, secrets: Sequence[tuple[bytes, str]], revisions: Sequence[str]) -> set[str]:
        """The names of the secrets that are in the objects of some revisions."""
        found: set[str] = set()
        if not secrets:
            return found
        longest = max(len(form) for form, _ in secrets)
        held = b""
        with self._objects(revisions) as names:
            for chunk in self._printed(("cat-file", "--batch"), names):
                held += chunk
                found |= {name for form, name in secrets if form in held}
                held = held[-longest:]
        return found

    def is_foreign(self) -> bool:
        """Whether a commit is by another person or agent, or of a history without our own."""
        terms = self._terms
        # Git leaves some characters at the ends of a name out.
        who = self._git("var", "GIT_COMMITTER_IDENT").rsplit(" ", 2)[0]
        line, expected = "%an <%ae> %cn <%ce>", f"{who} {who}"
        if terms.agent:
            line += "%(trailers:key=Agent,valueonly,separator=%x2C)"
            expected += terms.agent
        said = self._git("log", f"--format={line}", *self._new, "--")
        unrelated = not git(
            self._repository, "merge-base", terms.base, self.head,
            check=False, environment=self.environment,
        )  # fmt: skip
        return unrelated or set(said.split("\n")) != {expected}

    def strays(self) -> set[bytes]:
        """The new paths that are left out: of folders that are not the agent's, and submodules."""
        found = self._left_out(self.head)
        if found:
            found -= self._left_out(self._terms.base) | self._left_out(self._terms.main)
        return found

    def _left_out(self, commit: str) -> set[bytes]:
        listed = ("ls-tree", "-r", "-z", "--full-tree", commit)
        entries = [line.split(b"\t", 1) for line in self._bytes(*listed).split(b"\0") if line]
        folders = tuple(name.encode("utf-8", "surrogateescape") for name in self._terms.leave_out)
        below = tuple(name + b"/" for name in folders)
        return {
            path
            for about, path in entries
            if path in folders or path.startswith(below) or about.startswith(b"160000")
        }

    def had_strays(self) -> bool:
        """Whether a commit on the way has a folder that is left out, though not the last one."""
        terms = self._terms
        known = self._entries((terms.base, terms.main), terms.leave_out)
        return bool(self._entries(self.own, terms.leave_out) - known)

    def _entries(self, commits: Iterable[str], paths: Sequence[str]) -> set[str]:
        """Those of the paths that one of the commits has; no folder is opened for that."""
        asked = [(path, f"{commit}:{path}") for commit in commits for path in paths]
        if not asked:
            return set()
        text = "".join(f"{name}\n" for _, name in asked).encode("utf-8", "surrogateescape")
        told = self._bytes("cat-file", "--batch-check=%(objecttype)", stdin=text)
        rows = zip(asked, told.split(b"\n"), strict=False)
        return {path for (path, _), row in rows if row in (b"blob", b"tree", b"commit")}

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
        with subprocess.Popen(
            git_argv(self._repository, arguments),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environment,
            process_group=0,
        ) as process:
            assert process.stdout is not None
            while chunk := process.stdout.read(_CHUNK):
                if self._terms.cancelled():
                    process.kill()
                    raise HandOverCancelled
                yield chunk
        if process.returncode != 0:
            raise GitError(arguments, process.returncode, "is an object missing?")

    def _git(self, *arguments: str) -> str:
        return git(self._repository, *arguments, environment=self.environment)

    def _bytes(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        return git_bytes(self._repository, *arguments, stdin=stdin, environment=self.environment)


def _one_commit(mirror: Mirror, head: str, strays: set[bytes], terms: Terms) -> str:
    """What `head` holds, without the strays, as one commit of the user's; a merge stays one."""
    new_main = not mirror.is_ancestor(terms.main, terms.base)
    merged = new_main and mirror.is_ancestor(terms.main, head)
    parents = (terms.base, terms.main) if merged else (terms.base,)
    tree = _without(mirror, head, strays) if strays else mirror.tree(head)
    return git(
        mirror.path,
        *("commit-tree", tree, "-F", "-"),
        *(word for parent in parents for word in ("-p", parent)),
        stdin=terms.message.encode("utf-8", "replace"),
        environment=git_environment(terms.identity),
    )


def _without(mirror: Mirror, commit: str, paths: set[bytes]) -> str:
    """The tree of a commit without some paths."""
    with tempfile.TemporaryDirectory(prefix="caloron-index-") as place:
        environment = git_environment() | {"GIT_INDEX_FILE": f"{place}/index"}
        git(mirror.path, "read-tree", commit, environment=environment)
        nothing = b"0" * len(commit)
        removed = b"".join(b"0 %s\t%s\0" % (nothing, path) for path in sorted(paths))
        index = ("update-index", "-z", "--index-info")
        git(mirror.path, *index, stdin=removed, environment=environment)
        return git(mirror.path, "write-tree", environment=environment)
