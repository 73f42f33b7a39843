"""Processes of the local forge that are killed, or that act at the same moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from caloron.domain.model.snapshots import marker
from caloron.forge.local.forge import LocalForge, create_local_forge
from tests.integration.forge.people import Clone, files_on_main, main_of
from tests.support.git import git

_ACT = """
import sys
from pathlib import Path
from caloron.errors import CaloronError
from caloron.forge.local.forge import LocalForge, create_local_forge
project = Path(sys.argv[1])
try:
    print({call})
except CaloronError as error:
    print(type(error).__name__)
"""


def start(project: Path, call: str, crash: str = "") -> subprocess.Popen[str]:
    """Start a process that makes one call of the forge and is killed at its crash point, if any."""
    source = Path(__file__).parents[3] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source)}
    if crash:
        environment["CALORON_CRASH_AT"] = f"engine|forge.{crash}|1|{project.parent / 'crashed'}"
    return subprocess.Popen(
        [sys.executable, "-c", _ACT.format(call=call), str(project)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def killed(project: Path, call: str, crash: str) -> None:
    process = start(project, call, crash)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


READS: dict[str, Callable[[LocalForge, int, str, str], object]] = {
    "poll": lambda forge, number, head, base: forge.poll(""),
    "pull": lambda forge, number, head, base: forge.pull(number),
    "issue": lambda forge, number, head, base: forge.issues(),
    "merge": lambda forge, number, head, base: forge.merge(number, head, base, ""),
    "close": lambda forge, number, head, base: forge.close_pull(number),
}


@pytest.mark.parametrize("read", READS)
def test_every_read_completes_a_merge_that_was_killed_before_its_record(
    forge: LocalForge, clone: Clone, project: Path, read: str
) -> None:
    issue = forge.create_issue("one", "", ())
    pull = clone.open_pull(forge, "feature", body=f"Closes #{issue.number}")
    base = main_of(forge)
    call = f"LocalForge(project).merge({pull.number}, {pull.head!r}, {base!r}, 'merge')"
    killed(project, call, "merge.before_commit")
    READS[read](forge, pull.number, pull.head, base)
    merged = forge.pull(pull.number)
    assert (merged.state, merged.ended_by, merged.head) == ("merged", "caloron", pull.head)
    assert merged.merge_commit == main_of(forge)
    assert forge.issue(issue.number).state == "closed"
    parents = git(Path(forge.remote().url), "show", "-s", "--format=%P", "main")
    assert parents == f"{base} {pull.head}"


def test_a_killed_recovery_is_repeated(forge: LocalForge, clone: Clone, project: Path) -> None:
    pull = clone.open_pull(forge, "feature")
    clone.push("feature:main")
    killed(project, "LocalForge(project).poll('')", "notice.before_commit")
    assert [s.object for s in forge.poll("").snapshots] == [f"pull:{pull.number}", "branch:main"]
    assert forge.pull(pull.number).state == "merged"


def test_the_next_push_completes_a_push_that_was_killed_before_its_record(
    forge: LocalForge, clone: Clone, project: Path
) -> None:
    pull = clone.open_pull(forge, "feature")
    second = clone.commit("feature", {"more.txt": "more"})
    values = f"Path({str(clone.path)!r}), 'feature', {second!r}, {pull.head!r}"
    killed(project, f"LocalForge(project).push({values})", "push.before_commit")
    assert forge.push(clone.path, "feature", second, pull.head).commit == second
    assert forge.pull(pull.number).head == second


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_a_search_by_marker_prevents_a_second_issue_after_a_crash(
    forge: LocalForge, project: Path, moment: str
) -> None:
    body = marker("sample-1/one")
    call = f"LocalForge(project).create_issue('one', {body!r}, ())"
    killed(project, call, f"issue.{moment}")
    issue = forge.find_issue("sample-1/one")
    assert (issue is not None) == (moment == "after_commit")
    if issue is None:
        forge.create_issue("one", body, ())
    assert [i.number for i in forge.issues()] == [1]


def test_a_search_by_marker_finds_the_pull_request_of_a_killed_process(
    forge: LocalForge, clone: Clone, project: Path
) -> None:
    commit = clone.commit("feature", {"a.txt": "1"})
    forge.push(clone.path, "feature", commit, "")
    call = f"LocalForge(project).open_pull('one', {marker('one/1')!r}, 'feature')"
    killed(project, call, "pull.after_commit")
    pull = forge.find_pull("feature", "one/1")
    assert pull is not None
    assert forge.pulls() == [pull]


def test_the_next_creation_completes_a_killed_creation(tmp_path: Path) -> None:
    project = tmp_path / "sample"
    killed(project, "create_local_forge(project, name='sample')", "notice.before_commit")
    forge = create_local_forge(project, name="sample")
    assert files_on_main(forge) == {"README.md": "# sample"}
    assert [s.object for s in forge.poll("").snapshots] == ["branch:main"]
    forge.close()


def test_only_one_of_two_merges_onto_the_same_base_succeeds(
    forge: LocalForge, clone: Clone, project: Path
) -> None:
    pulls = [clone.open_pull(forge, f"branch{n}") for n in range(4)]
    for _ in range(2):
        base = main_of(forge)
        waiting = forge.pulls("open")[:2]
        calls = [
            f"LocalForge(project).merge({p.number}, {p.head!r}, {base!r}, '').pull.state"
            for p in waiting
        ]
        processes = [start(project, call) for call in calls]
        results = sorted(process.communicate()[0].strip() for process in processes)
        assert results == ["StaleBase", "merged"]
    assert len(forge.pulls("merged")) == 2
    assert len(files_on_main(forge)) == 1 + 2
    assert len(pulls) == 4


def test_two_processes_that_merge_the_same_pull_request_merge_it_once(
    forge: LocalForge, clone: Clone, project: Path
) -> None:
    pull = clone.open_pull(forge, "feature")
    base = main_of(forge)
    call = (
        f"LocalForge(project).merge({pull.number}, {pull.head!r}, {base!r}, '').pull.merge_commit"
    )
    processes = [start(project, call) for _ in range(2)]
    commits = {process.communicate()[0].strip() for process in processes}
    assert commits == {main_of(forge)}
    assert git(Path(forge.remote().url), "rev-list", "--count", "main") == "3"


def test_many_pollers_record_a_push_by_hand_once(
    forge: LocalForge, clone: Clone, project: Path
) -> None:
    clone.open_pull(forge, "feature")
    cursor = forge.poll("").cursor
    clone.commit("feature", {"more.txt": "more"})
    clone.commit("work", {"a.txt": "1"})
    clone.push("feature", "work:main")
    call = "[LocalForge(project).poll('') for _ in range(5)] and ''"
    for process in [start(project, call) for _ in range(3)]:
        process.communicate()
        assert process.returncode == 0
    observation = forge.poll(cursor)
    assert sorted(s.object for s in observation.snapshots) == ["branch:main", "pull:1"]
    # The branch, its pull request and main get one version each, so no change was recorded twice.
    assert int(observation.cursor) - int(cursor) == 3
