"""What git complains about, in the one line that says why."""

from __future__ import annotations

import pytest

from caloron.git.command import telling

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
def test_one_line_says_why(stderr: str, line: str) -> None:
    assert telling(stderr) == line
