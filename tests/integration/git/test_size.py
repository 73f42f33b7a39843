"""The size of a change, as the report prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

from caloron.git.command import GitError
from caloron.git.mirror import Mirror
from caloron.git.repository import Size
from caloron.ports import Remote
from tests.support.git import git


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    return Mirror(tmp_path, Remote(str(tmp_path)))


def commit(mirror: Mirror, **files: str | bytes) -> str:
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (mirror.path / name).write_bytes(data)
    git(mirror.path, "add", "-A")
    git(mirror.path, "commit", "--quiet", "--message", "x")
    return mirror.resolve("HEAD")


def test_lines_and_files_are_counted_from_the_merge_base(mirror: Mirror) -> None:
    start = commit(mirror, a="1\n2\n3\n")
    change = commit(mirror, a="1\n3\n4\n5\n", b="new\n", c=b"\0\1\2")
    git(mirror.path, "checkout", "-q", start)
    main = commit(mirror, d="many\n" * 100)
    assert mirror.size(start, change) == Size(files=3, added=3, removed=1)
    assert mirror.size(main, change) == Size(files=3, added=3, removed=1)
    assert mirror.size(change, change) == Size(files=0, added=0, removed=0)
    # A name with a line end in it is one file.
    assert mirror.size(main, commit(mirror, **{"x\n\ty": "1\n"})) == Size(1, 1, 0)


def test_a_missing_commit_is_an_error(mirror: Mirror) -> None:
    with pytest.raises(GitError):
        mirror.size(commit(mirror, a="1"), "0" * 40)
