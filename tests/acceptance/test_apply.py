"""`caloron apply` brings merged work into the user's branch, or changes nothing at all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.checkouts import Repository, repository, writes_file
from tests.support.home import Answer, Home, does, task, writes


@pytest.fixture
def shop(bare_home: Home) -> Repository:
    """A repository for which one task was merged: it wrote `new.txt`."""
    bare_home.script(writes_file("new.txt", "one\ntwo\n"))
    made = repository(bare_home)
    assert made.sprint().code == 0
    return made


@pytest.fixture
def three(bare_home: Home) -> Repository:
    """A repository for which three tasks were merged: b builds on a, c stands alone."""
    bare_home.script(writes("a", {"a.txt": "a\n"}), writes("b", {"a.txt": "a\nb\n"}), writes("c"))
    made = repository(bare_home)
    plan = bare_home.plan(task("a"), task("b", "a"), task("c"))
    answer = made.caloron(
        "sprint", "Sell more", "--plan", str(plan), "--yes", "--framework", "stub"
    )
    assert answer.code == 0, answer
    return made


def _refused(shop: Repository, *words: str, arguments: tuple[str, ...] = (), code: int = 8) -> None:
    """Check that `take` is refused with these words and changes nothing."""
    before, head = shop.state, shop.git("symbolic-ref", "--quiet", "HEAD")
    for options in ((), ("--dry-run",)):
        answer = shop.caloron("apply", *arguments, *options)
        assert answer.code == code, answer
        for word in words:
            assert word in answer.error["message"] + answer.error["hint"]
    assert shop.state == before
    assert shop.git("symbolic-ref", "--quiet", "HEAD") == head


def test_a_branch_without_own_commits_is_fast_forwarded_and_the_changes_are_listed(
    shop: Repository,
) -> None:
    old = shop.head
    objects = shop.git("count-objects", "-v")
    tried = shop.caloron("apply", "--dry-run")
    assert tried.code == 9
    assert "1 file, +2 -0" in tried.json["planned_actions"][0]["target"]
    assert shop.head == old
    # A dry run leaves not even an object behind.
    assert shop.git("count-objects", "-v") == objects

    taken = shop.caloron("apply")
    assert taken.code == 0, taken
    expected = {
        "project": "shop", "sprint_id": "shop-1", "number": 1, "task": None,
        "repo": str(shop.path), "branch": "main", "how": "fast-forward",
        "from": old, "to": shop.head, "commits": 2, "files": 1, "added": 2, "removed": 0,
    }  # fmt: skip
    assert taken.data == expected
    assert shop.git("status", "--porcelain") == ""
    assert (shop.path / "new.txt").read_text() == "one\ntwo\n"
    again = shop.caloron("apply")
    assert again.data["how"] == "nothing"
    assert again.data["commits"] == 0


def test_the_printed_command_to_undo_take_works(shop: Repository) -> None:
    old = shop.head
    text = shop.caloron("apply", json=False).stdout
    line = text.strip().splitlines()[-1]
    command = line.partition(": ")[2]
    assert command.startswith("git -C ")
    shop.home.run_outside("sh", "-c", command, cwd=shop.home.root)
    assert shop.head == old
    assert not (shop.path / "new.txt").exists()


def test_a_branch_that_went_on_gets_a_merge_in_the_users_name(shop: Repository) -> None:
    mine = shop.commit("mine.txt", "mine\n")
    taken = shop.caloron("apply", json=False)
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
    assert shop.caloron("apply").code == 0
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
    answer = shop.caloron("apply")
    assert answer.code == 8
    assert "middle of a rebase" in answer.error["message"]


def test_a_sprint_can_be_taken_without_what_came_after_it(shop: Repository) -> None:
    shop.home.script(writes_file("second.txt"))
    assert shop.sprint("more").code == 0
    first = shop.caloron("apply", "1")
    assert first.data["sprint_id"] == "shop-1"
    assert (shop.path / "new.txt").exists()
    assert not (shop.path / "second.txt").exists()
    assert shop.caloron("apply").data["commits"] == 2
    assert (shop.path / "second.txt").exists()
    assert shop.caloron("apply", "9").code == 3


def _undo(shop: Repository, answer: Answer) -> None:
    """Run the printed command from another folder."""
    command = answer.stdout.strip().splitlines()[-1].removeprefix("Undo: ")
    shop.home.run_outside("sh", "-c", command, cwd=shop.home.root)


def test_a_branch_gets_the_work_and_the_checkout_stays_as_it_is(three: Repository) -> None:
    three.write("a.txt", "mine, not committed\n")
    before, refs = three.state, three.git("for-each-ref")
    options = ("apply", "1", "--branch", "review/more")
    dry = three.caloron(*options, "--dry-run")
    assert (dry.code, three.state) == (9, before)
    assert "review/more" in dry.json["planned_actions"][0]["target"]

    taken = three.caloron(*options, json=False)
    assert taken.code == 0, taken
    assert three.git("show", "review/more:a.txt") == "a\nb"
    # The user's files, index and own branch are untouched.
    assert three.state[1:] == before[1:]
    assert three.git("rev-parse", "main") in refs
    _undo(three, taken)
    assert three.state == before

    assert three.caloron(*options).code == 0
    three.home.script(writes_file("later.txt"))
    assert three.sprint("later").code == 0
    again = three.caloron("apply", "--branch", "review/more", json=False)
    assert again.code == 0, again
    assert three.git("show", "review/more:later.txt") == "new"
    _undo(three, again)
    assert three.git("ls-tree", "--name-only", "review/more", "later.txt") == ""
    assert three.state[1:] == before[1:]


def test_a_branch_with_other_commits_or_checked_out_elsewhere_is_refused(three: Repository) -> None:
    three.git("switch", "--quiet", "-c", "own")
    three.commit("own.txt", "own\n")
    three.git("switch", "--quiet", "main")
    _refused(three, "has commits", arguments=("--branch", "own"))
    three.git("worktree", "add", "--quiet", str(three.path.parent / "second"), "-b", "second")
    _refused(three, "second", "checked out in", arguments=("--branch", "second"))
    for name in ("-f", "a..b", "with space"):
        _refused(three, name, arguments=(f"--branch={name}",), code=2)


def test_squash_makes_one_commit_of_the_user_and_later_work_follows_it(three: Repository) -> None:
    mine = three.commit("mine.txt", "mine\n")
    dry = three.caloron("apply", "--squash", "--dry-run")
    assert (dry.code, three.head) == (9, mine)
    taken = three.caloron("apply", "--squash", json=False)
    assert taken.code == 0, taken
    assert three.git("show", "--no-patch", "--format=%an %P") == f"Ada {mine}"
    message = three.git("show", "--no-patch", "--format=%B")
    assert message.startswith("Sell more\n\n")
    assert all(f"\n* [{name}] Task {name}\n" in message for name in "abc")
    # The numbers of the project's forge mean nothing elsewhere.
    assert "#" not in message
    assert (three.path / "a.txt").read_text() == "a\nb\n"
    assert three.git("status", "--porcelain") == ""
    assert three.caloron("apply", "--squash").data["how"] == "nothing"
    assert three.caloron("inbox").data["items"] == []

    # The next squash has only what is new, also in a line that the first one brought.
    three.home.script(writes_file("a.txt", "changed\n"))
    assert three.sprint("Change a").code == 0
    again = three.caloron("apply", "--squash", json=False)
    assert again.code == 0, again
    assert (three.path / "a.txt").read_text() == "changed\n"
    assert three.git("show", "--no-patch", "--format=%s") == "Change a"
    assert three.git("diff", "--name-only", "HEAD^") == "a.txt"
    _undo(three, again)
    assert (three.path / "a.txt").read_text() == "a\nb\n"


def test_a_line_of_an_agent_that_looks_like_a_squash_hides_no_work(bare_home: Home) -> None:
    line = 'git add -A && git commit -qm "x\n\nCaloron-Applied: $(git rev-parse HEAD)"'
    bare_home.script(does("implement", files={"new.txt": "new\n"}, run=line))
    shop = repository(bare_home)
    assert shop.sprint().code == 0
    mine = shop.commit("mine.txt", "mine\n")
    shop.home.script(writes_file("more.txt"))
    assert shop.sprint("more").code == 0
    assert shop.caloron("apply", "--squash").code == 0
    assert (shop.path / "new.txt").exists()
    assert shop.git("rev-parse", "HEAD^") == mine
    assert not shop.caloron("inbox").data["items"]


def test_squash_into_a_new_branch_begins_at_the_checkout(three: Repository) -> None:
    head = three.head
    taken = three.caloron("apply", "--squash", "--branch", "review", json=False)
    assert taken.code == 0, taken
    assert three.git("rev-parse", "review^") == three.head == head
    assert three.git("show", "review:a.txt") == "a\nb"
    _undo(three, taken)
    assert three.git("branch", "--list", "review") == ""


def test_one_task_is_taken_alone_and_only_with_those_it_builds_on(three: Repository) -> None:
    _refused(three, "builds on a", "caloron apply a", arguments=("b",))
    mine = three.commit("mine.txt", "mine\n")
    dry = three.caloron("apply", "c", "--dry-run")
    assert (dry.code, three.head) == (9, mine)
    taken = three.caloron("apply", "c", json=False)
    assert taken.code == 0, taken
    assert three.git("diff", "--name-only", "HEAD^") == "c.txt"
    assert three.git("show", "--no-patch", "--format=%an %P %s") == f"Ada {mine} [c] Task c"
    assert three.caloron("apply", "c").data["how"] == "nothing"
    _undo(three, taken)
    assert (three.head, (three.path / "c.txt").exists()) == (mine, False)

    assert three.caloron("apply", "a", "--sprint", "1").data["task"] == "a"
    # A task counts as there although its lines were changed since.
    three.commit("a.txt", "a\nmine\n")
    _refused(three, "conflict in a.txt", "cherry-pick", arguments=("b",))
    three.commit("a.txt", "a\n")
    assert three.caloron("apply", "b").code == 0
    assert (three.path / "a.txt").read_text() == "a\nb\n"
    assert not (three.path / "c.txt").exists()
    # Everything else can still be taken afterwards.
    assert three.caloron("apply").code == 0
    assert (three.path / "c.txt").exists()


def test_a_task_may_go_to_a_branch_of_its_own(three: Repository) -> None:
    before = three.state
    assert three.caloron("apply", "a", "--branch", "only-a").code == 0
    assert three.caloron("apply", "b", "--branch", "only-a").code == 0
    names = three.git("diff", "--name-only", "main", "only-a")
    assert names == "a.txt"
    assert three.state[1:] == before[1:]
    _refused(three, "builds on a", arguments=("b",))


def test_a_task_that_overwrites_files_in_no_commit_is_refused(three: Repository) -> None:
    three.write("c.txt", "mine\n")
    _refused(three, "c.txt", "not committed", arguments=("c",))
    _refused(three, "c.txt", "not committed", arguments=("--squash",))


def test_a_name_that_is_neither_a_sprint_nor_a_task_is_not_found(three: Repository) -> None:
    for arguments in (("nosuch",), ("9",), ("nosuch", "--sprint", "1"), ("a", "--sprint", "9")):
        _refused(three, arguments=arguments, code=3)
    _refused(three, arguments=("../x",), code=2)


def test_a_project_without_a_repository_says_how_to_get_its_work(home: Home) -> None:
    answer = home.caloron("apply")
    assert answer.code == 8
    assert answer.error["hint"].startswith("git clone ")


def test_a_repository_that_moved_away_is_named(shop: Repository) -> None:
    shop.path.rename(shop.path.with_name("moved"))
    answer = shop.home.caloron("apply", "--project", "shop")
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
    assert shop.caloron("apply").code == 0
    assert os.access(shop.path / ".githooks" / "post-merge", os.X_OK)
    assert not (shop.path.parent / "ran").exists()

    shop.git("config", "--unset", "core.hooksPath")
    own = Path(shop.git("rev-parse", "--absolute-git-dir")) / "hooks" / "post-merge"
    own.parent.mkdir(exist_ok=True)
    own.write_text(trap)
    own.chmod(0o755)
    bare_home.script(writes_file("more.txt"))
    assert shop.sprint("more").code == 0
    assert shop.caloron("apply").code == 0
    assert (shop.path.parent / "ran").exists()


def test_inbox_and_report_name_the_command_until_it_was_taken(shop: Repository) -> None:
    assert shop.caloron("report").data["bring"] == "caloron apply"
    (need,) = shop.caloron("inbox").data["items"]
    assert need["kind"] == "apply"
    assert need["commands"] == ["caloron apply"]
    (elsewhere,) = shop.home.caloron("inbox", "--project", "shop").data["items"]
    assert elsewhere["commands"][0].startswith("caloron apply")
    assert shop.caloron("apply").code == 0
    assert shop.caloron("inbox").data["items"] == []
    assert shop.caloron("report").data["bring"] == ""
    again = shop.caloron("resume", json=False)
    assert again.code == 0, again
    assert "caloron apply" not in again.stdout


def test_the_inbox_names_only_the_sprint_whose_work_is_missing(
    shop: Repository,
) -> None:
    shop.home.script(does("po", output="no plan"))
    assert shop.caloron("sprint", "more", "--yes").code == 8
    needs = {need["kind"]: need["sprint_id"] for need in shop.caloron("inbox").data["items"]}
    assert needs == {"no_plan": "shop-2", "apply": "shop-1"}


_KILLER = """#!/bin/sh
n=$(($(cat "{count}" 2>/dev/null || echo 0) + 1)); echo $n > "{count}"
[ $n = {at} ] && kill -9 $PPID && exit 1
exec {git} "$@"
"""


def test_a_take_that_is_killed_before_any_git_command_can_be_repeated(
    three: Repository, tmp_path: Path
) -> None:
    three.commit("mine.txt", "mine\n")
    head, count = three.head, tmp_path / "count"
    killer = tmp_path / "bin" / "git"
    killer.parent.mkdir()
    environment = three.home.environment | {"PATH": f"{killer.parent}:{os.environ['PATH']}"}
    command = (*three.home.program, "apply", "--squash", "--project", "shop")

    def run(at: int, *options: str) -> int:
        count.unlink(missing_ok=True)
        killer.write_text(_KILLER.format(count=count, git=shutil.which("git"), at=at))
        killer.chmod(0o755)
        done = subprocess.run((*command, *options), env=environment, cwd=three.path, check=False)
        return done.returncode

    assert run(0, "--dry-run") == 9
    first = at = int(count.read_text()) + 1
    while (code := run(at)) != 0:
        assert code == -signal.SIGKILL
        # Whatever was done is whole: the files are those of the branch.
        assert three.git("status", "--porcelain") == ""
        assert (three.path / "mine.txt").read_text() == "mine\n"
        answer = three.caloron("apply", "--squash")
        assert answer.code == 0, answer
        assert three.git("show", "main:c.txt") == "c"
        three.git("reset", "--quiet", "--hard", head)
        at += 1
    assert at > first + 3
    assert three.git("status", "--porcelain") == ""
