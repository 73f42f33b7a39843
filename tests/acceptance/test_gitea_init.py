"""`caloron init` and the commands of people on a real Gitea."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.gitea import Person, Repository, Server
from tests.support.home import Home

Init = tuple[str, ...]
#: What is changed on the forge before `init`; Bob is another account.
Change = Callable[[Repository, Person], object]


@pytest.fixture
def ada(gitea: Server) -> Person:
    return gitea.person("ada")


@pytest.fixture
def bob(gitea: Server) -> Person:
    return gitea.person("bob")


@pytest.fixture
def home(bare_home: Home, ada: Person, bob: Person) -> Home:
    """A home whose user is Ada, with Bob's token at hand."""
    bare_home.environment |= {"ADA": ada.token, "BOB": bob.token}
    return bare_home


@pytest.fixture
def repository(gitea: Server, ada: Person) -> Repository:
    return gitea.repository(ada)


def arguments(repository: Repository, *more: str, host: str = "", token: str = "ADA") -> Init:
    return (
        "init", "demo", "--forge", "gitea", "--host", host or repository.who.url,
        "--repo", repository.full_name, "--token-env", token, "--framework", "stub", *more,
    )  # fmt: skip


def nothing_was_made(home: Home) -> bool:
    projects = home.path / "projects"
    return (
        not (projects.exists() and any(projects.iterdir())) and not (home.path / "active").exists()
    )


def test_init_creates_a_project_and_describes_the_repository(
    home: Home, repository: Repository
) -> None:
    repository.write_file("shop.py", "items = []\n")
    repository.write_file(".gitea/workflows/test.yml", "on: [push]\n")
    repository.write_file("CONTRIBUTING.md", "Write tests.\n")
    made = home.caloron(*arguments(repository))
    assert made.code == 0, made
    data = made.data
    assert data["account"] == data["reviewer"] == "ada"
    assert data["reviews"] == "comment"
    assert data["url"] == f"{repository.who.url}/{repository.full_name}"
    description = data["repository"]
    assert description["default_branch"] == "main"
    assert description["languages"] == {"Python": 1}
    assert description["ci"] == [".gitea/workflows/test.yml"]
    assert description["rules"] == [{"kind": "contributing", "path": "CONTRIBUTING.md"}]
    assert description["recent_commits"][0]["message"] == "write CONTRIBUTING.md"
    assert repository.labels() == []
    status = home.caloron("status").data["forge"]
    assert (status["kind"], status["reviews"]) == ("gitea", "comment")


def test_with_a_second_account_reviews_are_reviews_and_both_are_named(
    home: Home, repository: Repository, bob: Person
) -> None:
    repository.collaborator(bob)
    made = home.caloron(*arguments(repository, "--reviewer-token-env", "BOB"), json=False)
    assert made.code == 0, made
    assert "Account    ada" in made.stdout
    assert "reviews by the second account bob" in made.stdout
    assert home.caloron("status").data["forge"]["reviews"] == "review"


def test_the_api_root_and_another_default_branch_are_understood(
    home: Home, gitea: Server, ada: Person
) -> None:
    repository = gitea.repository(ada, default_branch="trunk")
    made = home.caloron(*arguments(repository, host=f"{gitea.url}/api/v1/"))
    assert made.code == 0, made
    assert made.data["repository"]["default_branch"] == "trunk"


def test_a_repository_without_a_commit_gets_its_first_commit(
    home: Home, gitea: Server, ada: Person
) -> None:
    repository = gitea.repository(ada, empty=True)
    would = home.caloron(*arguments(repository, "--dry-run"))
    assert would.code == 9
    assert "first commit" in would.json["planned_actions"][0]["action"]
    assert nothing_was_made(home)
    assert repository.who.get(repository.path)["empty"]
    made = home.caloron(*arguments(repository))
    assert made.code == 0, made
    assert made.data["first_commit"] is True
    assert repository.files() == {"README.md"}


def test_a_token_from_a_file_or_from_gits_credential_helper_will_do(
    home: Home, repository: Repository, ada: Person
) -> None:
    file = home.root / "token"
    file.write_text(f"{ada.token}\n")
    file.chmod(0o600)
    common = (*arguments(repository)[:8], "--framework", "stub")
    by_file = home.caloron(*common, "--token-file", str(file), "--dry-run")
    assert by_file.code == 9, by_file
    without = home.caloron(*common)
    assert without.code == 8
    assert "credential" in without.error["message"]
    helper = f"!f() {{ echo username=ada; echo password={ada.token}; }}; f"
    home.run_outside("git", "config", "--global", "credential.helper", helper, cwd=home.root)
    assert home.caloron(*common).code == 0
    assert ada.token not in (home.project() / "config.yml").read_text()


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"--token-env": "NOT_SET"}, 8, "NOT_SET"),
        ({"--token-env": "WRONG"}, 8, "does not take the token"),
        ({"--token-env": "WRONG"}, 8, "/user/settings/applications, with the scopes write:repo"),
        ({"--token-env": "NOT_SET"}, 8, "/user/settings/applications, with the scopes write:repo"),
        ({"--repo": "https://git.example.org/ada/shop.git"}, 2, "OWNER/NAME: --repo ada/shop"),
        ({"--repo": ""}, 2, "--forge gitea needs --repo"),
        ({"--host": "git.example.org:3000"}, 2, "put https:// or http:// before it"),
        ({"--host": "http://no-such-host.invalid"}, 7, "no such host is known here"),
        ({"--repo": "ada/nothing-there"}, 3, "ada/nothing-there"),
        ({"--repo": "no-owner"}, 2, "OWNER/NAME"),
        ({"--host": "http://127.0.0.1:1"}, 7, "127.0.0.1:1"),
        ({"--host": "ftp://example.org"}, 2, "web address"),
        ({"--host": "http://ada:secret@127.0.0.1"}, 2, "web address"),
        ({"--token-env": "not a name"}, 2, "environment variable"),
        ({"--ca-file": "/nowhere/ca.pem"}, 3, "--ca-file"),
        ({"--reviewer-token-env": "ADA"}, 2, "both tokens belong to ada"),
        ({"--forge": "github"}, 3, "is no GitHub"),
        ({"--host": "http://{host}/ada"}, 3, "is no Gitea"),
        ({"--host": "https://{host}"}, 7, "should its address begin with http:"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_created(
    home: Home, repository: Repository, change: dict[str, str], code: int, words: str
) -> None:
    usual_options = dict(zip(arguments(repository)[2::2], arguments(repository)[3::2], strict=True))
    host = urlsplit(repository.who.url).netloc
    changed = {name: value.replace("{host}", host) for name, value in change.items()}
    words_of_options = [word for pair in (usual_options | changed).items() for word in pair]
    answer = home.caloron("init", "demo", *words_of_options, WRONG="0" * 40)
    error_text = answer.error["message"] + answer.error.get("hint", "")
    assert words in error_text, answer
    assert answer.code == code, answer
    assert answer.error.get("hint"), answer
    assert nothing_was_made(home)


@pytest.mark.parametrize(
    ("scopes", "missing"),
    [
        (("read:repository", "read:issue", "read:user"), "write:issue"),
        (("read:repository", "write:issue", "read:user"), "push"),
        (("write:repository", "write:issue"), "read:user"),
        (("write:issue", "read:user"), "repository"),
        (("write:repository", "write:issue", "read:user"), ""),
    ],
)
def test_exactly_the_scopes_that_the_docs_name_are_needed(
    home: Home, gitea: Server, repository: Repository, scopes: tuple[str, ...], missing: str
) -> None:
    home.environment["ADA"] = gitea.token("ada", *scopes)
    answer = home.caloron(*arguments(repository))
    if not missing:
        assert answer.code == 0, answer
        return
    assert answer.code == 8, answer
    assert missing in answer.error["message"]
    assert "write:repository, write:issue and read:user" in answer.error["hint"]
    assert nothing_was_made(home)


def change(**values: Any) -> Change:
    return lambda repository, _bob: repository.change(**values)


def protect(pattern: str, **rules: Any) -> Change:
    def change(repository: Repository, bob: Person) -> None:
        repository.collaborator(bob)
        repository.protect(pattern, **rules)

    return change


PUSHED = {"enable_push": True, "enable_push_whitelist": True}
BY_BOB, REVIEWER = {"token": "BOB"}, {"more": ("--reviewer-token-env", "BOB")}


@pytest.mark.parametrize(
    ("prepare", "options", "words", "grant"),
    [
        (lambda r, bob: r.collaborator(bob, "read"), BY_BOB, "bob", "/settings/collaboration"),
        (lambda r, bob: None, REVIEWER, "bob, the second account", "/settings/collaboration"),
        (change(has_issues=False), {}, "has its issues switched off", ""),
        (change(has_pull_requests=False), {}, "has its pull requests switched off", ""),
        (change(archived=True), {}, "is archived", "bring it back from the archive"),
        (protect("main", required_approvals=1), {}, "1 approval", "--reviewer-token-env"),
        (protect("main", enable_merge_whitelist=True, merge_whitelist_usernames=["ada"]),
         BY_BOB, "bob may not merge", "merge whitelist"),
        (protect("agent/**", enable_push=False), {}, "rule agent/** forbids it", "push whitelist"),
        (protect("{agent,x}/*/*", **PUSHED, push_whitelist_usernames=["bob"]), {},
         "may not push to agent/** and caloron/**", "let ada push"),
        (protect("caloron/**", enable_push=False), {}, "rule caloron/** forbids it",
         "push whitelist"),
        (protect("agent/**", enable_push=True, require_signed_commits=True), {},
         "only signed commits (the rule agent/**)", "do not require signed commits"),
        (protect("main", enable_push=False, require_signed_commits=True), {},
         "only signed commits (the rule main)", "do not require signed commits"),
        (protect("main", enable_push=True, block_on_outdated_branch=True), {},
         "behind main (the rule main)", "do not block outdated pull requests"),
    ],
)  # fmt: skip
def test_a_repository_without_the_needed_permissions_is_refused_with_their_names(
    home: Home, repository: Repository, bob: Person, prepare: Change, options: Any, words: str,
    grant: str,
) -> None:  # fmt: skip
    prepare(repository, bob)
    command = arguments(repository, *options.get("more", ()), token=options.get("token", "ADA"))
    answer = home.caloron(*command)
    assert answer.code == 8, answer
    assert words in answer.error["message"]
    assert grant in answer.error["hint"]
    assert nothing_was_made(home)


def test_required_approvals_and_a_protected_main_are_no_obstacle_with_a_second_account(
    home: Home, repository: Repository, bob: Person
) -> None:
    protect("main", required_approvals=1, enable_push=False)(repository, bob)
    made = home.caloron(*arguments(repository, "--reviewer-token-env", "BOB"))
    assert made.code == 0, made
    assert made.data["protected"] is True


def test_rules_that_let_the_account_push_are_no_obstacle(
    home: Home, repository: Repository, bob: Person
) -> None:
    repository.collaborator(bob)
    repository.protect("agent/**", **PUSHED, push_whitelist_usernames=["ada"])
    # A pattern with a single asterisk ends at the slash: it matches no branch of Caloron.
    repository.protect("caloron/*", enable_push=False)
    made = home.caloron(*arguments(repository))
    assert made.code == 0, made
    assert made.data["notes"] == []
    # An account without administration cannot read the rules, and the message says so.
    other = home.caloron("init", "other", *arguments(repository, token="BOB")[2:])
    assert "may not look at rules for branches" in other.data["notes"][0]


def test_take_brings_merged_work_of_the_forge_into_a_clone(
    home: Home, repository: Repository
) -> None:
    clone = home.root / "clone"
    subprocess.run(["git", "clone", "-q", repository.clone_url, clone], check=True)
    home.caloron(*arguments(repository, "--checkout", str(clone)))
    repository.write_file("a.txt", "a\n")
    taken = home.caloron("apply")
    assert taken.data["how"] == "fast-forward", taken
    assert Path(clone, "a.txt").read_text() == "a\n"
    assert home.caloron("apply").data["how"] == "nothing"


def test_a_checkout_of_another_repository_is_refused(home: Home, repository: Repository) -> None:
    other = home.root / "other"
    for line in (("init", "-q", other), ("-C", other, "commit", "-q", "--allow-empty", "-m", "x")):
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@b", *line], check=True)
    for checkout, why in (
        (other, "is not a clone of"),
        (home.root / "empty", "is not a git repository"),
    ):
        checkout.mkdir(exist_ok=True)
        answer = home.caloron(*arguments(repository, "--checkout", str(checkout)))
        assert (answer.code, why in answer.error["message"]) == (2, True), answer
        assert nothing_was_made(home)
    # A copy without a remote is recognised by its first commit.
    clone = home.root / "clone"
    subprocess.run(["git", "clone", "-q", repository.clone_url, clone], check=True)
    subprocess.run(["git", "-C", clone, "remote", "remove", "origin"], check=True)
    assert home.caloron(*arguments(repository, "--checkout", str(clone))).code == 0


def test_an_unusable_webhook_is_reported_before_a_sprint_is_recorded(
    home: Home, repository: Repository
) -> None:
    home.caloron(*arguments(repository))
    home.set(webhook="127.0.0.1:9443", webhook_secret_env="NOT_THERE")
    answer = home.caloron("sprint", "anything", "--yes")
    assert answer.code == 8
    assert "NOT_THERE" in answer.error["message"]
    assert home.caloron("history").data["sprints"] == []


def test_take_without_a_clone_names_the_command_that_makes_it(
    home: Home, repository: Repository
) -> None:
    home.caloron(*arguments(repository))
    answer = home.caloron("apply")
    assert answer.code == 8
    assert "git pull" in answer.error["hint"]
    clone = home.root / "clone"
    subprocess.run(["git", "clone", "-q", repository.clone_url, clone], check=True)
    repository.write_file("a.txt", "a\n")
    assert home.caloron("apply", cwd=clone).data["how"] == "fast-forward"


def test_a_person_reviews_with_the_only_account(home: Home, repository: Repository) -> None:
    home.caloron(*arguments(repository))
    repository.write_file("a.txt", "a\n", new_branch="work")
    pull = str(repository.open_pull("work", "A")["number"])
    assert home.caloron("pr", "review", pull, "--approve").code == 0
    assert home.caloron("pr", "review", pull, "--comment", "Nice.").code == 0
    refused = home.caloron("pr", "review", pull, "--request-changes", "More tests")
    assert refused.data["review"]["verdict"] == "changes_requested"
    bodies = [comment["body"] for comment in repository.comments(int(pull))]
    assert bodies[:2] == ["caloron:approve", "Nice."]
    assert bodies[2].startswith("CHANGES_NEEDED: More tests")
    (review,) = home.caloron("pr", "show", pull).data["reviews"]
    assert review["verdict"] == "changes_requested"
    assert review["head"] == repository.branches()["work"]


def test_the_doctor_asks_the_forge(home: Home, repository: Repository) -> None:
    home.caloron(*arguments(repository))
    home.set(webhook="127.0.0.1:9443")
    checks = {c["check"]: c for c in home.caloron("doctor").data["checks"]}
    assert "as ada" in checks["forge"]["detail"]
    assert "may push and merge" in checks["forge rights"]["detail"]
    assert "caloron/review" in checks["reviews"]["detail"]
    assert checks["forge clock"]["ok"]
    assert "http://127.0.0.1:9443/" in checks["webhook"]["detail"]
    home.environment["ADA"] = "0" * 40
    failed = home.caloron("doctor")
    assert failed.code == 8
    assert "forge" in failed.error["message"]


def test_commands_that_need_no_forge_do_not_contact_it(home: Home, repository: Repository) -> None:
    home.caloron(*arguments(repository))
    del home.environment["ADA"]
    home.set(host="http://127.0.0.1:1")
    for command in ("status", "history", "inbox", "metrics", "config list", "projects list"):
        assert home.caloron(*command.split()).code == 0
