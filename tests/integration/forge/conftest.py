"""A new forge and a clone of it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from caloron.forge.local.forge import LocalForge, create_local_forge
from tests.integration.forge.people import Clone
from tests.integration.forge.worlds import World, local_world


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "home" / "projects" / "sample"


@pytest.fixture
def forge(project: Path) -> Iterator[LocalForge]:
    made = create_local_forge(project, name="sample")
    yield made
    made.close()


@pytest.fixture
def anna(forge: LocalForge, project: Path) -> Iterator[LocalForge]:
    """The same forge as a person uses it."""
    hers = LocalForge(project, actor="anna", identity=("Anna", "anna@example.org"))
    yield hers
    hers.close()


@pytest.fixture
def clone(forge: LocalForge, tmp_path: Path) -> Clone:
    return Clone(forge.remote().url, tmp_path / "clone")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """What the conformance suite runs on: here the local forge, a real Gitea in acceptance."""
    with local_world(tmp_path) as made:
        yield made
