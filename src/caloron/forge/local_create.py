"""How a local forge comes to be: step by step, so that a crash leaves nothing but missing steps."""

from __future__ import annotations

import os
from pathlib import Path

from caloron.errors import PreconditionFailed, UsageError
from caloron.forge.local_git import MAIN, BareRepository, run
from caloron.git.command import refuse_newer_format

_SETTINGS = {
    # A ref that survives a power cut must not point to objects that did not.
    "core.fsync": "committed",
    # The heads of closed pull requests hang on no ref any more, and stay readable all the same.
    "gc.auto": "0",
    "receive.autogc": "false",
}


def create_repository(path: Path, source: Path | None, name: str) -> None:
    """Make the bare repository and its branch main, or finish what an earlier call began."""
    repository = BareRepository(path)
    if repository.tip(MAIN) is not None:
        return
    start = _commit_checked_out(source) if source else ""
    object_format = _object_format(source) if source else "sha1"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreconditionFailed(
            f"cannot create {path}: {error.strerror}", hint="make the directory above it writable"
        ) from error
    set_up(repository, object_format)
    commit = _import(repository, source, start) if source else _first_commit(repository, name)
    # Another process may have made main in the meantime: then main is what that one made.
    repository.move(MAIN, commit, "")


def set_up(repository: BareRepository, object_format: str) -> None:
    """Make the repository of a forge, without anything in it."""
    repository.git("init", "--bare", "--quiet", "--template=", f"--object-format={object_format}")
    for setting, value in _SETTINGS.items():
        repository.git("config", setting, value)


def catch_up(repository: BareRepository, source: Path) -> bool:
    """Bring main up to what is checked out in the user's repository; False if both went on."""
    start = _commit_checked_out(source)
    main = repository.tip(MAIN) or ""
    if start == main:
        return True
    theirs = _import(repository, source, start)
    if repository.contains(main, theirs):
        return True
    if not repository.contains(theirs, main):
        return False
    return repository.move(MAIN, theirs, main)


def _commit_checked_out(source: Path) -> str:
    """The commit of HEAD, if this directory itself is a repository and has one."""
    if not source.is_dir():
        raise UsageError(f"{source} is not a directory", hint="name a git repository on this disk")
    top = run(source, "rev-parse", "--show-toplevel")
    if top.returncode != 0:
        top = run(source, "rev-parse", "--absolute-git-dir")
    if top.returncode != 0:
        said = top.stderr.decode("utf-8", "replace").strip()
        refuse_newer_format(source, said)
        raise UsageError(
            f"{source} is not a git repository: {said}", hint="run `git init` and commit there"
        )
    repository = Path(os.fsdecode(top.stdout.rstrip(b"\n")))
    if source.resolve() != repository.resolve():
        raise UsageError(
            f"{source} is not a git repository, only a directory inside {repository}",
            hint="name the repository itself",
        )
    head = run(source, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if head.returncode != 0:
        raise UsageError(
            f"{source} has no commit yet", hint="commit something there first, then try again"
        )
    return head.stdout.decode().strip()


def _object_format(source: Path) -> str:
    return run(source, "rev-parse", "--show-object-format").stdout.decode().strip()


def _import(repository: BareRepository, source: Path, commit: str) -> str:
    repository.git(
        "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--update-shallow",
        str(source.resolve()), "HEAD",
    )  # fmt: skip
    # HEAD may have moved since it was read; what was fetched contains it unless it was rewritten.
    return repository.git("rev-parse", "--verify", f"{commit}^{{commit}}")


def _first_commit(repository: BareRepository, name: str) -> str:
    readme = repository.git("hash-object", "-w", "--stdin", stdin=f"# {name}\n".encode())
    tree = repository.git("mktree", stdin=f"100644 blob {readme}\tREADME.md\n".encode())
    return repository.commit(tree, (), "Start of the project")
