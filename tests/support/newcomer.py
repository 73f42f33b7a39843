"""A new user who has cloned the project and types the commands of a page at a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.documents import ROOT

#: Far beyond the duration of any step: a step that reaches it never ends.
_PATIENCE_S = 300.0
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

_BASKET = '''"""What a customer wants to buy."""


def total(prices):
    return sum(prices)
'''
_TEST = """import unittest

from basket import total


class TotalTest(unittest.TestCase):
    def test_prices_are_added(self):
        self.assertEqual(total([1, 2]), 3)
"""
#: An agent as users write it: it knows its role, and gets its prompt in a file.
_AGENT = """#!/bin/sh
set -eu
test "$1" = --prompt-file && test -s "$2" && test -n "$MY_AGENT_API_KEY"
case $CALORON_ROLE in
po) echo '[{"id": "discount", "title": "Discount", "agent_prompt": "Write discount.py."}]' ;;
implement) echo 'def discounted(price): return price * 0.9' >discount.py; echo done ;;
*) echo APPROVED ;;
esac
"""


class Typed(NamedTuple):
    """The exit code of a script, and the text on the screen."""

    code: int
    screen: str


class Newcomer:
    """A home of one's own with a clone of this working tree, and a project in `~/src/shop`."""

    def __init__(self, folder: Path, claude: Path) -> None:
        self.home = folder / "home"
        self.checkout = self.home / "caloron"
        self.shop = self.home / "src" / "shop"
        programs = self.home / ".local" / "bin"
        programs.mkdir(parents=True)
        (programs / "claude").symlink_to(claude)
        (programs / "my-agent").write_text(_AGENT)
        (programs / "my-agent").chmod(0o755)
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{programs}:{_path_of_the_system()}",
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "COLUMNS": "120",
            # A reader leaves the pager with a key; nothing is typed here.
            "PAGER": "cat",
            "MY_AGENT_API_KEY": "sk-of-nobody-1234567890",
        }
        (self.home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
        self._clone()
        self._begin_shop()

    def _clone(self) -> None:
        """Copy the working tree, committed or not; the `.venv` is the environment of this test."""
        listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
        for name in filter(None, names.decode().split("\0")):
            if (ROOT / name).is_file():
                target = self.checkout / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target)
                # Older than the environment, which make would otherwise install anew.
                os.utime(target, (0, 0))
        assert Path(sys.prefix, ".complete").exists(), "run the tests in what `make venv` makes"
        (self.checkout / ".venv").symlink_to(sys.prefix)

    def _begin_shop(self) -> None:
        (self.shop / "tests").mkdir(parents=True)
        (self.shop / "basket.py").write_text(_BASKET)
        (self.shop / "tests" / "__init__.py").touch()
        (self.shop / "tests" / "test_basket.py").write_text(_TEST)
        line = "git init -q -b main && git add . && git commit -q -m 'A basket'"
        subprocess.run(("sh", "-c", line), cwd=self.shop, env=self.environment, check=True)

    def types(self, script: str, cwd: Path, answers: Mapping[str, str]) -> Typed:
        """Run a shell script at a terminal, up to the first command that fails.

        `answers`: what is typed each time that a question appears on the screen.
        """
        handle, other = pty.openpty()
        process = subprocess.Popen(
            ("bash", "-euo", "pipefail", "-c", script),
            stdin=other,
            stdout=other,
            stderr=other,
            env=self.environment,
            cwd=cwd,
            start_new_session=True,
        )
        os.close(other)
        screen, answered = "", dict.fromkeys(answers, 0)
        give_up = time.monotonic() + _PATIENCE_S
        while data := _read(handle, give_up):
            screen += data
            plain = _COLOURS.sub("", screen)
            for question, answer in answers.items():
                while plain.count(question) > answered[question]:
                    os.write(handle, answer.encode())
                    answered[question] += 1
        # The last command may close its output before it ends; without a terminal it is killed.
        try:
            process.wait(max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        os.close(handle)
        return Typed(process.wait(), _COLOURS.sub("", screen))


def _read(handle: int, give_up: float) -> str:
    """Return the next output of the screen; empty at its end."""
    ready, _, _ = select.select([handle], [], [], max(0.0, give_up - time.monotonic()))
    try:
        return os.read(handle, 1 << 16).decode("utf-8", "replace") if ready else ""
    except OSError:  # no process has the terminal open any more
        return ""


def _path_of_the_system() -> str:
    """PATH without the environment that the tests run in: a page must say how to get at it."""
    own = Path(sys.prefix, "bin")
    return ":".join(folder for folder in os.environ["PATH"].split(":") if Path(folder) != own)
