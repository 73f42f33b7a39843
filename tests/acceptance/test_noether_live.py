"""A real Noether, where one is installed, against what was recorded of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.noether_program import differences

BINARY = shutil.which(os.environ.get("NOETHER_BIN") or "noether")


@pytest.mark.skipif(BINARY is None, reason="no `noether` on the PATH, and NOETHER_BIN names none")
def test_the_real_program_answers_as_it_was_recorded(tmp_path: Path) -> None:
    assert BINARY is not None
    # Without Nix it answers with the first example of a stage that carries code.
    executes = shutil.which("nix") is not None
    assert differences(BINARY, tmp_path / "noether", executes=executes) == []
