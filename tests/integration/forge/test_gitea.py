"""What is special about Gitea: its adapter against a real one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from caloron.domain.observations import PullSeen
from caloron.forge.connect import connect
from caloron.forge.remote import RemoteForge
from caloron.git.mirror import Mirror
from tests.integration.forge.people import plain_git
from tests.support.gitea import GiteaMissing, Person, Repository, Server


@pytest.fixture(scope="module")
def gitea() -> Iterator[Server]:
    try:
        server = Server()
    except GiteaMissing as missing:
        pytest.skip(f"NO REAL GITEA, THE ADAPTER IS NOT TESTED HERE: {missing}")
    yield server
    server.remove()


@pytest.fixture
def owner(gitea: Server) -> Person:
    return gitea.person("owner")


@pytest.fixture
def robot(gitea: Server) -> Person:
    """The account of the reviews, with a token that may do what it needs and no more."""
    return gitea.person("robot")


@pytest.fixture
def repository(gitea: Server, owner: Person, robot: Person) -> Repository:
    made = gitea.repository(owner)
    made.collaborator(robot)
    return made


@pytest.fixture
def forge(gitea: Server, repository: Repository, owner: Person) -> Iterator[RemoteForge]:
    """With one account, the owner's own."""
    made = connect("gitea", gitea.url, repository.full_name, owner.token)
    yield made
    made.close()


@pytest.fixture
def two(
    gitea: Server, repository: Repository, owner: Person, robot: Person
) -> Iterator[RemoteForge]:
    """With a second account for reviews."""
    made = connect("gitea", gitea.url, repository.full_name, owner.token, robot.token)
    yield made
    made.close()


class Work:
    """A repository of our own to push from."""

    def __init__(self, forge: RemoteForge, path: Path) -> None:
        self.forge = forge
        self.mirror = Mirror(path, forge.remote(), forge.main)
        self.mirror.ensure()
        self.main = self.mirror.fetch_main()

    def commit(self, files: dict[str, str], parent: str = "") -> str:
        path, parent = self.mirror.path, parent or self.main
        index = {"GIT_INDEX_FILE": str(path / "index-of-tests")}
        run(path, index, "read-tree", parent)
        for name, text in files.items():
            blob = run(path, index, "hash-object", "-w", "--stdin", stdin=text)
            run(path, index, "update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
        tree = run(path, index, "write-tree")
        return run(path, index, "commit-tree", tree, "-p", parent, "-m", "work")

    def open_pull(
        self, branch: str, files: dict[str, str] | None = None, body: str = ""
    ) -> PullSeen:
        commit = self.commit(files or {f"{branch.replace('/', '-')}.txt": branch})
        self.forge.push(self.mirror.path, branch, commit, "")
        return self.forge.open_pull(f"Change of {branch}", body, branch)


def run(path: Path, more: dict[str, str], *args: str, stdin: str = "") -> str:
    names = {
        f"GIT_{w}_{k}": "x@example.org" for w in ("AUTHOR", "COMMITTER") for k in ("NAME", "EMAIL")
    }
    done = subprocess.run(
        ["git", "-C", str(path), *args],
        env={"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", **names, **more},
        input=stdin, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def work(forge: RemoteForge, tmp_path: Path) -> Work:
    return Work(forge, tmp_path / "mirror.git")


def test_one_task_goes_through_on_a_real_forge(forge: RemoteForge, work: Work) -> None:
    cursor = forge.poll("").cursor
    issue = forge.create_issue(
        "Log in ü", "text <!-- caloron:issue/s-1/login -->", ("caloron:task",)
    )
    assert issue.labels == ("caloron:task",)
    again = forge.find_issue("issue/s-1/login")
    assert again is not None
    assert again.number == issue.number
    body = f"Closes #{issue.number}\n\n<!-- caloron:pull/s-1/login/0 -->"
    pull = work.open_pull("agent/login/s-1", body=body)
    assert pull.closes == (issue.number,)
    found = forge.find_pull("agent/login/s-1", "pull/s-1/login/0")
    assert found is not None
    assert found.number == pull.number
    verdict = f"APPROVED\n\n<!-- caloron:review/{pull.number}/{pull.head}/1/7 -->"
    review = forge.review(pull.number, pull.head, "approved", verdict)
    assert (review.verdict, review.head, review.author) == ("approved", pull.head, "owner")
    merged = forge.merge(pull.number, pull.head, work.main, "Merge it\n\nbecause")
    assert (merged.state, merged.ended_by) == ("merged", "owner")
    assert work.mirror.fetch_main() == merged.merge_commit
    assert plain_git(work.mirror.path, "log", "-1", "--format=%B", merged.merge_commit).startswith(
        "Merge it\n\nbecause"
    )
    assert forge.issue(issue.number).state == "closed"
    told = {one.object: one for one in forge.poll(cursor).snapshots}
    assert set(told) == {
        f"issue:{issue.number}", f"pull:{pull.number}", f"review:{review.id}", "branch:main",
    }  # fmt: skip
    seen = told[f"pull:{pull.number}"]
    assert isinstance(seen, PullSeen)
    assert seen.state == "merged"
