"""Creation of a local forge: empty, or from a repository of a person."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caloron.errors import PreconditionFailed, StoreError, UsageError
from caloron.forge.local.forge import LocalForge, create_local_forge
from caloron.store.database import Database
from tests.integration.forge.people import Clone, files_on_main, main_of
from tests.support.git import git


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A person's repository whose branch is not called main."""
    path = tmp_path / "hers"
    path.mkdir()
    git(path, "init", "--quiet", "-b", "trunk")
    (path / "app.py").write_text("print('hallo')\n", "utf-8")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "first")
    return path


def test_a_new_forge_has_a_main_with_a_readme(forge: LocalForge) -> None:
    assert files_on_main(forge) == {"README.md": "# sample"}
    assert git(Path(forge.remote().url), "symbolic-ref", "HEAD") == "refs/heads/main"
    assert git(Path(forge.remote().url), "rev-parse", "--is-bare-repository") == "true"


def test_a_repeated_creation_changes_nothing(
    forge: LocalForge, clone: Clone, project: Path, source: Path
) -> None:
    pull = clone.open_pull(forge, "feature")
    before = forge.poll("")
    again = create_local_forge(project, source=source, name="other")
    assert again.poll("") == before
    assert again.pull(pull.number) == pull
    again.close()


def test_main_starts_at_the_commit_that_is_checked_out(source: Path, project: Path) -> None:
    forge = create_local_forge(project, source=source, name="sample")
    assert main_of(forge) == git(source, "rev-parse", "HEAD")
    assert files_on_main(forge) == {"app.py": "print('hallo')"}
    git(Path(forge.remote().url), "fsck", "--strict")
    forge.close()


def test_detached_bare_and_shallow_repositories_are_accepted(source: Path, tmp_path: Path) -> None:
    first = git(source, "rev-parse", "HEAD")
    git(source, "commit", "--quiet", "--allow-empty", "-m", "second")
    second = git(source, "rev-parse", "HEAD")
    git(tmp_path, "clone", "--quiet", "--bare", str(source), "bare")
    git(tmp_path, "clone", "--quiet", "--depth=1", source.as_uri(), "shallow")
    git(source, "checkout", "--quiet", "--detach", first)
    for name, expected in (("hers", first), ("bare", second), ("shallow", second)):
        forge = create_local_forge(tmp_path / "p" / name, source=tmp_path / name, name="sample")
        assert main_of(forge) == expected
        Clone(forge.remote().url, tmp_path / f"{name}-clone").open_pull(forge, "feature")
        assert forge.merge(1, "", "", "").pull.state == "merged"
        forge.close()


def test_an_unsuitable_source_is_refused_with_the_reason(source: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    inside = source / "inside"
    inside.mkdir()
    for path, reason in (
        (tmp_path / "missing", "is not a directory"),
        (plain, "is not a git repository"),
        (empty, "has no commit"),
        (inside, "only a directory inside"),
    ):
        with pytest.raises(UsageError, match=reason):
            create_local_forge(tmp_path / "project", source=path, name="sample")
        assert not (tmp_path / "project").exists()


@pytest.mark.parametrize("steps", ["directory", "init", "main"])
def test_an_interrupted_creation_is_completed(project: Path, source: Path, steps: str) -> None:
    bare = project / "forge.git"
    bare.mkdir(parents=True)
    if steps != "directory":
        git(bare, "init", "--quiet", "--bare")
    if steps == "main":
        git(bare, "fetch", "--quiet", str(source), "HEAD:refs/heads/main")
    with pytest.raises(PreconditionFailed, match="no complete forge"):
        LocalForge(project)
    forge = create_local_forge(project, source=source, name="sample")
    assert main_of(forge) == git(source, "rev-parse", "HEAD")
    assert LocalForge(project).issues() == []
    forge.close()


def test_a_forge_inside_a_git_repository_never_changes_that_repository(source: Path) -> None:
    forge = create_local_forge(source / "home" / "sample", name="sample")
    assert files_on_main(forge) == {"README.md": "# sample"}
    assert git(source, "branch", "--list") == "* trunk"
    forge.close()


def test_a_directory_that_is_no_forge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreconditionFailed, match="no complete forge") as refused:
        LocalForge(tmp_path)
    assert "caloron init" in refused.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PreconditionFailed, match="cannot create"):
        create_local_forge(tmp_path / "project", name="sample")


def test_records_of_a_newer_program_are_refused(forge: LocalForge, project: Path) -> None:
    forge.close()
    database = Database(project / "forge.sqlite")
    with database.transaction("test") as connection:
        connection.execute("INSERT INTO migrations VALUES ('forge/0999-later', 'x', 'now')")
    database.close()
    with pytest.raises(StoreError, match="newer Caloron"):
        LocalForge(project)


def test_hooks_and_attributes_in_a_repository_run_nothing(
    source: Path, project: Path, tmp_path: Path
) -> None:
    proof = tmp_path / "proof"
    hook = source / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {proof}\n", "utf-8")
    hook.chmod(0o755)
    (source / ".gitattributes").write_text("* diff=evil merge=evil\n", "utf-8")
    git(source, "config", "diff.evil.command", f"touch {proof}")
    git(source, "config", "merge.evil.driver", f"touch {proof}")
    git(source, "add", ".")
    git(source, "commit", "--quiet", "-m", "attributes")
    forge = create_local_forge(project, source=source, name="sample")
    (source / "app.py").write_text("print('hello')\n", "utf-8")
    git(source, "commit", "--quiet", "--all", "-m", "second")
    forge.push(source, "feature", git(source, "rev-parse", "HEAD"), "")
    pull = forge.open_pull("one", "", "feature")
    assert "hello" in forge.diff(pull.number)
    assert forge.merge(pull.number, "", "", "").pull.state == "merged"
    assert not proof.exists()
    forge.close()
