"""The reason of a failed git command, as one line of its messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from caloron.forge.local.refs import forge_error
from caloron.git.command import GitError, error_line, git, git_remote
from caloron.ports import Remote

_PROTECTED = """remote:
remote: Gitea: Not allowed to push to protected branch agent/a/shop-1
To http://127.0.0.1:3000/ada/shop.git
 ! [remote rejected] 1234 -> agent/a/shop-1 (pre-receive hook declined)
error: failed to push some refs to 'http://127.0.0.1:3000/ada/shop.git'
"""
_STALE = """To http://127.0.0.1:3000/ada/shop.git
 ! [rejected]        1234 -> agent/a/shop-1 (stale info)
error: failed to push some refs to 'http://127.0.0.1:3000/ada/shop.git'
hint: Updates were rejected
"""


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        (_PROTECTED, "Gitea: Not allowed to push to protected branch agent/a/shop-1"),
        (_STALE, "! [rejected] 1234 -> agent/a/shop-1 (stale info)"),
        ("warning: x\nfatal: unable to access 'http://h/': refused\n",
         "fatal: unable to access 'http://h/': refused"),
        ("something\nelse\n", "something"),
        ("\n", ""),
    ],
)  # fmt: skip
def test_one_line_has_the_reason_of_an_error(stderr: str, line: str) -> None:
    assert error_line(stderr) == line


def test_an_error_omits_the_hints_of_git(tmp_path: Path) -> None:
    """Git's hint to pull is of no use to the reader of the message."""
    forge = tmp_path / "forge.git"
    git(tmp_path, "init", "--bare", str(forge))
    clones = [tmp_path / name for name in ("one", "two")]
    for clone in clones:
        git(tmp_path, "init", str(clone))
        git(clone, "commit", "--allow-empty", "-m", clone.name)
    git_remote(clones[0], Remote(str(forge)), "push", "HEAD:refs/heads/main")
    with pytest.raises(GitError) as caught:
        git_remote(clones[1], Remote(str(forge)), "push", "HEAD:refs/heads/main")
    assert "hint: " in caught.value.stderr
    assert "hint:" not in str(caught.value)
    assert "[rejected]" in str(caught.value)
    assert "hint:" not in str(forge_error(forge, "push", 1, caught.value.stderr))
