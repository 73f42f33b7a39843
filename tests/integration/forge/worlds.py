"""Forges of each kind, with a person who acts on them beside Caloron."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from caloron.domain.model.snapshots import Snapshot, Verdict, marker, merge_observations
from caloron.forge.api.gitea import Gitea as GiteaApi
from caloron.forge.local.forge import LocalForge, create_local_forge
from caloron.ports import Forge
from tests.integration.forge.people import Clone
from tests.support.fault_proxy import FaultProxy
from tests.support.gitea import Repository, Server

SnapshotType = TypeVar("SnapshotType", bound=msgspec.Struct)


class WithClone:
    """The acts of a person with plain git."""

    def __init__(self, login: str, clone: Clone) -> None:
        self.login = login
        self.clone = clone

    def push(self, branch: str, file: str) -> str:
        self.clone.git("fetch", "--quiet", "origin")
        known = self.clone.git("branch", "--remotes", "--list", f"origin/{branch}")
        start = f"origin/{branch}" if known else "origin/main"
        commit = self.clone.commit(branch, {file: "hers\n"}, start)
        self.clone.push(f"{branch}:{branch}")
        return commit

    def push_main(self, file: str) -> str:
        self.clone.git("fetch", "--quiet", "origin")
        self.clone.git("checkout", "--quiet", "--detach", "origin/main")
        (self.clone.path / file).write_text("hers\n", "utf-8")
        self.clone.git("add", "--all")
        self.clone.git("commit", "--quiet", "-m", file)
        self.clone.git("push", "--quiet", "origin", "HEAD:main")
        return self.clone.git("rev-parse", "HEAD")

    def delete_branch(self, branch: str) -> None:
        self.clone.git("push", "--quiet", "origin", "--delete", branch)


class LocalPerson(WithClone):
    """A person on the local forge: another actor at the same port."""

    def __init__(self, project: Path, clone: Clone, login: str = "anna") -> None:
        super().__init__(login, clone)
        identity = (login.capitalize(), f"{login}@example.org")
        self.forge = forge = LocalForge(project, actor=login, identity=identity)
        self.edit_issue, self.edit_comment = forge.edit_issue, forge.edit_comment
        self.close_issue, self.reopen_issue = forge.close_issue, forge.reopen_issue
        self.close_pull, self.reopen_pull = forge.close_pull, forge.reopen_pull
        self.label, self.unlabel, self.close = forge.label, forge.unlabel, forge.close

    def open_issue(self, title: str, body: str = "", labels: tuple[str, ...] = ()) -> int:
        return self.forge.create_issue(title, body, labels).number

    def comment(self, number: int, body: str) -> int:
        return self.forge.comment(number, body).id

    def delete_comment(self, comment: int) -> None:
        # SQLite does not reuse the number as long as a later comment exists.
        with self.forge._records.change(self.login) as change:
            change._connection.execute("DELETE FROM comments WHERE id = ?", (comment,))

    def open_pull(self, branch: str, body: str = "") -> int:
        return self.forge.open_pull(f"Change of {branch}", body, branch).number

    def review(self, number: int, verdict: Verdict, body: str = "") -> None:
        self.forge.review(number, "", verdict, body)

    def merge(self, number: int) -> None:
        self.forge.merge(number, "", "", "")


class GiteaPerson(WithClone):
    """A person on a real Gitea, through its API."""

    def __init__(self, repository: Repository, clone: Clone) -> None:
        super().__init__(repository.who.login, clone)
        self.label, self.unlabel = repository.label, repository.unlabel
        self.delete_comment, self.merge = repository.delete_comment, repository.merge
        self.repository = repository

    def open_issue(self, title: str, body: str = "", labels: tuple[str, ...] = ()) -> int:
        number: int = self.repository.open_issue(title, body)["number"]
        for label in labels:
            self.label(number, label)
        return number

    def edit_issue(self, number: int, body: str) -> None:
        self.repository.edit_issue(number, body=body)

    def close_issue(self, number: int) -> None:
        self.repository.edit_issue(number, state="closed")

    def reopen_issue(self, number: int) -> None:
        self.repository.edit_issue(number, state="open")

    # Gitea's API treats pull requests as issues.
    close_pull, reopen_pull = close_issue, reopen_issue

    def comment(self, number: int, body: str) -> int:
        made: int = self.repository.comment(number, body)["id"]
        return made

    def edit_comment(self, number: int, comment: int, body: str) -> None:
        self.repository.edit_comment(comment, body)

    def open_pull(self, branch: str, body: str = "") -> int:
        number: int = self.repository.open_pull(branch, f"Change of {branch}", body)["number"]
        return number

    def review(self, number: int, verdict: Verdict, body: str = "") -> None:
        self.repository.review(number, GiteaApi.events[verdict], body or "as it is")


#: The acts of a person, with the forge's own means and with plain git.
Person = LocalPerson | GiteaPerson


@dataclass
class World:
    """A forge for one test, with its clone and a person who uses it."""

    kind: str
    forge: Forge
    #: A person who may write to the repository, with an account of her own.
    anna: Person
    clone: Clone
    #: Creates a second adapter, as a restart of the engine does.
    reopened: Callable[[], Forge]
    #: Sits between our adapter and the server; the local forge has no proxy.
    proxy: FaultProxy | None = None
    #: The repository as its owner sees it, without the proxy.
    repository: Repository | None = None


@contextmanager
def local_world(folder: Path) -> Iterator[World]:
    project = folder / "home" / "projects" / "sample"
    forge = create_local_forge(project, name="sample")
    clone = Clone(forge.remote().url, folder / "clone")
    anna = LocalPerson(project, clone)
    yield World("local", forge, anna, clone, lambda: LocalForge(project))
    anna.close()
    forge.close()


@contextmanager
def gitea_world(
    server: Server, folder: Path, *, reviewer: bool = False, **repository: Any
) -> Iterator[World]:
    """Our account is `caloron`, which owns the repository; `anna` is a collaborator."""
    from caloron.forge.connect import connect

    our_account, anna_account = server.person("caloron"), server.person("anna")
    created = server.repository(our_account, **repository)
    created.collaborator(anna_account)
    # Without this setting Gitea never shows a branch that was pushed to main as merged.
    created.change(allow_manual_merge=True)
    second = ""
    if reviewer:
        second = server.person("judge").token
        created.collaborator(server.person("judge"))
    proxy = FaultProxy(server.url)

    def reopened() -> Forge:
        return connect("gitea", proxy.url, created.full_name, our_account.token, second)

    forge = reopened()
    clone = Clone(created.acting_as(anna_account).push_url, folder / "clone")
    anna = GiteaPerson(created.acting_as(anna_account), clone)
    kind = "gitea+reviewer" if reviewer else "gitea"
    try:
        yield World(kind, forge, anna, clone, reopened, proxy, created)
    finally:
        forge.close()
        proxy.close()


def plain(snapshot: SnapshotType) -> SnapshotType:
    """Drop the version, which differs between reads of a forge whose clock counts seconds."""
    return msgspec.structs.replace(snapshot, version=0)


class Watch:
    """The newest snapshot of each object, as the engine knows it from polls alone."""

    def __init__(self, forge: Forge) -> None:
        self._forge = forge
        self.known: dict[str, Snapshot] = {}
        self.cursor = ""
        self.poll_changes()

    def poll_changes(self) -> dict[str, Snapshot]:
        """Poll once, and return the objects whose snapshot changed."""
        observation = self._forge.poll(self.cursor)
        self.cursor = observation.cursor
        before = {name: plain(snapshot) for name, snapshot in self.known.items()}
        self.known = merge_observations(self.known, observation.snapshots)
        after = {name: plain(snapshot) for name, snapshot in self.known.items()}
        return {name: self.known[name] for name in after if before.get(name) != after[name]}


def review_body(verdict: Verdict, number: int, head: str, claim: str = "a") -> tuple[str, str]:
    """Return a verdict as our reviewers write it, and the key of its marker."""
    word = {"approved": "APPROVED", "changes_requested": "CHANGES_NEEDED: more tests"}
    key = f"review/{number}/{head}/1/{claim}"
    return f"{word.get(verdict, 'A remark')}\n\nlooked at\n\n{marker(key)}", key
