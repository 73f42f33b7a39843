"""Lock files of git: text that a server sends never deletes a file of the user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caloron.errors import CaloronError
from caloron.git import command as git_command
from caloron.git.command import GitError, git, retry_on_lock
from caloron.git.mirror import Mirror
from caloron.ports import Remote
from tests.support.http_server import HttpServer, Reply


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_command, "_LOCK_TRIES", 3)


def old(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("version = 3\n")
    os.utime(path, (1, 1))
    return path


def serves_error(text: str) -> HttpServer:
    """A git server that answers every fetch with an error of this text."""
    line = f"ERR {text}".encode()
    body = b"001e# service=git-upload-pack\n0000" + b"%04x" % (len(line) + 4) + line
    kind = {"Content-Type": "application/x-git-upload-pack-advertisement"}
    return HttpServer(lambda _: Reply(body, headers=kind))


@pytest.mark.parametrize("before", ["", "no\nfatal: ", "no\nerror: cannot lock ref 'x': "])
def test_a_hostile_forge_cannot_delete_a_lock_file_of_the_user(tmp_path: Path, before: str) -> None:
    lock = old(tmp_path / "app" / "Cargo.lock")
    server = serves_error(f"{before}Unable to create '{lock}': File exists.")
    try:
        mirror = Mirror(tmp_path / "mirror.git", Remote(f"{server.url}/shop.git"))
        mirror.ensure()
        with pytest.raises(CaloronError, match="Unable to create"):
            mirror.fetch_main()
    finally:
        server.close()
    assert lock.read_text() == "version = 3\n"


def test_git_does_not_wait_for_a_lock_that_only_the_server_names(tmp_path: Path) -> None:
    repository = tmp_path / "mirror.git"
    git(tmp_path, "init", "--quiet", "--bare", str(repository))
    abandoned = old(repository / "config.lock")
    calls = []

    def command() -> None:
        calls.append(1)
        raise GitError(("push",), 1, "remote: error: cannot lock ref 'refs/heads/main'\nrejected")

    with pytest.raises(GitError):
        retry_on_lock(repository, command)
    assert len(calls) == 1
    assert abandoned.exists()


def test_a_lock_beside_a_link_out_of_the_repository_stays(tmp_path: Path) -> None:
    outside = old(tmp_path / "outside" / "yarn.lock")
    repository = tmp_path / "repository"
    git(tmp_path, "init", "--quiet", "--bare", str(repository))
    (repository / "refs" / "link").symlink_to(outside.parent)
    message = f"fatal: Unable to create '{repository}/refs/link/yarn.lock': File exists."

    def command() -> None:
        raise GitError(("fetch",), 128, message)

    with pytest.raises(GitError):
        retry_on_lock(repository, command)
    assert outside.exists()


def test_old_locks_are_removed_and_new_locks_stay(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--bare", "mirror.git")
    repository = tmp_path / "mirror.git"
    left = [
        old(repository / name) for name in ("config.lock", "refs/heads/a/b.lock", "shallow.lock")
    ]
    fresh = repository / "packed-refs.lock"
    fresh.touch()
    git_calls = []

    def command() -> str:
        git_calls.append(1)
        return git(repository, "config", "gc.auto", "0")

    assert retry_on_lock(repository, command) == ""
    assert len(git_calls) == 2
    assert [file.exists() for file in (*left, fresh)] == [False, False, False, True]
