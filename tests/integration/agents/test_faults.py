"""What an agent left behind may hang, print without end or hide: whoever looks comes to an end."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.clis.registry import agent_cli
from caloron.agents.sandbox.bubblewrap import Bubblewrap, NoSandbox
from caloron.agents.supervise.processes import read_process
from caloron.agents.supervise.supervise import Buffer, Limits, run, supervise
from caloron.agents.supervise.watch import Watch
from caloron.agents.workspace import commits
from caloron.agents.workspace.commits import AgentWorkLost, HandOver, hand_over
from caloron.agents.workspace.pool import Pool
from caloron.agents.workspace.workspaces import create_workspace, remove_workspace
from caloron.errors import UsageError
from caloron.git.command import git
from caloron.git.incoming import HandOverCancelled, SecretInCommits
from caloron.git.mirror import Mirror
from caloron.git.packs import objects_of
from caloron.git.repository import TooLarge
from caloron.ports import AgentRequest, Remote, SandboxSpec

WHO = ("agent-1", "agent-1@example.invalid")


class Place:
    """A mirror with a main branch, and a workspace where an agent has been."""

    def __init__(self, home: Path) -> None:
        self.home = home
        forge, person = home / "forge.git", home / "person"
        git(home, "init", "--bare", "-q", str(forge))
        git(home, "clone", "-q", str(forge), str(person))
        (person / "README").write_text("hello\n")
        git(person, "add", "-A")
        git(person, "commit", "-q", "-m", "first")
        git(person, "push", "-q", "origin", "HEAD:main")
        self.mirror = Mirror(home / "mirror.git", Remote(str(forge)))
        self.mirror.ensure()
        self.main = self.mirror.fetch_main()
        self.sandbox = Bubblewrap(mirror=self.mirror.path)
        self.workspace = home / "workspaces" / "a"
        create_workspace(
            self.mirror, self.workspace, start=self.main, branch="agent/a", identity=WHO
        )

    def agent(self, script: str) -> None:
        self.sandbox.give_ownership(self.workspace)
        given = SandboxSpec(workspace=self.workspace)
        done = run(self.sandbox.confine(("sh", "-ec", script), given))
        assert done.returncode == 0, done.stderr

    def take(self, *leave_out: str, **more: Any) -> str:
        work = HandOver(
            workspace=self.workspace,
            base=self.main,
            main=self.main,
            message="A\n\nAgent: agent-1\n",
            identity=WHO,
            leave_out=leave_out,
            ref="refs/caloron/work/a",
            bundle=self.home / "work.bundle",
            **more,
        )
        return hand_over(work, self.sandbox, self.mirror)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    "trap",
    [
        pytest.param(
            "git config filter.x.clean 'sleep 1000'; echo '* filter=x' > .git/info/attributes",
            id="a filter that waits",
        ),
        pytest.param("rm .git/config; mkfifo .git/config", id="a configuration nobody writes"),
        pytest.param("rm .git/HEAD; mkfifo .git/HEAD", id="a HEAD nobody writes"),
        pytest.param("mkfifo .gitattributes", id="attributes nobody writes"),
        pytest.param("git config include.path /workspace/p; mkfifo p", id="an include"),
    ],
)
def test_git_that_waits_for_ever_is_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.setattr(commits, "_IDLE_S", 2.0)
    place.agent(f"echo x > new; {trap}")
    with pytest.raises(AgentWorkLost, match="did not come to an end"):
        place.take()
    remove_workspace(place.workspace)
    assert not place.workspace.exists()


def test_a_filter_that_never_ends_is_given_up_and_what_it_prints_is_not_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_PATIENCE_S", 4.0)
    place.agent(
        "echo x > new; git config filter.x.clean 'yes >&2'; git config filter.x.required true;"
        " echo '* filter=x' > .git/info/attributes"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AgentWorkLost, match="did not come to an end"):
        place.take()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_who_works_or_prints_is_not_idle(tmp_path: Path) -> None:
    code = "import time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: pass"
    given = SandboxSpec(workspace=tmp_path)
    confined = NoSandbox().confine((sys.executable, "-c", f"{code}\nprint('end')"), given)
    printed = Buffer()
    assert not supervise(confined, Limits(60, idle_s=1.5), stdout=printed).timed_out
    assert printed.data == b"end\n"


def test_what_a_killed_command_leaves_in_its_group_is_ended_with_it(tmp_path: Path) -> None:
    """The outer half of a sandbox that is killed early leaves the inner one waiting for ever."""
    line = "sleep 600 & echo $! > left; kill -9 $$"
    confined = NoSandbox().confine(("sh", "-c", line), SandboxSpec(workspace=tmp_path))
    assert run(confined, timeout_s=60).returncode == 137
    pid = int((tmp_path / "left").read_text())
    give_up = time.monotonic() + 60
    while (left := read_process(pid)) and left.state not in "ZX":
        # The kernel ends it in its own time.
        assert time.monotonic() < give_up, left
        time.sleep(0.01)


_WAITS = "while ! test -e .git/go; do sleep 0.1; done; cat"


def test_a_hand_over_that_is_cancelled_ends_its_processes_and_can_be_done_again(
    place: Place,
) -> None:
    place.agent(
        f"echo x > new; git config filter.x.clean 'echo $$ > .git/here; {_WAITS}';"
        " echo '* filter=x' > .git/info/attributes"
    )
    here = place.workspace / ".git" / "here"
    with pytest.raises(HandOverCancelled):
        place.take(cancelled=here.exists)
    (place.workspace / ".git" / "go").touch()
    head = place.take()
    assert git(place.mirror.path, "show", f"{head}:new") == "x"


def test_commits_are_not_checked_to_the_end_when_the_hand_over_is_cancelled(place: Place) -> None:
    """All content of the commits is read for secrets, which takes long if there is much."""
    place.agent("truncate -s 40M new")
    seen = 0

    def cancelled() -> bool:
        nonlocal seen
        seen += (place.home / "work.bundle.objects").exists()
        return seen > 3

    with pytest.raises(HandOverCancelled):
        place.take(cancelled=cancelled, secrets={"KEY": "not-in-there-0123456789"})
    assert not (place.home / "work.bundle.objects").exists()
    head = place.take()
    assert git(place.mirror.path, "cat-file", "-s", f"{head}:new") == str(40 << 20)


@pytest.mark.parametrize("more", ["truncate -s 6M b", "ln a b"], ids=["file", "hard link"])
def test_sparse_files_are_refused_by_their_full_size_before_git_reads_them(
    place: Place, more: str
) -> None:
    place.agent(
        f"truncate -s 6M a; {more}; git config filter.x.clean 'touch .git/read; cat';"
        " echo '* filter=x' > .git/info/attributes"
    )
    with pytest.raises(TooLarge, match=r"take more than 10 MB on disk.* 12 MB"):
        place.take(disk_mb=10)
    assert not (place.workspace / ".git" / "read").exists()


def test_files_that_git_ignores_do_not_count_for_the_size_of_a_change(place: Place) -> None:
    place.agent("truncate -s 20M image; echo image > .gitignore; echo x > new")
    head = place.take(disk_mb=10)
    assert git(place.mirror.path, "show", f"{head}:new") == "x"


@pytest.mark.parametrize("victim", ["$PPID", "$$"], ids=["git", "filter"])
def test_work_is_taken_again_when_a_process_is_killed_while_it_is_taken(
    place: Place, victim: str
) -> None:
    """A killed process of ours is no fault of the agent's."""
    once = "[ -e /workspace/.git/once ] || { touch /workspace/.git/once; kill -9 %s; }; cat"
    place.agent(
        f"echo x > new; git config filter.x.clean '{once % victim}';"
        " git config filter.x.required true; echo 'new filter=x' > .git/info/attributes"
    )
    assert "new" in place.mirror.files(place.take())


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_not_the_agents_is_in_no_commit_of_its_history(place: Place, times: int) -> None:
    commit = "git add -f .; git commit -q -m more"
    more = "".join(f"echo {n} > mine-{n}; {commit};" for n in range(times))
    place.agent(
        f": > .git/info/exclude; mkdir .caloron 'made [x]'; echo x > .caloron/x;"
        f" echo x > 'made [x]/x'; {more} git rm -q -r --cached .caloron; git commit -q -m away"
    )
    head = place.take("made [x]")
    names = git(place.mirror.path, "log", "--format=", "--name-only", f"{place.main}..{head}")
    assert sorted(set(names.splitlines())) == [f"mine-{n}" for n in range(times)]


def test_an_agent_that_commits_nothing_of_ours_keeps_its_history(place: Place) -> None:
    place.agent("for n in 1 2 3; do echo $n > f$n; git add .; git commit -q -m $n; done")
    head = place.take("node_modules")
    assert place.mirror.commits_ahead(place.main, head) == 3


def test_files_of_the_project_in_such_a_folder_may_be_changed(place: Place) -> None:
    place.agent("echo changed > README; git commit -q -a -m change")
    head = place.take("README")
    assert place.mirror.read(head, "README") == "changed\n"


def test_a_link_to_a_commit_elsewhere_becomes_files_or_nothing(place: Place) -> None:
    place.agent(
        "git init -q lib; echo x > lib/f; git -C lib add f;"
        " git -C lib -c user.name=x -c user.email=x@x.invalid commit -q -m x; git add lib;"
        " git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),gone; git commit -q -m x"
    )
    head = place.take()
    assert sorted(place.mirror.files(head)) == ["README", "lib/f"]
    assert place.mirror.submodules(head) == ()


@pytest.mark.parametrize(
    "message",
    ["no line", "other\n\nAgent: agent-2", "two\n\nAgent: agent-1\nAgent: agent-2"],
    ids=["none", "another agent", "two agents"],
)
def test_commits_without_the_line_of_their_agent_become_one_that_has_it(
    place: Place, message: str
) -> None:
    place.agent(f"echo 1 > one; git add .; git commit -q -m '{message}'; echo 2 > two")
    head = place.take(agent="agent-1")
    assert sorted(place.mirror.files(head)) == ["README", "one", "two"]
    log = git(place.mirror.path, "log", "--format=%B", f"{place.main}..{head}")
    assert log == "A\n\nAgent: agent-1"


def test_commits_with_the_line_of_their_agent_stay_as_they_are(place: Place) -> None:
    place.agent("echo 1 > one; git add .; git commit -q -m 'x\n\nAgent: agent-1'; echo 2 > two")
    assert place.mirror.commits_ahead(place.main, place.take(agent="agent-1")) == 2


def test_nothing_of_refused_commits_stays_in_the_mirror(place: Place) -> None:
    before = objects_of(place.mirror.path)
    place.agent("echo 'the secret of secrets' > new")
    with pytest.raises(SecretInCommits, match="hold the value of MY_KEY"):
        place.take(secrets={"MY_KEY": "the secret of secrets"})
    assert objects_of(place.mirror.path) == before
    assert not list(place.home.glob("work.bundle*"))


def test_a_value_that_the_agent_began_with_is_not_refused(place: Place) -> None:
    """An example key that a project keeps in a file must not make that file read-only."""
    place.agent("printf 'README says: hello\n' > README")
    head = place.take(secrets={"MY_KEY": "README says: hello"[-5:] + "\n" * 0})
    assert place.mirror.read(head, "README") == "README says: hello\n"


def test_folders_of_any_depth_are_removed_and_too_deep_ones_are_over_the_limit(
    tmp_path: Path,
) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(top)
        for _ in range(3000):
            Path("d" * 20).mkdir()
            os.chdir("d" * 20)
        Path("bottom").touch()
    finally:
        os.fchdir(here)
        os.close(here)
    watch = Watch(memory_mb=10_000, processes=1000, disk_mb=1000, folders=[str(top)])
    assert "too deep" in watch.check([os.getpid()])
    remove_workspace(top)
    assert not top.exists()


@pytest.mark.parametrize("words", [(), ("{prompt_file}",)], ids=["stdin", "file"])
def test_a_megabyte_of_prompt_is_handed_to_a_program_whole(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    prompt = "word " * 200_000 + "end"
    runner = agent_cli("command", command=("cat", *words))
    home = tmp_path / "home"
    request = AgentRequest(
        role="implement",
        task="a",
        prompt=prompt,
        workspace=tmp_path,
        run_dir=tmp_path,
        home=home,
        sandbox_home=home,
    )
    home.mkdir()
    command = runner.command(request)
    confined = NoSandbox().confine(command.argv, SandboxSpec(workspace=tmp_path))
    assert run(confined, command.stdin.encode()).stdout == prompt.encode()
    with pytest.raises(UsageError, match="too long for a command line") as refused:
        agent_cli("command", command=("cat", "{prompt}")).command(request)
    assert "{prompt_file}" in refused.value.hint


def test_a_workspace_whose_door_was_shut_is_opened_again(place: Place) -> None:
    place.agent("echo x > new; chmod 000 /workspace")
    head = place.take()
    assert "new" in place.mirror.files(head)


def test_the_pool_never_offers_a_workspace_that_it_removed(place: Place) -> None:
    pool = Pool(place.mirror, place.sandbox, place.home / "pool", 2, WHO)
    assert pool._make_one()
    person = place.home / "person"
    (person / "more").write_text("more\n")
    git(person, "add", "-A")
    git(person, "commit", "-q", "-m", "main moves on")
    git(person, "push", "-q", "origin", "HEAD:main")
    assert pool._make_one()
    assert [ready.folder.is_dir() for ready in pool._ready] == [True, True]
