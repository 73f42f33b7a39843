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
    local_forge = create_local_forge(project, name="sample")
    yield local_forge
    local_forge.close()


@pytest.fixture
def anna(forge: LocalForge, project: Path) -> Iterator[LocalForge]:
    """The same forge, used by a person."""
    annas_forge = LocalForge(project, actor="anna", identity=("Anna", "anna@example.org"))
    yield annas_forge
    annas_forge.close()


@pytest.fixture
def clone(forge: LocalForge, tmp_path: Path) -> Clone:
    return Clone(forge.remote().url, tmp_path / "clone")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The forge that the conformance suite runs on: the local forge here, Gitea in acceptance."""
    with local_world(tmp_path) as opened:
        yield opened
