"""Remains of an agent may hang, print endlessly or hide; the hand-over always ends."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import pytest

from caloron.agents.clis.registry import agent_cli
from caloron.agents.sandbox.bubblewrap import NoSandbox
from caloron.agents.supervise.processes import read_process
from caloron.agents.supervise.supervise import Buffer, Limits, run, supervise
from caloron.agents.supervise.watch import Watch
from caloron.agents.workspace import commits
from caloron.agents.workspace.commits import AgentWorkLost
from caloron.agents.workspace.pool import Pool
from caloron.agents.workspace.workspaces import remove_workspace
from caloron.git.command import git
from caloron.git.incoming import HandOverCancelled, SecretInCommits
from caloron.git.packs import objects_of
from caloron.git.repository import TooLarge
from caloron.ports import SandboxSpec
from tests.support.agent_requests import agent_request
from tests.support.workspaces import AGENT, MESSAGE, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, {"README": "hello\n"})
    made.create()
    return made


@pytest.mark.parametrize(
    "trap",
    [
        pytest.param(
            "git config filter.x.clean 'sleep 1000'; echo '* filter=x' > .git/info/attributes",
            id="a filter that waits",
        ),
        pytest.param("rm .git/config; mkfifo .git/config", id="a configuration without a writer"),
        pytest.param("rm .git/HEAD; mkfifo .git/HEAD", id="a HEAD without a writer"),
        pytest.param("mkfifo .gitattributes", id="attributes without a writer"),
        pytest.param("git config include.path /workspace/p; mkfifo p", id="an include"),
    ],
)
def test_a_git_that_waits_for_ever_is_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.setattr(commits, "_IDLE_S", 2.0)
    bench.agent(f"echo x > new; {trap}")
    with pytest.raises(AgentWorkLost, match="did not come to an end"):
        bench.take()
    remove_workspace(bench.workspace)
    assert not bench.workspace.exists()


def test_a_filter_that_never_ends_is_ended_and_its_output_is_not_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_PATIENCE_S", 4.0)
    bench.agent(
        "echo x > new; git config filter.x.clean 'yes >&2'; git config filter.x.required true;"
        " echo '* filter=x' > .git/info/attributes"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AgentWorkLost, match="did not come to an end"):
        bench.take()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_process_that_computes_or_prints_is_not_idle(tmp_path: Path) -> None:
    code = "import time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: pass"
    spec = SandboxSpec(workspace=tmp_path)
    confined = NoSandbox().confine((sys.executable, "-c", f"{code}\nprint('end')"), spec)
    printed = Buffer()
    assert not supervise(confined, Limits(60, idle_s=1.5), stdout=printed).timed_out
    assert printed.data == b"end\n"


def test_the_process_group_of_a_killed_command_is_ended(tmp_path: Path) -> None:
    """The outer half of a sandbox that is killed early leaves the inner one waiting for ever."""
    line = "sleep 600 & echo $! > left; kill -9 $$"
    confined = NoSandbox().confine(("sh", "-c", line), SandboxSpec(workspace=tmp_path))
    assert run(confined, timeout_s=60).returncode == 137
    pid = int((tmp_path / "left").read_text())
    give_up = time.monotonic() + 60
    while (left := read_process(pid)) and left.state not in "ZX":
        # The kernel ends the process with a delay.
        assert time.monotonic() < give_up, left
        time.sleep(0.01)


_WAITS = "while ! test -e .git/go; do sleep 0.1; done; cat"


def test_a_cancelled_hand_over_ends_its_processes_and_can_be_repeated(
    bench: Bench,
) -> None:
    bench.agent(
        f"echo x > new; git config filter.x.clean 'echo $$ > .git/here; {_WAITS}';"
        " echo '* filter=x' > .git/info/attributes"
    )
    here = bench.workspace / ".git" / "here"
    with pytest.raises(HandOverCancelled):
        bench.take(cancelled=here.exists)
    (bench.workspace / ".git" / "go").touch()
    head = bench.take()
    assert git(bench.mirror.path, "show", f"{head}:new") == "x"


def test_commits_are_not_checked_to_the_end_when_the_hand_over_is_cancelled(bench: Bench) -> None:
    """All content of the commits is read for secrets, which takes long if there is much."""
    bench.agent("truncate -s 40M new")
    seen = 0

    def cancelled() -> bool:
        nonlocal seen
        seen += (bench.home / "run" / "work.bundle.objects").exists()
        return seen > 3

    with pytest.raises(HandOverCancelled):
        bench.take(cancelled=cancelled, secrets={"KEY": "not-in-there-0123456789"})
    assert not (bench.home / "run" / "work.bundle.objects").exists()
    head = bench.take()
    assert git(bench.mirror.path, "cat-file", "-s", f"{head}:new") == str(40 << 20)


@pytest.mark.parametrize("more", ["truncate -s 6M b", "ln a b"], ids=["file", "hard link"])
def test_sparse_files_are_refused_by_their_full_size_before_git_reads_them(
    bench: Bench, more: str
) -> None:
    bench.agent(
        f"truncate -s 6M a; {more}; git config filter.x.clean 'touch .git/read; cat';"
        " echo '* filter=x' > .git/info/attributes"
    )
    with pytest.raises(TooLarge, match=r"take more than 10 MB on disk.* 12 MB"):
        bench.take(disk_mb=10)
    assert not (bench.workspace / ".git" / "read").exists()


def test_files_that_git_ignores_do_not_count_for_the_size_of_a_change(bench: Bench) -> None:
    bench.agent("truncate -s 20M image; echo image > .gitignore; echo x > new")
    head = bench.take(disk_mb=10)
    assert git(bench.mirror.path, "show", f"{head}:new") == "x"


@pytest.mark.parametrize("victim", ["$PPID", "$$"], ids=["git", "filter"])
def test_a_hand_over_is_repeated_after_one_of_its_processes_was_killed(
    bench: Bench, victim: str
) -> None:
    """A killed process of Caloron does not count as a failure of the agent."""
    once = "[ -e /workspace/.git/once ] || { touch /workspace/.git/once; kill -9 %s; }; cat"
    bench.agent(
        f"echo x > new; git config filter.x.clean '{once % victim}';"
        " git config filter.x.required true; echo 'new filter=x' > .git/info/attributes"
    )
    assert "new" in bench.mirror.files(bench.take())


@pytest.mark.parametrize("times", [1, 2])
def test_files_of_caloron_are_in_no_commit_of_an_agent(bench: Bench, times: int) -> None:
    commit = "git add -f .; git commit -q -m more"
    more = "".join(f"echo {n} > mine-{n}; {commit};" for n in range(times))
    bench.agent(
        f": > .git/info/exclude; mkdir .caloron 'made [x]'; echo x > .caloron/x;"
        f" echo x > 'made [x]/x'; {more} git rm -q -r --cached .caloron; git commit -q -m away"
    )
    head = bench.take(leave_out=["made [x]"])
    names = git(bench.mirror.path, "log", "--format=", "--name-only", f"{bench.main}..{head}")
    assert sorted(set(names.splitlines())) == [f"mine-{n}" for n in range(times)]


def test_commits_without_files_of_caloron_and_with_the_line_of_their_agent_stay_as_they_are(
    bench: Bench,
) -> None:
    commit = 'git add .; git commit -q -m "$n\n\nAgent: agent-1"'
    bench.agent(f"for n in 1 2 3; do echo $n > f$n; {commit}; done; echo 4 > f4")
    head = bench.take(leave_out=["node_modules"], agent="agent-1")
    assert bench.mirror.commits_ahead(bench.main, head) == 4


def test_files_of_the_project_in_such_a_folder_may_be_changed(bench: Bench) -> None:
    bench.agent("echo changed > README; git commit -q -a -m change")
    head = bench.take(leave_out=["README"])
    assert bench.mirror.read(head, "README") == "changed\n"


def test_a_link_to_a_commit_elsewhere_becomes_files_or_nothing(bench: Bench) -> None:
    bench.agent(
        "git init -q lib; echo x > lib/f; git -C lib add f;"
        " git -C lib -c user.name=x -c user.email=x@x.invalid commit -q -m x; git add lib;"
        " git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),gone; git commit -q -m x"
    )
    head = bench.take()
    assert sorted(bench.mirror.files(head)) == ["README", "lib/f"]
    assert bench.mirror.submodules(head) == ()


@pytest.mark.parametrize(
    "message",
    ["no line", "other\n\nAgent: agent-2", "two\n\nAgent: agent-1\nAgent: agent-2"],
    ids=["none", "another agent", "two agents"],
)
def test_commits_without_the_line_of_their_agent_become_one_commit_with_it(
    bench: Bench, message: str
) -> None:
    bench.agent(f"echo 1 > one; git add .; git commit -q -m '{message}'; echo 2 > two")
    head = bench.take(agent="agent-1")
    assert sorted(bench.mirror.files(head)) == ["README", "one", "two"]
    log = git(bench.mirror.path, "log", "--format=%B", f"{bench.main}..{head}")
    assert log == MESSAGE.strip()


def test_the_mirror_contains_no_object_of_refused_commits(bench: Bench) -> None:
    before = objects_of(bench.mirror.path)
    bench.agent("echo 'the secret of secrets' > new")
    with pytest.raises(SecretInCommits, match="hold the value of MY_KEY"):
        bench.take(secrets={"MY_KEY": "the secret of secrets"})
    assert objects_of(bench.mirror.path) == before
    assert not list((bench.home / "run").glob("work.bundle*"))


def test_a_secret_that_was_in_the_start_commit_is_not_refused(bench: Bench) -> None:
    """An example key that a project keeps in a file must not make that file read-only."""
    bench.agent("printf 'README says: hello\n' > README")
    head = bench.take(secrets={"MY_KEY": "README says: hello"[-5:] + "\n" * 0})
    assert bench.mirror.read(head, "README") == "README says: hello\n"


def test_deep_folders_are_removed_and_folders_over_the_limit_are_refused(
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
def test_a_prompt_of_a_megabyte_reaches_the_program_complete(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    prompt = "word " * 200_000 + "end"
    runner = agent_cli("command", command=("cat", *words))
    request = agent_request(tmp_path, tmp_path, prompt)
    request.home.mkdir()
    command = runner.command(request)
    confined = NoSandbox().confine(command.argv, SandboxSpec(workspace=tmp_path))
    assert run(confined, command.stdin.encode()).stdout == prompt.encode()


def test_the_pool_never_offers_a_workspace_that_it_removed(bench: Bench) -> None:
    pool = Pool(bench.mirror, bench.sandbox, bench.home / "pool", 2, AGENT)
    assert pool._make_one()
    bench.commit({"more": "more\n"})
    assert pool._make_one()
    assert [ready.folder.is_dir() for ready in pool._ready] == [True, True]
