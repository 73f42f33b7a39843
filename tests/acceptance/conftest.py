"""Each test gets a home with a project of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.home import Home


@pytest.fixture
def bare_home(tmp_path: Path) -> Iterator[Home]:
    """A home without a project."""
    home = Home(tmp_path)
    yield home
    home.close()


@pytest.fixture
def home(bare_home: Home) -> Home:
    return bare_home.init()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A module may say which of its tests every run has; the others are long ones."""
    for item in items:
        chosen = getattr(getattr(item, "module", None), "in_every_run", None)
        if chosen and not chosen(item):
            item.add_marker(pytest.mark.long)
