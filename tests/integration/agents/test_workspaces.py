"""Workspaces with real git: the mirror gets exactly the work of the agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caloron.agents.workspace.commits import AgentWorkLost
from caloron.agents.workspace.workspaces import create_checkout, remove_workspace
from caloron.errors import InUse
from caloron.git.command import git
from caloron.git.incoming import BundleRefused
from tests.support.workspaces import AGENT, MESSAGE, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    files = {"README": "hello\n", ".gitignore": "*.log\nbuild/\n", "old": "old\n"}
    return Bench(tmp_path, files)


def test_a_workspace_is_on_its_branch_and_commits_as_its_agent(bench: Bench) -> None:
    bench.create()
    assert git(bench.workspace, "symbolic-ref", "--short", "HEAD") == "agent/task-1/p-1"
    assert git(bench.workspace, "rev-parse", "HEAD") == bench.main
    assert git(bench.workspace, "status", "--porcelain") == ""
    bench.agent("echo 1 > new; git add new; git commit -qm mine")
    head = bench.take()
    assert bench.show(head, "%an|%ae|%s") == "agent-1|agent-1@caloron.local|mine"


def test_a_workspace_never_overwrites_another_workspace(bench: Bench) -> None:
    bench.create()
    bench.agent("echo precious > work")
    with pytest.raises(InUse, match="exists already"):
        bench.create()
    assert (bench.workspace / "work").exists()


def test_an_incomplete_workspace_is_created_again(bench: Bench) -> None:
    half = bench.workspace.with_name(".task-1.new")
    half.mkdir(parents=True)
    (half / "half").touch()
    bench.create()
    assert not half.exists()
    assert not (bench.workspace / "half").exists()


def test_uncommitted_work_is_committed_for_the_agent(bench: Bench) -> None:
    bench.create()
    bench.agent(
        "echo changed > README; rm old; mkdir -p a/b .caloron build; echo x > 'a/b/größe ☃.txt';"
        "head -c 1000 /dev/urandom > image; cp image .caloron/image; echo note > .caloron/note;"
        "echo log > run.log; echo o > build/o; ln -s README link; printf x > run; chmod +x run;"
        "printf 'a\\nb' > \"$(printf 'new\\nline')\""
    )
    head = bench.take()
    names = git(bench.mirror.path, "ls-tree", "-r", "-z", "--name-only", head)
    assert names.rstrip("\0").split("\0") == [
        ".gitignore", "README", "a/b/größe ☃.txt", "image", "link", "new\nline", "run",
    ]  # fmt: skip
    assert bench.content(head, "image") == (bench.workspace / ".caloron" / "image").read_bytes()
    assert bench.content(head, "README") == b"changed\n"
    assert bench.show(head, "%B").strip() == MESSAGE.strip()
    assert bench.show(head, "%an|%P") == f"agent-1|{bench.main}"
    assert bench.mirror.resolve("refs/caloron/work/task-1") == head
    assert not (bench.home / "run" / "work.bundle").exists()


def test_commits_and_uncommitted_work_are_both_taken(bench: Bench) -> None:
    bench.create()
    bench.agent("echo 1 > one; git add one; git commit -qm one; echo 2 > two")
    head = bench.take()
    assert bench.mirror.commits_ahead(bench.main, head) == 2
    assert {"one", "two"} <= set(bench.mirror.files(head))


def test_own_folder_stays_out_even_if_the_agent_changes_what_is_ignored(bench: Bench) -> None:
    bench.create()
    bench.agent("mkdir .caloron; echo x > .caloron/x; echo > .git/info/exclude; echo 1 > one")
    assert ".caloron/x" not in bench.mirror.files(bench.take())


@pytest.mark.parametrize(
    "move",
    [
        "git switch -qc other",
        "git checkout -q --detach",
        "git checkout -q --orphan other",
        "git checkout -q -b side && git branch -qD agent/task-1/p-1",
    ],
)
def test_work_on_a_moved_head_counts(bench: Bench, move: str) -> None:
    bench.create()
    bench.agent(f"{move}; echo 1 > one; git add one; git commit -qm one; echo 2 > two")
    head = bench.take()
    assert {"README", "one", "two"} <= set(bench.mirror.files(head))


def test_an_agent_that_goes_back_before_its_start_hands_over_nothing(bench: Bench) -> None:
    bench.commit({"later": "1\n"})
    main = bench.mirror.fetch_main()
    bench.create(start=main)
    bench.agent(f"git reset -q --hard {bench.main}")
    assert bench.take(base=main) == main


@pytest.mark.parametrize("commits", [True, False])
def test_a_nested_repository_is_taken_as_files(bench: Bench, commits: bool) -> None:
    bench.create()
    commit = "git add -A; git commit -qm inner;" if commits else ""
    identity = "git config user.name x; git config user.email x@y;"
    bench.agent(
        f"mkdir 'n 1'; cd 'n 1'; git init -q; {identity} echo 1 > file; mkdir deep; cd deep;"
        f"git init -q; {identity} echo 2 > file; {commit} cd ..; {commit} cd ..;"
        "mkdir build; cd build; git init -q"
    )
    head = bench.take()
    assert {"n 1/file", "n 1/deep/file"} <= set(bench.mirror.files(head))
    modes = git(bench.mirror.path, "ls-tree", "-r", head)
    assert "160000" not in modes
    assert (bench.workspace / "build" / ".git").exists()


def test_locks_of_a_killed_git_are_ignored(bench: Bench) -> None:
    bench.create()
    bench.agent("echo 1 > one; touch .git/index.lock .git/HEAD.lock .git/refs/heads/x.lock")
    assert "one" in bench.mirror.files(bench.take())


def test_planted_git_configuration_has_no_effect(bench: Bench) -> None:
    bench.create()
    bench.agent(
        "echo 1 > one; mkdir -p .caloron/elsewhere;"
        "printf '#!/bin/sh\\ntouch /workspace/.caloron/ran; exit 1\\n' > trap;"
        "chmod +x trap; cp trap .git/trap; mkdir -p .git/hooks; cp trap .git/hooks/pre-commit;"
        "git config core.fsmonitor .git/trap; git config core.hooksPath .git/hooks;"
        "git config core.worktree ../.caloron/elsewhere; git config commit.gpgSign true;"
        "git config gpg.program .git/trap; git config diff.external .git/trap"
    )
    head = bench.take()
    assert "one" in bench.mirror.files(head)
    assert not (bench.workspace / ".caloron" / "ran").exists()


def test_a_planted_filter_runs_only_in_the_sandbox(bench: Bench) -> None:
    secret = bench.home / "secret"
    secret.write_text("outside\n")
    bench.create()
    bench.agent(
        f"printf '#!/bin/sh\\ncat; cat {secret}; echo x > {bench.home}/written\\n' > .git/f;"
        "chmod +x .git/f; git config filter.f.clean .git/f; git config filter.f.required false;"
        "echo '* filter=f' > .gitattributes; echo mine > one"
    )
    head = bench.take()
    assert bench.content(head, "one") == b"mine\n"
    assert not (bench.home / "written").exists()


@pytest.mark.parametrize(
    "destruction",
    [
        "rm -rf .git",
        "rm -rf .git; echo gitdir: /tmp > .git",
        "mv .git /tmp/git; ln -s /tmp/git .git",
        "rm -rf .git/objects",
        "rm .git/HEAD",
        "rm .git/objects/info/alternates",
    ],
)
def test_a_destroyed_repository_is_reported(bench: Bench, destruction: str) -> None:
    bench.create()
    bench.agent(f"echo 1 > one; {destruction}")
    with pytest.raises(AgentWorkLost, match="cannot be taken"):
        bench.take()


def test_commits_beyond_the_cap_are_refused(bench: Bench) -> None:
    bench.create()
    bench.agent("head -c 300000 /dev/urandom > large")
    with pytest.raises(BundleRefused, match="100000 bytes allowed"):
        bench.take(cap_bytes=100_000)
    assert not (bench.home / "run" / "work.bundle").exists()
    assert "large" in bench.mirror.files(bench.take())


def test_an_agent_cannot_push_anywhere(bench: Bench) -> None:
    bench.create()
    bench.agent("! git push -q origin HEAD:main")


def _in_a_merge(
    bench: Bench, work: str = "echo mine > README; echo 1 > one", **theirs: str
) -> tuple[str, str]:
    """Start a round with an open merge of the agent's work and a newer main."""
    bench.create()
    bench.agent(work)
    head = bench.take()
    remove_workspace(bench.workspace)
    main = bench.commit(theirs or {"README": "theirs\n", "two": "2\n"})
    bench.mirror.fetch_main()
    bench.create(start=head, merge=main)
    return head, main


def test_a_resolve_round_starts_in_the_middle_of_the_merge_and_ends_with_its_commit(
    bench: Bench,
) -> None:
    head, main = _in_a_merge(bench)
    bench.agent("echo both > README")
    resolved = bench.take(base=head)
    assert bench.show(resolved, "%P") == f"{head} {main}"
    assert bench.content(resolved, "README") == b"both\n"
    assert bench.mirror.conflict_markers(resolved, ("README",)) == ()
    assert {"one", "two"} <= set(bench.mirror.files(resolved))
    assert bench.mirror.commits_ahead(main, resolved) == 2


def test_a_merge_committed_by_the_agent_of_a_resolve_round_is_taken_unchanged(
    bench: Bench,
) -> None:
    head, main = _in_a_merge(bench)
    bench.agent("echo both > README; git commit -qam 'both sides'")
    resolved = bench.take(base=head)
    assert bench.show(resolved, "%P|%s") == f"{head} {main}|both sides"


@pytest.mark.parametrize(
    ("work", "theirs", "resolution", "is_ours"),
    [("echo mine > README", {"README": "theirs\n"}, "git checkout -q --ours README", True),
     ("echo 1 > one", {"two": "2\n"}, "true", False)],
    ids=["our side", "no conflict"],
)  # fmt: skip
def test_a_merge_that_changes_nothing_of_ours_is_concluded_too(
    bench: Bench, work: str, theirs: dict[str, str], resolution: str, is_ours: bool
) -> None:
    head, main = _in_a_merge(bench, work, **theirs)
    bench.agent(resolution)
    resolved = bench.take(base=head)
    assert bench.show(resolved, "%P") == f"{head} {main}"
    assert (bench.mirror.tree(resolved) == bench.mirror.tree(head)) is is_ours


def test_without_changes_or_new_commits_there_is_no_commit_and_no_merge(bench: Bench) -> None:
    bench.create(merge=bench.main)
    bench.agent("echo log > run.log; mkdir .caloron; touch .caloron/x")
    assert bench.take() == bench.main


def test_a_resolve_round_that_leaves_conflict_markers_is_refused(bench: Bench) -> None:
    head, _ = _in_a_merge(bench)
    left = bench.take(base=head)
    assert bench.mirror.conflict_markers(left, ("README", "two", "gone")) == ("README",)


def test_conflict_markers_are_searched_in_the_taken_commits(bench: Bench) -> None:
    bench.create()
    os.mkfifo(bench.workspace / "pipe")
    (bench.workspace / "marked").write_bytes(b"\xff\0\n<<<<<<< HEAD\n")
    (bench.workspace / "link").symlink_to("marked")
    (bench.workspace / "inside").write_text("text <<<<<<< HEAD\n>>>>>>>\n")
    (bench.workspace / "long").write_text("x" * 200_000 + "<<<<<<< HEAD\n")
    (bench.workspace / "end").write_text("x\n>>>>>>> main")
    names = ("pipe", "marked", "link", "inside", "long", "end", "README", ":(glob)*")
    assert bench.mirror.conflict_markers(bench.take(), names) == ("end", "marked")


def test_a_workspace_with_read_only_folders_can_be_removed(bench: Bench) -> None:
    bench.create()
    bench.agent("mkdir -p a/b; echo 1 > a/b/c; ln -s /nowhere a/l; chmod 500 a/b; chmod 000 a")
    remove_workspace(bench.workspace)
    assert not bench.workspace.exists()
    remove_workspace(bench.workspace)


def test_a_checkout_is_exactly_the_commit(bench: Bench) -> None:
    bench.create()
    bench.agent("echo 1 > one; rm old")
    head = bench.take()
    folder = bench.home / "verify"
    for _ in range(2):
        create_checkout(bench.mirror, folder, head)
        assert sorted(p.name for p in folder.iterdir()) == [".git", ".gitignore", "README", "one"]
        assert git(folder, "rev-parse", "HEAD") == head
        (folder / "rubbish").touch()


@pytest.mark.parametrize(
    "away",
    [
        "git checkout -qb elsewhere; git add -A; git commit -qm one; git checkout -q -",
        "git add -A; git stash -q",
    ],
)
def test_work_that_was_left_on_another_branch_or_in_a_stash_counts(bench: Bench, away: str) -> None:
    bench.create()
    bench.agent(f"echo 1 > one; {away}; test ! -e one")
    head = bench.take()
    assert "one" in bench.mirror.files(head)
    assert bench.show(head, "%an|%P") == f"agent-1|{bench.main}"


def test_a_folder_that_an_agent_made_unreadable_is_its_work_too(bench: Bench) -> None:
    bench.create()
    bench.agent("mkdir -p a/b; echo 1 > a/b/c; chmod 000 a/b/c a/b a /workspace")
    assert "a/b/c" in bench.mirror.files(bench.take())


def test_commits_of_an_agent_have_its_configured_identity(bench: Bench) -> None:
    bench.create()
    bench.agent(
        "git config user.name Linus; echo 1 > one; git add one; git commit -qm one;"
        "echo 2 > two; git add two; git commit -qm two --author='Evil <e@e>'"
    )
    head = bench.take()
    assert {"one", "two"} <= set(bench.mirror.files(head))
    log = git(bench.mirror.path, "log", "--format=%an %ae %cn %ce", f"{bench.main}..{head}")
    assert log == f"{AGENT[0]} {AGENT[1]} {AGENT[0]} {AGENT[1]}"


def test_a_merge_by_another_author_stays_a_merge(bench: Bench) -> None:
    bench.commit({"new": "from main\n"})
    main = bench.mirror.fetch_main()
    bench.create(merge=main)
    bench.agent("git config user.name Linus; echo 1 > one; git add one; git commit -qm merged")
    head = bench.take()
    assert {"one", "new"} <= set(bench.mirror.files(head))
    assert bench.show(head, "%P") == f"{bench.main} {main}"
