"""The mirror of a project: fetches, merges, diffs and imports of bundles."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from caloron.errors import NotFound
from caloron.git.command import GitError, git, git_environment
from caloron.git.incoming import BundleRefused, Terms, receive
from caloron.git.mirror import Conflict, Merged, Mirror
from caloron.ports import Remote


class Project:
    """A forge repository, a person's clone of it, and our mirror."""

    def __init__(self, home: Path) -> None:
        self.forge = home / "forge.git"
        self.forge.mkdir()
        git(self.forge, "init", "--bare", "-q", ".")
        git(home, "clone", "-q", str(self.forge), "person")
        self.person = home / "person"
        self.commit("README", "hello\n")
        self.push("main")
        self.mirror = Mirror(home / "mirror.git", Remote(str(self.forge)))
        self.mirror.ensure()

    def commit(self, name: str, content: str | bytes | None, *, at: int = 1_700_000_000) -> str:
        path = self.person / name
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        git(self.person, "add", "-A")
        dates = {"GIT_COMMITTER_DATE": f"@{at} +0000", "GIT_AUTHOR_DATE": f"@{at} +0000"}
        git(self.person, "commit", "-q", "-m", name, environment=git_environment() | dates)
        return git(self.person, "rev-parse", "HEAD")

    def branch(self, name: str, start: str) -> None:
        git(self.person, "checkout", "-q", "-B", name, start)

    def push(self, branch: str) -> None:
        git(self.person, "push", "-q", "--force", "origin", f"HEAD:refs/heads/{branch}")

    def two_branches(self, left: dict[str, str], right: dict[str, str]) -> tuple[str, str]:
        """Two commits from main, on the forge as `left` and `right` and in the mirror."""
        start = self.mirror.fetch_main()
        heads = []
        for name, files in (("left", left), ("right", right)):
            self.branch(name, start)
            for offset, (path, content) in enumerate(files.items()):
                head = self.commit(path, content, at=1_700_000_100 + offset)
            self.push(name)
            assert self.mirror.fetch_branch(name) == head
            heads.append(head)
        return heads[0], heads[1]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_mirror_is_made_once_and_never_prunes(project: Project) -> None:
    first = project.mirror.fetch_main()
    project.mirror.ensure()
    assert project.mirror.fetch_main() == first
    assert git(project.mirror.path, "config", "gc.pruneExpire") == "never"
    assert git(project.mirror.path, "config", "gc.auto") == "0"


def test_an_interrupted_creation_of_a_mirror_is_completed(tmp_path: Path) -> None:
    half = tmp_path / "half.git"
    half.mkdir()
    git(half, "init", "--bare", "-q", ".")
    Mirror(half, Remote("nowhere")).ensure()
    assert git(half, "config", "gc.pruneExpire") == "never"


def test_fetching_main_follows_the_forge_also_backwards(project: Project) -> None:
    first = project.mirror.fetch_main()
    second = project.commit("a", "1\n")
    project.push("main")
    assert project.mirror.fetch_main() == second
    git(project.forge, "pack-refs", "--all")
    assert project.mirror.fetch_main() == second
    git(project.forge, "update-ref", "refs/heads/main", first)
    assert project.mirror.fetch_main() == first
    assert project.mirror.has(second)


def test_a_missing_branch_is_none_and_a_missing_main_is_an_error(
    project: Project, tmp_path: Path
) -> None:
    assert project.mirror.fetch_branch("agent/x/p-1") is None
    other = Mirror(tmp_path / "other.git", Remote(str(project.forge)), "trunk")
    other.ensure()
    with pytest.raises(NotFound, match="no branch trunk"):
        other.fetch_main()
    gone = Mirror(tmp_path / "gone.git", Remote(str(tmp_path / "nowhere")))
    gone.ensure()
    with pytest.raises(GitError, match="nowhere"):
        gone.fetch_main()


def test_a_repeated_merge_is_the_same_commit(project: Project, tmp_path: Path) -> None:
    left, right = project.two_branches({"a": "1\n"}, {"b": "2\n", "c": "3\n"})
    merged = project.mirror.merge(left, right, "Merge it\n\nCloses #1\n")
    assert isinstance(merged, Merged)
    other = Mirror(tmp_path / "other.git", Remote(str(project.forge)))
    other.ensure()
    for name in ("left", "right"):
        other.fetch_branch(name)
    time.sleep(1.1)  # A commit's clock counts seconds.
    assert other.merge(left, right, "Merge it\n\nCloses #1\n") == merged
    assert project.mirror.tree(merged.commit) == merged.tree
    shown = git(project.mirror.path, "show", "-s", "--format=%P|%ct|%at|%an|%B", merged.commit)
    assert shown == f"{left} {right}|1700000101|1700000101|Caloron|Merge it\n\nCloses #1"
    names = git(project.mirror.path, "ls-tree", "--name-only", merged.commit).split()
    assert names == ["README", "a", "b", "c"]
    assert git(project.mirror.path, "rev-parse", f"refs/caloron/merges/{merged.commit}")
    assert project.mirror.is_ancestor(right, merged.commit)
    assert project.mirror.commits_ahead(left, merged.commit) == 3


def test_a_merge_of_a_direct_descendant_still_is_a_commit_with_two_parents(
    project: Project,
) -> None:
    base = project.mirror.fetch_main()
    head, _ = project.two_branches({"a": "1\n"}, {"b": "2\n"})
    merged = project.mirror.merge(base, head, "Merge", ("Ada", "ada@example.org"))
    assert isinstance(merged, Merged)
    shown = git(project.mirror.path, "show", "-s", "--format=%P|%an", merged.commit)
    assert shown == f"{base} {head}|Ada"
    assert merged.tree == project.mirror.tree(head)


def test_a_conflict_names_its_files(project: Project) -> None:
    left, right = project.two_branches(
        {"README": "left\n", "größe.txt": "1\n", "same": "x\n"},
        {"README": "right\n", "größe.txt": "2\n", "same": "x\n"},
    )
    assert project.mirror.merge(left, right, "m") == Conflict(("README", "größe.txt"))


def test_a_deletion_against_a_change_is_a_conflict(project: Project) -> None:
    base = project.mirror.fetch_main()
    project.branch("left", base)
    left = project.commit("README", None)
    project.push("left")
    project.branch("right", base)
    right = project.commit("README", "changed\n")
    project.push("right")
    project.mirror.fetch_branch("left")
    project.mirror.fetch_branch("right")
    assert project.mirror.merge(left, right, "m") == Conflict(("README",))


def test_histories_without_a_common_commit_can_be_merged_and_compared(project: Project) -> None:
    main = project.mirror.fetch_main()
    git(project.person, "checkout", "-q", "--orphan", "other")
    head = project.commit("other", "1\n")
    project.push("other")
    project.mirror.fetch_branch("other")
    assert isinstance(project.mirror.merge(main, head, "m"), Merged)
    assert "+++ b/other" in project.mirror.diff(main, head)


def test_a_merge_of_an_unknown_commit_is_an_error_not_a_conflict(project: Project) -> None:
    main = project.mirror.fetch_main()
    with pytest.raises(GitError):
        project.mirror.merge(main, "1" * 40, "m")


def test_a_diff_shows_the_changes_of_the_branch_and_not_those_of_main(project: Project) -> None:
    left, right = project.two_branches({"ä": "1\n"}, {"b": "2\n"})
    diff = project.mirror.diff(left, right)
    assert "+2" in diff
    assert "ä" not in diff
    assert "diff --git a/ä b/ä" in project.mirror.diff(right, left)


def test_a_binary_file_is_one_line_of_a_diff(project: Project) -> None:
    base = project.mirror.fetch_main()
    project.branch("bin", base)
    head = project.commit("image", bytes(range(256)) * 100)
    project.push("bin")
    project.mirror.fetch_branch("bin")
    assert "Binary files /dev/null and b/image differ" in project.mirror.diff(base, head)


def test_a_long_diff_keeps_its_beginning_and_its_end(project: Project) -> None:
    base = project.mirror.fetch_main()
    project.branch("long", base)
    head = project.commit("long", "".join(f"line {n}\n" for n in range(300_000)))
    project.push("long")
    project.mirror.fetch_branch("long")
    diff = project.mirror.diff(base, head, limit=10_000)
    assert diff.startswith("diff --git a/long b/long")
    assert diff.endswith("+line 299999\n")
    assert "bytes of this diff left out" in diff
    assert len(diff) < 10_100


def _bundle(project: Project, path: Path, *revisions: str) -> Path:
    git(project.person, "bundle", "create", "-q", str(path), *revisions)
    return path


def _take(project: Project, bundle: Path) -> str:
    main = project.mirror.fetch_main()
    terms = Terms(base=main, main=main, message="m", cap_bytes=10_000)
    return receive(project.mirror, bundle, "refs/caloron/x", terms)


def test_a_bundle_with_a_dangerous_object_is_refused(project: Project, tmp_path: Path) -> None:
    base = project.mirror.fetch_main()
    blob = git(project.person, "hash-object", "-w", "--stdin", stdin=b"x")
    entry = f"100644 blob {blob}\t.git\n".encode()
    tree = git(project.person, "mktree", stdin=entry)
    commit = git(project.person, "commit-tree", "-m", "trap", "-p", base, tree)
    git(project.person, "checkout", "-q", "--detach")
    git(project.person, "update-ref", "--no-deref", "HEAD", commit)
    bundle = _bundle(project, tmp_path / "b", "HEAD", f"^{base}")
    with pytest.raises(BundleRefused, match="hasDotgit"):
        _take(project, bundle)
    assert not project.mirror.has(commit)
    assert sorted(file.name for file in tmp_path.glob("b*")) == ["b"]


def test_a_bundle_that_is_not_whole_is_refused(project: Project, tmp_path: Path) -> None:
    project.mirror.fetch_main()
    middle = project.commit("middle", "1\n")
    project.commit("last", "2\n")
    whole = _bundle(project, tmp_path / "whole", "HEAD")
    without_objects = _bundle(project, tmp_path / "b", "HEAD", f"^{middle}")
    (tmp_path / "link").symlink_to(whole)
    (tmp_path / "text").write_text("# v2 git bundle\nHEAD\n")
    (tmp_path / "cut").write_bytes(whole.read_bytes()[:-30])
    for bundle, words in (
        (without_objects, "git refused"),
        (tmp_path / "link", "not a file"),
        (tmp_path / "text", "not a bundle"),
        (tmp_path / "cut", "git refused"),
    ):
        with pytest.raises(BundleRefused, match=words):
            _take(project, bundle)


def test_many_threads_share_a_mirror(project: Project) -> None:
    main = project.mirror.fetch_main()
    left, right = project.two_branches({"a": "1\n"}, {"b": "2\n"})
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                project.mirror.fetch_branch("left")
                project.mirror.keep("refs/caloron/shared", left)
                project.mirror.keep("refs/caloron/shared", right)
                assert isinstance(project.mirror.merge(left, right, "m"), Merged)
        except BaseException as error:  # noqa: BLE001 (reported to the main thread below)
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert project.mirror.resolve("refs/heads/main") == main
