"""Each test gets a home with a project of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.home import Home


@pytest.fixture
def bare_home(tmp_path: Path) -> Iterator[Home]:
    """A home without a project."""
    home = Home(tmp_path)
    yield home
    home.close()


@pytest.fixture
def home(bare_home: Home) -> Home:
    return bare_home.init()
