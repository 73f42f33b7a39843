"""The special cases of Gitea: its adapter against a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from caloron.domain.model.snapshots import (
    BranchSnapshot,
    PullSnapshot,
    Snapshot,
)
from caloron.errors import (
    ApprovalMissing,
    ForgeError,
    ForgeUnavailable,
)
from caloron.forge.connect import connect
from caloron.forge.remote.forge import RemoteForge
from caloron.forge.tokens import TokenSource
from caloron.git.mirror import Merged, Mirror
from caloron.ports import Checks, VerifiedMerge
from tests.acceptance.gitea_work import Work
from tests.support.git import git
from tests.support.gitea import Person, Repository, Server
from tests.support.wait import wait_for


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
    """A forge with a single account, the owner's."""
    made = connect("gitea", gitea.url, repository.full_name, owner.token)
    yield made
    made.close()


@pytest.fixture
def two(
    gitea: Server, repository: Repository, owner: Person, robot: Person
) -> Iterator[RemoteForge]:
    """A forge with a second account for reviews."""
    made = connect("gitea", gitea.url, repository.full_name, owner.token, robot.token)
    yield made
    made.close()


@pytest.fixture
def work(forge: RemoteForge, tmp_path: Path) -> Work:
    return Work(forge, tmp_path / "mirror.git")


class Watch:
    """Polls as the engine does: each time from where the last answer ended."""

    def __init__(self, forge: RemoteForge) -> None:
        self.forge = forge
        self.cursor = forge.poll("").cursor

    def poll(self) -> tuple[Snapshot, ...]:
        news = self.forge.poll(self.cursor)
        assert (news.cursor != self.cursor) or not news.snapshots
        self.cursor = news.cursor
        return news.snapshots

    def sees(self, name: str) -> bool:
        return any(snapshot.object.startswith(name) for snapshot in self.poll())

    def settle(self) -> None:
        """Poll until a poll makes no more requests than it must."""
        requests = self.forge.http.breaker.requests

        def quiet() -> bool:
            before = requests.total()
            return not self.poll() and requests.total() - before <= 3

        wait_for(quiet, "a poll costs three requests")


def pusher(work: Work) -> str:
    remote = work.forge.remote()
    token = remote.env["CALORON_GIT_TOKEN"]
    return remote.url.replace("://", f"://me:{token}@")


def test_changes_without_a_new_timestamp_are_reported(
    forge: RemoteForge, work: Work, repository: Repository, robot: Person
) -> None:
    """The other acts of people are in the conformance suite."""
    issue = forge.create_issue("task", "", ()).number
    pull = work.open_pull("feature").number
    path = f"{repository.path}/pulls/{pull}"
    watch = Watch(forge)
    watch.settle()

    def dismiss() -> None:
        last = repository.who.get(f"{path}/reviews")[-1]["id"]
        repository.who.post(f"{path}/reviews/{last}/dismissals", {"message": "no"})

    acts: list[tuple[Callable[[], object], str]] = [
        (lambda: repository.edit_issue(issue, title="other"), f"issue:{issue}"),
        (lambda: repository.acting_as(robot).review(pull, "APPROVED", "my word"), "review:"),
        (dismiss, "review:"),
        (lambda: repository.who.patch(path, {"body": "x"}), f"pull:{pull}"),
        (lambda: repository.edit_issue(pull, state="closed"), f"pull:{pull}"),
        (lambda: repository.edit_issue(pull, state="open"), f"pull:{pull}"),
    ]
    for act, expected in acts:
        act()
        wait_for(partial(watch.sees, expected), expected)


def test_a_pull_request_with_another_base_than_main_is_ignored(
    forge: RemoteForge, work: Work, repository: Repository
) -> None:
    pull = work.open_pull("feature").number
    repository.write_file("c.txt", "c", new_branch="release")
    watch = Watch(forge)
    other = repository.open_pull("feature", "onto release", base="release")["number"]
    watch.settle()
    repository.comment(other, "still a comment")
    changed = [snapshot.object for snapshot in watch.poll()]
    assert f"pull:{other}" not in changed
    assert [open_pull.number for open_pull in forge.pulls()] == [pull]


def test_all_branches_of_several_pages_are_reported(forge: RemoteForge, work: Work) -> None:
    names = [f"many/{number}" for number in range(55)]
    refs = [f"{work.main}:refs/heads/{name}" for name in names]
    git(work.mirror.path, "push", "--quiet", pusher(work), *refs)
    heads, _ = forge.heads()
    assert heads.keys() == {"main", *names}


def test_two_programs_that_create_labels_at_once_leave_no_duplicates(
    gitea: Server, forge: RemoteForge, repository: Repository, owner: Person
) -> None:
    """Gitea allows a second label of the same name; here both list labels before either creates."""
    other = connect("gitea", gitea.url, repository.full_name, owner.token)
    both_listed = threading.Barrier(2, timeout=30)
    for program in (forge, other):
        program._labels._list = _list_together(program._labels._list, both_listed)  # type: ignore[method-assign]
    made: list[str] = []
    threads = [
        threading.Thread(
            target=lambda program=program: made.append(
                *program.create_issue("t", "", ("caloron:task",)).labels
            )
        )
        for program in (forge, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    names = [label["name"] for label in repository.labels()]
    assert len(names) == len(set(names))
    assert made == ["caloron:task"] * 2


def _list_together(list_labels: Callable[[], None], both: threading.Barrier) -> Callable[[], None]:
    """Let the first listing of each end when the other has listed the labels, too."""
    first = [True]

    def listed_once() -> None:
        list_labels()
        if first.pop() if first else False:
            both.wait()

    return listed_once


def test_a_pull_request_that_a_person_retargets_is_closed_and_not_merged(
    forge: RemoteForge, work: Work, repository: Repository
) -> None:
    pull = work.open_pull("feature", body="<!-- caloron:pull/s-1/login/0 -->")
    repository.write_file("c.txt", "c", new_branch="release")
    watch = Watch(forge)
    watch.settle()
    repository.who.patch(f"{repository.path}/pulls/{pull.number}", {"base": "release"})
    snapshots = {snapshot.object: snapshot for snapshot in watch.poll()}
    pull_snapshot = snapshots[f"pull:{pull.number}"]
    assert isinstance(pull_snapshot, PullSnapshot)
    assert pull_snapshot.state == "closed"
    with pytest.raises(ForgeError, match="into release, not into main"):
        forge.merge(pull.number, pull.head, "", "m")
    assert "feature.txt" not in repository.files("release")
    forge.close_pull(pull.number)
    assert repository.pull(pull.number)["state"] == "closed"


def test_labels_are_made_once_however_many_threads_need_them(
    forge: RemoteForge, repository: Repository
) -> None:
    numbers = [forge.create_issue(f"task {n}", "", ()).number for n in range(8)]
    threads = [
        threading.Thread(target=forge.label, args=(number, "caloron:assigned"))
        for number in numbers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [label["name"] for label in repository.labels()]
    assert len(names) == len(set(names)) == 12
    assert all(label["color"] == "0366d6" for label in repository.labels())
    assert all(forge.issue(number).labels == ("caloron:assigned",) for number in numbers)


def test_a_duplicate_or_removed_label_is_harmless(
    forge: RemoteForge, repository: Repository
) -> None:
    for _ in range(2):
        repository.who.post(
            f"{repository.path}/labels", {"name": "caloron:task", "color": "#ededed"}
        )
    issue = forge.create_issue("task", "", ("caloron:task",)).number
    twins = [label["id"] for label in repository.labels() if label["name"] == "caloron:task"]
    assert [label["id"] for label in repository.issue(issue)["labels"]] == [min(twins)]
    repository.who.post(f"{repository.path}/issues/{issue}/labels", {"labels": [max(twins)]})
    assert forge.unlabel(issue, "caloron:task").labels == ()
    for twin in twins:
        repository.who.delete(f"{repository.path}/labels/{twin}")
    assert forge.create_issue("next", "", ("caloron:task",)).labels == ("caloron:task",)
    done = next(label["id"] for label in repository.labels() if label["name"] == "caloron:done")
    repository.who.delete(f"{repository.path}/labels/{done}")
    assert forge.label(issue, "caloron:done").labels == ("caloron:done",)


def test_two_tokens_of_the_same_account_count_as_one_account(
    gitea: Server, repository: Repository, owner: Person
) -> None:
    token = gitea.token("owner", "all")
    forge = connect("gitea", gitea.url, repository.full_name, owner.token, token)
    assert forge.about().reviews == "comment"
    forge.close()


def test_permissions_are_requested_only_for_commands_and_verdicts(
    forge: RemoteForge, gitea: Server, work: Work, repository: Repository
) -> None:
    outsider, reader = gitea.person("outsider"), gitea.person("reader")
    repository.collaborator(reader, "read")
    issue = forge.create_issue("task", "", ()).number
    pull = work.open_pull("feature")
    for who, text in (("outsider", "resolved"), ("outsider", "hello"), ("reader", "caloron:cancel"),
                      ("robot", "caloron:retry\nplease"), ("owner", "resolved")):  # fmt: skip
        repository.acting_as(gitea.person(who)).comment(issue, text)
    trusted_by_comment = {
        (comment.author, comment.body.split()[0]): comment.trusted
        for comment in forge.comments(issue)
    }
    assert trusted_by_comment == {
        ("outsider", "resolved"): False,
        ("outsider", "hello"): False,
        ("reader", "caloron:cancel"): False,
        ("robot", "caloron:retry"): True,
        ("owner", "resolved"): True,
    }
    repository.acting_as(outsider).review(pull.number, "APPROVED", "fine", pull.head)
    assert [(review.author, review.trusted) for review in forge.reviews(pull.number)] == [
        ("outsider", False)
    ]
    listed = connect(
        "gitea", gitea.url, repository.full_name, repository.who.token, people=("Outsider",)
    )
    assert {comment.author: comment.trusted for comment in listed.comments(issue)} == {
        "outsider": True, "reader": False, "robot": False, "owner": True,
    }  # fmt: skip
    listed.close()


def test_an_account_without_administration_knows_the_writers(
    gitea: Server, repository: Repository, robot: Person
) -> None:
    """Gitea lets only administrators ask about others."""
    helper = gitea.person("helper")
    repository.collaborator(helper, "write")
    issue = repository.open_issue("task")["number"]
    repository.acting_as(helper).comment(issue, "caloron:retry")
    repository.acting_as(gitea.person("outsider")).comment(issue, "caloron:retry")
    forge = connect("gitea", gitea.url, repository.full_name, robot.token)
    assert {comment.author: comment.trusted for comment in forge.comments(issue)} == {
        "helper": True, "outsider": False,
    }  # fmt: skip
    forge.close()


def test_line_comments_of_a_person_are_part_of_the_review(
    forge: RemoteForge, work: Work, repository: Repository, robot: Person
) -> None:
    pull = work.open_pull("feature", {"a.txt": "one\ntwo\n"})
    robot.post(
        f"{repository.path}/pulls/{pull.number}/reviews",
        {"event": "REQUEST_CHANGES", "body": "see below", "commit_id": pull.head,
         "comments": [{"path": "a.txt", "body": "say three", "new_position": 2}]},
    )  # fmt: skip
    (review,) = forge.reviews(pull.number)
    assert review.body.startswith("see below\n\n`a.txt:")
    assert review.body.endswith("say three")


def test_a_push_just_before_does_not_stop_a_merge(forge: RemoteForge, work: Work) -> None:
    """Gitea processes a push in the background, and answers 405 meanwhile."""
    pull = work.open_pull("feature")
    second = work.commit({"a.txt": "2"}, pull.head)
    forge.push(work.mirror.path, "feature", second, pull.head)
    assert forge.merge(pull.number, second, work.main, "m").pull.head == second


def test_the_error_of_a_protected_main_names_its_rule_and_the_permission(
    forge: RemoteForge, work: Work, repository: Repository
) -> None:
    repository.protect(
        required_approvals=1, enable_status_check=True, status_check_contexts=["ci/*"]
    )
    about = forge.about()
    assert (about.protected, about.required_approvals, about.required_checks) == (
        True,
        1,
        ("ci/*",),
    )
    pull = work.open_pull("feature")
    assert forge.checks(pull.head) == Checks(state="pending", detail="ci/*: pending")
    with pytest.raises(ForgeError, match="may not be merged: ") as refused:
        forge.merge(pull.number, pull.head, work.main, "m")
    assert refused.value.hint
    repository.status(pull.head, "failure", "ci/test")
    repository.status(pull.head, "success", "ci/lint")
    assert forge.checks(pull.head) == Checks(state="red", detail="ci/test: failure")
    repository.status(pull.head, "success", "ci/test")
    assert forge.checks(pull.head).state == "green"


def test_a_merge_waits_for_approvals_and_names_their_number(
    two: RemoteForge, repository: Repository, gitea: Server, tmp_path: Path
) -> None:
    work = Work(two, tmp_path / "of-two.git")
    repository.protect(required_approvals=2)
    pull = work.open_pull("feature")
    with pytest.raises(ApprovalMissing, match=r"^waits for 2 more approvals by people$"):
        two.merge(pull.number, pull.head, work.main, "m")
    two.review(pull.number, pull.head, "approved", "fine <!-- caloron:review/x -->")
    with pytest.raises(ApprovalMissing, match=r"^waits for 1 more approval by people$"):
        two.merge(pull.number, pull.head, work.main, "m")
    helper = gitea.person("helper")
    repository.collaborator(helper, "write")
    reviews = f"{repository.path}/pulls/{pull.number}/reviews"
    helper.post(reviews, {"event": "APPROVED", "body": "yes", "commit_id": pull.head})
    assert two.merge(pull.number, pull.head, work.main, "m").pull.state == "merged"


def test_addresses_of_pages_use_the_host_of_the_user(
    gitea: Server, repository: Repository, owner: Person
) -> None:
    """Gitea uses the address in its settings, which may differ: http behind TLS, for example."""
    site = gitea.url.replace("127.0.0.1", "localhost")
    assert site != gitea.url
    forge = connect("gitea", site, repository.full_name, owner.token)
    assert forge.about().url == f"{site}/{repository.full_name}"
    assert forge.url(7) == f"{site}/{repository.full_name}/issues/7"
    assert forge.url(7, pull=True) == f"{site}/{repository.full_name}/pulls/7"
    forge.close()


@pytest.mark.parametrize("why", ["no manual merges", "protected"])
def test_gitea_merges_where_a_push_is_not_shown_or_main_is_protected(
    forge: RemoteForge, work: Work, repository: Repository, why: str
) -> None:
    repository.change(allow_manual_merge=why == "protected")
    if why == "protected":
        repository.protect(enable_push=True)
    pull = work.open_pull("feature")
    made = work.mirror.merge(work.main, pull.head, "Merge it")
    assert isinstance(made, Merged)
    verified = VerifiedMerge(made.commit, work.mirror.path)
    merged = forge.merge(pull.number, pull.head, work.main, "Merge it", verified).pull
    assert merged.state == "merged"
    assert merged.merge_commit == work.mirror.fetch_main() != made.commit
    assert work.mirror.tree(merged.merge_commit) == made.tree


def test_the_merge_method_is_allowed_by_the_repository(
    forge: RemoteForge, work: Work, repository: Repository
) -> None:
    only = {"allow_merge_commits": False, "allow_rebase": False, "allow_squash_merge": True}
    repository.change(**only)
    pull = work.open_pull("feature")
    merged = forge.merge(pull.number, pull.head, work.main, "All in one").pull
    assert work.mirror.fetch_main() == merged.merge_commit
    parents = git(work.mirror.path, "log", "-1", "--format=%P", merged.merge_commit)
    assert parents == work.main


def test_a_change_from_a_fork_is_fetched_by_its_number(
    forge: RemoteForge, work: Work, gitea: Server, repository: Repository
) -> None:
    outsider = gitea.person("outsider")
    name = repository.full_name.split("/")[1]
    outsider.post(f"{repository.path}/forks", {})
    fork = Repository(outsider, f"outsider/{name}")
    head = fork.write_file("fork.txt", "x", new_branch="idea")
    number = outsider.post(
        f"{repository.path}/pulls", {"title": "idea", "head": "outsider:idea", "base": "main"}
    )["number"]
    pull = forge.pull(number)
    assert (pull.branch, pull.head, pull.author) == ("outsider:idea", head, "outsider")
    assert not work.mirror.has(head)
    work.mirror.fetch_head(head, pull.branch, number)
    assert work.mirror.has(head)
    with pytest.raises(ForgeError, match="fork"):
        forge.push(work.mirror.path, pull.branch, head, "")


def test_a_token_replaced_in_its_file_is_used_by_the_api_and_by_git(
    gitea: Server, repository: Repository, tmp_path: Path
) -> None:
    scopes = ("write:issue", "write:repository", "read:user")
    old, new = gitea.token("owner", *scopes), gitea.token("owner", *scopes)
    file = tmp_path / "token"
    file.write_text(old)
    file.chmod(0o600)
    forge = connect("gitea", gitea.url, repository.full_name, TokenSource(file=str(file)))
    mirror = Mirror(tmp_path / "mirror.git", forge.remote(), forge.main)
    mirror.ensure()
    gitea.revoke("owner", old)
    # The file has no new token yet: the sprint waits, and the message names the file.
    with pytest.raises(ForgeUnavailable, match=f"the file {file} any more") as refused:
        forge.issues()
    assert "read again by itself" in refused.value.hint
    assert old not in f"{refused.value!r} {refused.value.hint}"
    file.write_text(new)
    made = forge.create_issue("once", "", ())
    assert [issue["title"] for issue in repository.issues()] == [made.title]
    mirror.check_push_access(mirror.fetch_main())
    forge.close()


def test_an_empty_repository_is_recognised_and_polled(gitea: Server, owner: Person) -> None:
    made = gitea.repository(owner, empty=True)
    forge = connect("gitea", f"{gitea.url}/api/v1", made.full_name, owner.token)
    assert forge.about().empty
    assert forge.main == "main"
    assert forge.branch("main") is None
    watch = Watch(forge)
    issue = forge.create_issue("task", "", ()).number
    assert [snapshot.object for snapshot in watch.poll()] == [f"issue:{issue}"]
    commit = made.write_file("README.md", "# new\n")
    (main,) = watch.poll()
    assert isinstance(main, BranchSnapshot)
    assert (forge.about().empty, main.name, main.commit) == (False, "main", commit)
    forge.close()
