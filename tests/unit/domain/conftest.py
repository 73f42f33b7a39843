"""Sprints in memory with which many tests of the domain begin."""

from __future__ import annotations

import pytest

from caloron.testing import SprintDriver, planned


@pytest.fixture
def made() -> SprintDriver:
    """A sprint with one task, whose agent is at work."""
    return SprintDriver.start(planned("a"))


@pytest.fixture
def chain() -> SprintDriver:
    """A sprint with two tasks, of which `b` depends on `a`."""
    return SprintDriver.start(planned("a"), planned("b", "a"))


@pytest.fixture
def reviewed(chain: SprintDriver) -> SprintDriver:
    """A chain of two tasks, of which the first is in review."""
    chain.bring_to_review("a")
    return chain
