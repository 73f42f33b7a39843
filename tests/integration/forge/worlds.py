"""One forge of each kind with a person beside us on it: the same acts, each in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from caloron.domain.model.snapshots import Snapshot, Verdict, marker, merge_observations
from caloron.forge.local.forge import LocalForge, create_local_forge
from caloron.ports import Forge
from tests.integration.forge.people import Clone
from tests.support.fault_proxy import FaultProxy
from tests.support.gitea import Repository, Server

Seen = TypeVar("Seen", bound=msgspec.Struct)

_EVENTS: dict[Verdict, str] = {
    "approved": "APPROVED",
    "changes_requested": "REQUEST_CHANGES",
    "commented": "COMMENT",
}


class Somebody(Protocol):
    """What a person does on a forge, with the forge's own means."""

    login: str

    def open_issue(self, title: str, body: str = "", labels: tuple[str, ...] = ()) -> int: ...
    def edit_issue(self, number: int, body: str) -> None: ...
    def close_issue(self, number: int) -> None: ...
    def reopen_issue(self, number: int) -> None: ...
    def label(self, number: int, label: str) -> None: ...
    def unlabel(self, number: int, label: str) -> None: ...
    def comment(self, number: int, body: str) -> int: ...
    def edit_comment(self, number: int, comment: int, body: str) -> None: ...
    def open_pull(self, branch: str, body: str = "") -> int: ...
    def close_pull(self, number: int) -> None: ...
    def review(self, number: int, verdict: Verdict, body: str = "") -> None: ...
    def merge(self, number: int) -> None: ...


class LocalSomebody:
    """A person on the local forge: another actor at the same port."""

    def __init__(self, project: Path, login: str) -> None:
        self.login = login
        self._forge = LocalForge(
            project, actor=login, identity=(login.capitalize(), f"{login}@example.org")
        )

    def close(self) -> None:
        self._forge.close()

    def open_issue(self, title: str, body: str = "", labels: tuple[str, ...] = ()) -> int:
        return self._forge.create_issue(title, body, labels).number

    def edit_issue(self, number: int, body: str) -> None:
        self._forge.edit_issue(number, body)

    def close_issue(self, number: int) -> None:
        self._forge.close_issue(number)

    def reopen_issue(self, number: int) -> None:
        self._forge.reopen_issue(number)

    def label(self, number: int, label: str) -> None:
        self._forge.label(number, label)

    def unlabel(self, number: int, label: str) -> None:
        self._forge.unlabel(number, label)

    def comment(self, number: int, body: str) -> int:
        return self._forge.comment(number, body).id

    def edit_comment(self, number: int, comment: int, body: str) -> None:
        self._forge.edit_comment(number, comment, body)

    def open_pull(self, branch: str, body: str = "") -> int:
        return self._forge.open_pull(f"Change of {branch}", body, branch).number

    def close_pull(self, number: int) -> None:
        self._forge.close_pull(number)

    def review(self, number: int, verdict: Verdict, body: str = "") -> None:
        self._forge.review(number, "", verdict, body)

    def merge(self, number: int) -> None:
        self._forge.merge(number, "", "", "")


class GiteaSomebody:
    """A person on a real Gitea, through its API."""

    def __init__(self, repository: Repository) -> None:
        self.login = repository.who.login
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

    def label(self, number: int, label: str) -> None:
        self.repository.label(number, label)

    def unlabel(self, number: int, label: str) -> None:
        self.repository.unlabel(number, label)

    def comment(self, number: int, body: str) -> int:
        made: int = self.repository.comment(number, body)["id"]
        return made

    def edit_comment(self, number: int, comment: int, body: str) -> None:
        self.repository.edit_comment(comment, body)

    def open_pull(self, branch: str, body: str = "") -> int:
        number: int = self.repository.open_pull(branch, f"Change of {branch}", body)["number"]
        return number

    def close_pull(self, number: int) -> None:
        self.repository.edit_issue(number, state="closed")

    def review(self, number: int, verdict: Verdict, body: str = "") -> None:
        self.repository.review(number, _EVENTS[verdict], body or "as it is")

    def merge(self, number: int) -> None:
        self.repository.merge(number)


@dataclass
class World:
    """A forge of its own for one test."""

    kind: str
    forge: Forge
    #: Somebody who may write to the repository, and is not us.
    anna: Somebody
    clone: Clone
    #: Our adapter once more, as after a restart of the engine.
    reopened: Callable[[], Forge]
    #: Between our adapter and the server; the local forge has none.
    proxy: FaultProxy | None = None
    #: The repository as its owner sees it, past the proxy.
    repository: Repository | None = None


@contextmanager
def local_world(folder: Path) -> Iterator[World]:
    project = folder / "home" / "projects" / "sample"
    forge = create_local_forge(project, name="sample")
    anna = LocalSomebody(project, "anna")
    clone = Clone(forge.remote().url, folder / "clone")
    yield World("local", forge, anna, clone, lambda: LocalForge(project))
    anna.close()
    forge.close()


@contextmanager
def gitea_world(
    server: Server, folder: Path, *, reviewer: bool = False, **repository: Any
) -> Iterator[World]:
    """Our account is `caloron`, which owns the repository; `anna` is a collaborator."""
    from caloron.forge.connect import connect

    ours, hers = server.person("caloron"), server.person("anna")
    made = server.repository(ours, **repository)
    made.collaborator(hers)
    # Without it Gitea never shows what was pushed to main as merged.
    made.change(allow_manual_merge=True)
    second = ""
    if reviewer:
        second = server.person("judge").token
        made.collaborator(server.person("judge"))
    proxy = FaultProxy(server.url)

    def reopened() -> Forge:
        return connect("gitea", proxy.url, made.full_name, ours.token, second)

    forge = reopened()
    clone = Clone(made.seen_by(hers).push_url, folder / "clone")
    anna = GiteaSomebody(made.seen_by(hers))
    kind = "gitea+reviewer" if reviewer else "gitea"
    try:
        yield World(kind, forge, anna, clone, reopened, proxy, made)
    finally:
        forge.close()
        proxy.close()


def plain(seen: Seen) -> Seen:
    """A picture without its version: on a forge of seconds each look has one of its own."""
    return msgspec.structs.replace(seen, version=0)


class Watch:
    """What the engine knows from polls alone: the newest picture of each object."""

    def __init__(self, forge: Forge) -> None:
        self._forge = forge
        self.known: dict[str, Snapshot] = {}
        self.cursor = ""
        self.look()

    def look(self) -> dict[str, Snapshot]:
        """Poll once; the objects whose picture became another one."""
        seen = self._forge.poll(self.cursor)
        self.cursor = seen.cursor
        before = {name: plain(snapshot) for name, snapshot in self.known.items()}
        self.known = merge_observations(self.known, seen.snapshots)
        after = {name: plain(snapshot) for name, snapshot in self.known.items()}
        return {name: self.known[name] for name in after if before.get(name) != after[name]}


def review_body(verdict: Verdict, number: int, head: str, claim: str = "a") -> tuple[str, str]:
    """A verdict as our reviewers tell it, and the key of its marker."""
    word = {"approved": "APPROVED", "changes_requested": "CHANGES_NEEDED: more tests"}
    key = f"review/{number}/{head}/1/{claim}"
    return f"{word.get(verdict, 'A word')}\n\nlooked at\n\n{marker(key)}", key
