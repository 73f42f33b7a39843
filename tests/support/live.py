"""A home whose project lives on a real Gitea, and what a sprint leaves there."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.gitea import Gitea, Repository, Server
from tests.support.home import Home

#: Variables of the user with the tokens of the two accounts.
TOKEN, REVIEWER_TOKEN = "THE_FORGE_TOKEN", "THE_REVIEWER_TOKEN"
_MARKER = re.compile(r"<!-- caloron:([^\s<>]+) -->")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def gitea_options(
    repository: Repository, *, host: str = "", reviewer: bool = False
) -> tuple[str, ...]:
    """Return the options of `caloron init` for a repository on a Gitea."""
    address = ("--forge", "gitea", "--host", host or repository.who.url)
    second = ("--reviewer-token-env", REVIEWER_TOKEN) if reviewer else ()
    return (*address, "--repo", repository.full_name, "--token-env", TOKEN, *second)


class GiteaHome(Home):
    """A home whose project is on a real Gitea; its user is `ada`, the second account `judge`.

    Tokens stand in the environment of the user, as `--token-env` expects them.
    """

    def __init__(self, root: Path, server: Server, *, reviewer: bool = False) -> None:
        super().__init__(root)
        self.reviewer = reviewer
        self.ada = server.person("ada")
        self.repository: Repository = server.repository(self.ada)
        self.environment[TOKEN] = self.ada.token
        if reviewer:
            judge = server.person("judge")
            self.repository.collaborator(judge)
            self.environment[REVIEWER_TOKEN] = judge.token

    @property
    def tokens(self) -> list[str]:
        names = (TOKEN, REVIEWER_TOKEN)
        return [self.environment[name] for name in names if name in self.environment]

    def on_gitea(self, **settings: Any) -> GiteaHome:
        """Make the project."""
        options = gitea_options(self.repository, reviewer=self.reviewer)
        self.init("demo", *options, **settings)
        return self


@dataclass
class Live:
    """One project on the forge: the account Caloron acts with, its reviewer, and a person."""

    home: Home
    repository: Repository
    #: A person who takes part: a collaborator with an account of her own.
    ada: Repository


def live_project(home: Home, gitea: Gitea, *, two_accounts: bool = False) -> Live:
    """A repository of its own on the server, and a project for it in this home."""
    robot, ada = gitea.person("robot"), gitea.person("ada")
    repository = gitea.repository(robot)
    repository.collaborator(ada)
    home.environment[TOKEN] = robot.token
    if two_accounts:
        reviewer = gitea.person("second")
        repository.collaborator(reviewer)
        home.environment[REVIEWER_TOKEN] = reviewer.token
    home.init("demo", *gitea_options(repository, reviewer=two_accounts))
    return Live(home, repository, repository.acting_as(ada))


def marker_of(body: str) -> str:
    match = _MARKER.search(body or "")
    return match[1] if match else ""


def purpose(key: str) -> str:
    """A marker without what differs from run to run: commits, numbers of pull requests, claims."""
    parts = key.split("/")
    if parts[0] == "review":
        return f"review/{parts[3]}" if len(parts) > 3 else key
    return _COMMIT.sub("COMMIT", key)


def artefacts(repository: Repository) -> dict[str, Any]:
    """Everything that stands on the forge, per task and purpose, without numbers and hashes."""
    issues, pulls = repository.issues(), repository.pulls()
    names = {item["number"]: purpose(marker_of(item["body"])) for item in (*issues, *pulls)}
    comments = [
        (names[number], purpose(marker_of(comment["body"])))
        for number in names
        for comment in repository.comments(number)
    ]
    reviews = [
        (names[pull["number"]], review["state"], purpose(marker_of(review["body"])))
        for pull in pulls
        for review in repository.who.get(f"{repository.path}/pulls/{pull['number']}/reviews")
    ]
    return {
        "issues": sorted(
            (names[i["number"]], i["state"], tuple(sorted(x["name"] for x in i["labels"])))
            for i in issues
        ),
        "pulls": sorted(
            (names[p["number"]], "merged" if p["merged"] else p["state"], p["head"]["ref"])
            for p in pulls
        ),
        "sections": sorted(
            (names[p["number"]], p["body"].count("<!-- caloron-section:")) for p in pulls
        ),
        "comments": sorted(comments),
        "reviews": sorted(reviews),
        "files": _files(repository),
        "labels": sorted(label["name"] for label in repository.labels()),
    }


def _files(repository: Repository) -> dict[str, str]:
    """Return the blobs of main, without the README, which names its repository."""
    tree = repository.who.get(f"{repository.path}/git/trees/main", recursive="true")
    blobs = {entry["path"]: entry["sha"] for entry in tree["tree"] if entry["type"] == "blob"}
    return {path: blob for path, blob in blobs.items() if path != "README.md"}


def done_twice(repository: Repository) -> list[str]:
    """Markers that stand on more than one object, and labels that are there twice."""
    issues, pulls = repository.issues(), repository.pulls()
    keys = [marker_of(item["body"]) for item in (*issues, *pulls)]
    for item in (*issues, *pulls):
        keys += [marker_of(comment["body"]) for comment in repository.comments(item["number"])]
    for pull in pulls:
        path = f"{repository.path}/pulls/{pull['number']}/reviews"
        keys += [marker_of(review["body"]) for review in repository.who.get(path)]
    # The last word of a review's key is the claim: the same verdict of another claim is a double.
    plain = [k.rsplit("/", 1)[0] if k.startswith("review/") else k for k in keys if k]
    plain += [f"label {label['name']}" for label in repository.labels()]
    return sorted(key for key, count in Counter(plain).items() if count > 1)
