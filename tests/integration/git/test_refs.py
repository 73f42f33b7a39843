"""Refs are read through git, whatever the format in which a repository keeps them."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from caloron.agents.workspace.workspaces import clone
from caloron.errors import PreconditionFailed
from caloron.forge.local.create import create_repository
from caloron.forge.local.refs import ForgeRepository
from caloron.git.checkout import Checkout
from caloron.git.command import git
from caloron.git.mirror import Mirror
from caloron.ports import Remote


@pytest.fixture
def forge(tmp_path: Path) -> ForgeRepository:
    create_repository(tmp_path / "forge.git", None, "shop")
    return ForgeRepository(tmp_path / "forge.git")


def commits(repository: ForgeRepository, count: int) -> list[str]:
    tree = repository.git("rev-parse", "main^{tree}")
    return [repository.commit_tree(tree, (), f"commit {number}") for number in range(count)]


def test_caloron_creates_every_repository_with_refs_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, record = shutil.which("git"), tmp_path / "record"
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "git"
    wrapper.write_text(
        '#!/bin/sh\nfor word; do case "$word" in init|clone)'
        f' echo "$word $GIT_DEFAULT_REF_FORMAT" >> {record};; esac; done\nexec {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")

    create_repository(tmp_path / "forge.git", None, "shop")
    mirror = Mirror(tmp_path / "mirror.git", Remote(str(tmp_path / "forge.git")))
    mirror.ensure()
    mirror.fetch_main()
    clone(mirror, tmp_path / "workspace", ("Ada", "ada@example.org"))

    assert record.read_text().splitlines() == ["init files"] * 3


def test_packed_and_symbolic_refs_are_read(forge: ForgeRepository) -> None:
    main = forge.tip("main")
    (other,) = commits(forge, 1)
    forge.git("update-ref", "refs/heads/agent/login/shop-1", other)
    forge.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    expected = {"main": main, "alias": main, "agent/login/shop-1": other}
    assert forge.tips(("main", "alias", "agent/login/shop-1", "none")) == expected
    forge.git("pack-refs", "--all", "--prune")
    assert forge.tips(("main", "alias", "agent/login/shop-1", "none")) == expected


def test_the_branches_are_never_older_than_those_of_git(forge: ForgeRepository) -> None:
    """Many changes within one tick of the clock, in each way that git changes refs."""
    choice = random.Random(7)
    many = commits(forge, 4)
    for _ in range(60):
        branch = f"refs/heads/{choice.choice(['a', 'b', 'deep/er/c'])}"
        match choice.randrange(4):
            case 0:
                forge.git("update-ref", "-d", branch)
            case 1:
                forge.git("pack-refs", "--all", "--prune")
            case 2:
                lines = "".join(f"update {branch} {commit}\n" for commit in many[:1])
                forge.git("update-ref", "--stdin", stdin=lines.encode())
            case _:
                forge.git("update-ref", branch, choice.choice(many))
        listed = forge.git("for-each-ref", "--format=%(refname:strip=2) %(objectname)").split()
        expected = dict(zip(listed[::2], listed[1::2], strict=True))
        assert forge.tips(("main", "a", "b", "deep/er/c")) == expected


def test_reading_unchanged_branches_starts_no_process(
    forge: ForgeRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = forge.tip("main")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert [forge.tip("main") for _ in range(3)] == [main] * 3
    monkeypatch.undo()
    (new,) = commits(forge, 1)
    forge.git("update-ref", "refs/heads/main", new)
    assert forge.tip("main") == new


@pytest.fixture
def reftable(tmp_path: Path) -> Path:
    """A repository in a format that the git of this machine cannot read."""
    shop = tmp_path / "shop"
    git(tmp_path, "init", "--quiet", str(shop))
    git(shop, "commit", "--quiet", "--allow-empty", "-m", "start")
    git(shop, "config", "core.repositoryFormatVersion", "1")
    git(shop, "config", "extensions.refStorage", "format-of-tomorrow")
    return shop


def test_a_repository_that_git_is_too_old_for_is_refused_with_the_reason(
    reftable: Path, tmp_path: Path
) -> None:
    with pytest.raises(PreconditionFailed, match="too old for the repository") as refused:
        Checkout.around(reftable)
    assert "git refs migrate --ref-format=files" in refused.value.hint
    with pytest.raises(PreconditionFailed, match="too old for the repository"):
        create_repository(tmp_path / "forge.git", reftable, "shop")
    assert not (tmp_path / "forge.git").exists()
