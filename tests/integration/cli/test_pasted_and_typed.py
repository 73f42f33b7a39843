"""Lines that people paste or type ahead."""

from __future__ import annotations

import os
import sys

from caloron.cli.commands.sprint.approval import _prompt_until


def test_a_line_that_was_typed_ahead_is_an_answer(monkeypatch) -> None:
    read, write = os.pipe()
    os.write(write, b"what?\ny\n")
    checks: list[int] = []

    def decided() -> bool:
        checks.append(1)
        return True

    with os.fdopen(read, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        answers = [_prompt_until("Run?", decided) for _ in range(2)]
    os.close(write)
    assert checks == []
    assert answers == ["what?\n", "y\n"]
