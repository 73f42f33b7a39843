"""`caloron take` brings merged work into the user's branch, or changes nothing at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.acceptance.checkouts import Repository, repository, writes_file
from tests.support.home import Home, does


@pytest.fixture
def shop(bare_home: Home) -> Repository:
    """A repository for which one task was merged: it wrote `new.txt`."""
    bare_home.script(writes_file("new.txt", "one\ntwo\n"))
    made = repository(bare_home)
    assert made.sprint().code == 0
    return made


def _refused(shop: Repository, *words: str) -> None:
    """Check that `take` is refused with these words and changes nothing."""
    before, head = shop.state, shop.git("symbolic-ref", "--quiet", "HEAD")
    for options in ((), ("--dry-run",)):
        answer = shop.caloron("take", *options)
        assert answer.code == 8, answer
        for word in words:
            assert word in answer.error["message"] + answer.error["hint"]
    assert shop.state == before
    assert shop.git("symbolic-ref", "--quiet", "HEAD") == head


def test_a_branch_without_own_commits_is_fast_forwarded_and_the_changes_are_listed(
    shop: Repository,
) -> None:
    old = shop.head
    objects = shop.git("count-objects", "-v")
    tried = shop.caloron("take", "--dry-run")
    assert tried.code == 9
    assert "1 file, +2 -0" in tried.json["planned_actions"][0]["target"]
    assert shop.head == old
    # A dry run leaves not even an object behind.
    assert shop.git("count-objects", "-v") == objects

    taken = shop.caloron("take")
    assert taken.code == 0, taken
    expected = {
        "project": "shop", "sprint_id": "shop-1", "number": 1, "repo": str(shop.path),
        "branch": "main", "how": "fast-forward", "from": old, "to": shop.head, "commits": 2,
        "files": 1, "added": 2, "removed": 0,
    }  # fmt: skip
    assert taken.data == expected
    assert shop.git("status", "--porcelain") == ""
    assert (shop.path / "new.txt").read_text() == "one\ntwo\n"
    again = shop.caloron("take")
    assert again.data["how"] == "nothing"
    assert again.data["commits"] == 0


def test_the_printed_command_to_undo_take_works(shop: Repository) -> None:
    old = shop.head
    text = shop.caloron("take", json=False).stdout
    line = text.strip().splitlines()[-1]
    command = line.partition(": ")[2]
    assert command.startswith("git -C ")
    shop.home.run_outside("sh", "-c", command, cwd=shop.home.root)
    assert shop.head == old
    assert not (shop.path / "new.txt").exists()


def test_a_branch_that_went_on_gets_a_merge_in_the_users_name(shop: Repository) -> None:
    mine = shop.commit("mine.txt", "mine\n")
    taken = shop.caloron("take", json=False)
    assert taken.code == 0, taken
    assert "Merged into branch main" in taken.stdout
    assert shop.git("show", "--no-patch", "--format=%an %P").startswith(f"Ada {mine} ")
    assert {"mine.txt", "new.txt"} <= {p.name for p in shop.path.iterdir()}


def test_a_merge_that_needs_a_name_git_does_not_know_is_refused(shop: Repository) -> None:
    shop.commit("mine.txt", "mine\n")
    shop.git("config", "user.useConfigOnly", "true")
    shop.home.environment["GIT_CONFIG_GLOBAL"] = os.devnull
    _refused(shop, "who you are", "user.email")


def test_uncommitted_changes_in_other_files_stay(shop: Repository) -> None:
    shop.write("kept.txt", "half done\n")
    shop.write("other.txt", "untracked\n")
    assert shop.caloron("take").code == 0
    assert (shop.path / "kept.txt").read_text() == "half done\n"
    assert (shop.path / "other.txt").read_text() == "untracked\n"
    assert (shop.path / "new.txt").exists()


def test_take_is_refused_if_an_untracked_or_ignored_file_would_be_lost(shop: Repository) -> None:
    shop.write("new.txt", "mine, not committed\n")
    _refused(shop, "new.txt", "git stash")
    (shop.path / ".git" / "info" / "exclude").write_text("new.txt\n")
    assert shop.git("status", "--porcelain") == ""
    _refused(shop, "new.txt")
    (shop.path / "new.txt").unlink()
    (shop.path / "new.txt").mkdir()
    shop.write("new.txt/inside", "mine\n")
    _refused(shop, "new.txt")


def test_take_is_refused_if_it_changes_a_file_with_uncommitted_changes(bare_home: Home) -> None:
    bare_home.script(writes_file("kept.txt", "changed by an agent\n"))
    shop = repository(bare_home)
    assert shop.sprint().code == 0
    shop.write("kept.txt", "changed by me\n")
    _refused(shop, "kept.txt", "not committed")
    shop.git("add", "kept.txt")
    _refused(shop, "kept.txt")


def test_a_conflict_changes_nothing_and_names_the_manual_commands(shop: Repository) -> None:
    shop.commit("new.txt", "mine\n")
    _refused(shop, "conflict in new.txt", "git -C", "pull --no-rebase")


def test_take_is_refused_during_a_merge_or_a_rebase(shop: Repository) -> None:
    shop.git("switch", "--quiet", "-c", "side")
    shop.commit("kept.txt", "side\n")
    shop.git("switch", "--quiet", "main")
    shop.commit("kept.txt", "main\n")
    with pytest.raises(AssertionError):
        shop.git("merge", "side")
    _refused(shop, "middle of a merge")
    shop.git("merge", "--abort")
    with pytest.raises(AssertionError):
        shop.git("cherry-pick", "side")
    _refused(shop, "middle of a cherry-pick")
    shop.git("cherry-pick", "--abort")
    shop.git("switch", "--quiet", "side")
    with pytest.raises(AssertionError):
        shop.git("rebase", "main")
    answer = shop.caloron("take")
    assert answer.code == 8
    assert "middle of a rebase" in answer.error["message"]


def test_a_sprint_can_be_taken_without_what_came_after_it(shop: Repository) -> None:
    shop.home.script(writes_file("second.txt"))
    assert shop.sprint("more").code == 0
    first = shop.caloron("take", "1")
    assert first.data["sprint_id"] == "shop-1"
    assert (shop.path / "new.txt").exists()
    assert not (shop.path / "second.txt").exists()
    assert shop.caloron("take").data["commits"] == 2
    assert (shop.path / "second.txt").exists()
    assert shop.caloron("take", "9").code == 3


def test_a_project_without_a_repository_says_how_to_get_its_work(home: Home) -> None:
    answer = home.caloron("take")
    assert answer.code == 8
    assert answer.error["hint"].startswith("git clone ")


def test_a_repository_that_moved_away_is_named(shop: Repository) -> None:
    shop.path.rename(shop.path.with_name("moved"))
    answer = shop.home.caloron("take", "--project", "shop")
    assert answer.code == 3
    assert "config set repo" in answer.error["hint"]


def test_hooks_that_are_files_of_the_project_do_not_run_and_the_users_own_do(
    bare_home: Home,
) -> None:
    trap = '#!/bin/sh\ntouch "$(git rev-parse --show-toplevel)/../ran"\n'
    planted = does("implement", files={".githooks/post-merge": trap}, run="chmod 755 .githooks/*")
    bare_home.script(planted)
    shop = repository(bare_home)
    shop.git("config", "core.hooksPath", ".githooks")
    assert shop.sprint().code == 0
    assert shop.caloron("take").code == 0
    assert os.access(shop.path / ".githooks" / "post-merge", os.X_OK)
    assert not (shop.path.parent / "ran").exists()

    shop.git("config", "--unset", "core.hooksPath")
    own = Path(shop.git("rev-parse", "--absolute-git-dir")) / "hooks" / "post-merge"
    own.parent.mkdir(exist_ok=True)
    own.write_text(trap)
    own.chmod(0o755)
    bare_home.script(writes_file("more.txt"))
    assert shop.sprint("more").code == 0
    assert shop.caloron("take").code == 0
    assert (shop.path.parent / "ran").exists()


def test_inbox_and_report_name_the_command_until_it_was_taken(shop: Repository) -> None:
    assert shop.caloron("report").data["bring"] == "caloron take"
    (need,) = shop.caloron("inbox").data["items"]
    assert need["kind"] == "take"
    assert need["commands"] == ["caloron take"]
    (elsewhere,) = shop.home.caloron("inbox", "--project", "shop").data["items"]
    assert elsewhere["commands"][0].startswith("caloron take")
    assert shop.caloron("take").code == 0
    assert shop.caloron("inbox").data["items"] == []
    assert shop.caloron("report").data["bring"] == ""


def test_the_inbox_names_only_the_sprint_whose_work_is_missing(
    shop: Repository,
) -> None:
    shop.home.script(does("po", output="no plan"))
    assert shop.caloron("sprint", "more", "--yes").code == 8
    needs = {need["kind"]: need["sprint_id"] for need in shop.caloron("inbox").data["items"]}
    assert needs == {"no_plan": "shop-2", "take": "shop-1"}
