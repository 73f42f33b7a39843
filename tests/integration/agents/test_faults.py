"""What an agent left behind may hang, print without end or hide: whoever looks comes to an end."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from caloron.agents import commits
from caloron.agents.bounded import run_bounded
from caloron.agents.commits import AgentWorkLost, hand_over, seal
from caloron.agents.frameworks import CommandRunner
from caloron.agents.pool import Pool
from caloron.agents.sandbox import Bubblewrap, NoSandbox, run
from caloron.agents.watch import Watch
from caloron.agents.workspaces import create_workspace, remove_workspace
from caloron.errors import UsageError
from caloron.git.command import git
from caloron.git.mirror import Mirror
from caloron.ports import AgentRequest, Confinement, Remote

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
        self.sandbox.hand_to_agent(self.workspace)
        given = Confinement(workspace=self.workspace)
        run(self.sandbox.confine(("sh", "-ec", script), given)).check_returncode()

    def seal(self, *leave_out: str) -> None:
        since = (self.main, self.main)
        seal(self.workspace, self.sandbox, "A\n", WHO, since=since, leave_out=leave_out)

    def take(self, *leave_out: str) -> str:
        self.seal(*leave_out)
        return hand_over(
            self.workspace,
            self.sandbox,
            self.mirror,
            base=self.main,
            ref="refs/caloron/work/a",
            bundle=self.home / "work.bundle",
            cap_bytes=50_000_000,
        )


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
        place.seal()
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
        place.seal()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_who_works_or_prints_is_not_idle(tmp_path: Path) -> None:
    code = "import time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: pass"
    given = Confinement(workspace=tmp_path)
    confined = NoSandbox().confine((sys.executable, "-c", f"{code}\nprint('end')"), given)
    assert run_bounded(confined, b"", longest_s=60, idle_s=1.5).out == b"end\n"


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
    assert place.mirror.ahead(place.main, head) == 3


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
    assert place.mirror.submodules(head) == []


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
    assert "too deep" in watch.look([os.getpid()])
    remove_workspace(top)
    assert not top.exists()


@pytest.mark.parametrize("words", [(), ("{prompt_file}",)], ids=["stdin", "file"])
def test_a_megabyte_of_prompt_is_handed_to_a_program_whole(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    prompt = "word " * 200_000 + "end"
    runner = CommandRunner(("cat", *words))
    home = tmp_path / "home"
    request = AgentRequest(
        role="implement",
        task="a",
        prompt=prompt,
        workspace=tmp_path,
        run_dir=tmp_path,
        home=home,
        home_inside=home,
    )
    home.mkdir()
    command = runner.command(request)
    confined = NoSandbox().confine(command.argv, Confinement(workspace=tmp_path))
    assert run(confined, command.stdin.encode()).stdout == prompt.encode()
    with pytest.raises(UsageError, match="too long for a command line") as refused:
        CommandRunner(("cat", "{prompt}")).command(request)
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
