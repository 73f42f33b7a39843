"""A real Gitea for tests: built once, started on loopback, gone when the tests are.

A start takes a second and a half and 160 MB, so each process of a test run has one of its own.

`Gitea` is a server as its administrator sees it; `Server` is one that this process started.
`Person` is an account that acts on it through the API, with nothing of our own adapter.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import httpx

from tests.support.sockets import free_port

_BUILD = Path(__file__).parents[2] / "scripts" / "gitea.sh"
#: Gitea refuses to run as root, so it runs as this unprivileged user.
_ACCOUNT = 12_346
_PASSWORD = "a-password-of-tests-1"
_READY_S = 60.0

_SETTINGS = """\
APP_NAME = Gitea of the tests
RUN_USER = {user}
WORK_PATH = {folder}
RUN_MODE = prod

[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = {port}
ROOT_URL = http://127.0.0.1:{port}/
DISABLE_SSH = true
OFFLINE_MODE = true
STATIC_ROOT_PATH = {static}
LFS_START_SERVER = false

[database]
DB_TYPE = sqlite3
PATH = {folder}/gitea.sqlite
SQLITE_JOURNAL_MODE = WAL

[repository]
ROOT = {folder}/repositories
DEFAULT_BRANCH = main

[security]
INSTALL_LOCK = true
SECRET_KEY = of-the-tests
INTERNAL_TOKEN = of-the-tests
SUCCESSFUL_TOKENS_CACHE_SIZE = 1000

[service]
DISABLE_REGISTRATION = true
[indexer]
ISSUE_INDEXER_TYPE = db
[cron]
ENABLED = false
[cron.update_checker]
ENABLED = false
[actions]
ENABLED = false
[packages]
ENABLED = false
[webhook]
ALLOWED_HOST_LIST = loopback
; Its queues on disk are looked at every two seconds at times.
[queue.webhook_sender]
TYPE = channel
[queue.pr_patch_checker]
TYPE = channel
[log]
MODE = file
LEVEL = Warn
ROOT_PATH = {folder}/log
"""


class GiteaMissing(Exception):
    """Gitea is not built and cannot be built here."""


@cache
def program() -> Path:
    """Return the program that CALORON_GITEA names, or build the pinned version."""
    if named := os.environ.get("CALORON_GITEA"):
        return Path(named)
    done = subprocess.run((str(_BUILD),), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = done.stderr.strip().splitlines()
        raise GiteaMissing(errors[-1] if errors else f"{_BUILD} ended with {done.returncode}")
    return Path(done.stdout.strip())


class Refused(AssertionError):
    """The server refused a request of a person of a test."""

    def __init__(self, answer: httpx.Response) -> None:
        request = answer.request
        super().__init__(
            f"{request.method} {request.url.path}: {answer.status_code} {answer.text[:300]}"
        )
        self.status = answer.status_code


@dataclass
class Person:
    """An account with a token that acts through the API as a person does in the forge's pages."""

    url: str
    login: str
    token: str
    _client: httpx.Client | None = field(default=None, repr=False)

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Send a request to `/api/v1/…`; return the JSON of the answer, or its text."""
        if self._client is None:
            headers = {"Authorization": f"token {self.token}"} if self.token else {}
            self._client = httpx.Client(
                base_url=f"{self.url}/api/v1", headers=headers, timeout=30, trust_env=False
            )
        answer = self._client.request(method, path, json=body, params=query or None)
        if answer.status_code >= 400:
            raise Refused(answer)
        if "json" in answer.headers.get("content-type", ""):
            return answer.json()
        return answer.text

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, **query)

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, body)

    def patch(self, path: str, body: Any) -> Any:
        return self.call("PATCH", path, body)

    def put(self, path: str, body: Any = None) -> Any:
        return self.call("PUT", path, body)

    def delete(self, path: str, body: Any = None) -> Any:
        return self.call("DELETE", path, body)

    def every(self, path: str, **query: Any) -> list[Any]:
        """Return all pages of a list."""
        items: list[Any] = []
        page = 1
        while True:
            got = self.get(path, page=page, limit=50, **query)
            items += got
            if len(got) < 50:
                return items
            page += 1

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class Repository:
    """A repository as one person uses it; `acting_as` gives it to another person."""

    def __init__(self, who: Person, full_name: str) -> None:
        self.who = who
        self.full_name = full_name
        self.path = f"/repos/{full_name}"

    def acting_as(self, who: Person) -> Repository:
        return Repository(who, self.full_name)

    @property
    def clone_url(self) -> str:
        return f"{self.who.url}/{self.full_name}.git"

    @property
    def push_url(self) -> str:
        """The URL with the person's token: for the git of a test, never for that of Caloron."""
        scheme, _, rest = self.clone_url.partition("://")
        return f"{scheme}://{self.who.login}:{self.who.token}@{rest}"

    def issue(self, number: int) -> Any:
        return self.who.get(f"{self.path}/issues/{number}")

    def issues(self, **query: Any) -> list[Any]:
        return self.who.every(f"{self.path}/issues", type="issues", state="all", **query)

    def open_issue(self, title: str, body: str = "", **more: Any) -> Any:
        return self.who.post(f"{self.path}/issues", {"title": title, "body": body, **more})

    def edit_issue(self, number: int, **change: Any) -> Any:
        """`title`, `body` or `state`; a pull request is an issue as well."""
        return self.who.patch(f"{self.path}/issues/{number}", change)

    def comment(self, number: int, body: str) -> Any:
        return self.who.post(f"{self.path}/issues/{number}/comments", {"body": body})

    def comments(self, number: int) -> list[Any]:
        comments: list[Any] = self.who.get(f"{self.path}/issues/{number}/comments")
        return comments

    def edit_comment(self, comment: int, body: str) -> Any:
        return self.who.patch(f"{self.path}/issues/comments/{comment}", {"body": body})

    def delete_comment(self, comment: int) -> None:
        self.who.delete(f"{self.path}/issues/comments/{comment}")

    def labels(self) -> list[Any]:
        return self.who.every(f"{self.path}/labels")

    def label(self, number: int, name: str, color: str = "#ededed") -> None:
        """Put a label on an issue; it is made first where there is none of that name."""
        ids = [label["id"] for label in self.labels() if label["name"] == name]
        if not ids:
            made = self.who.post(f"{self.path}/labels", {"name": name, "color": color})
            ids = [made["id"]]
        self.who.post(f"{self.path}/issues/{number}/labels", {"labels": ids[:1]})

    def unlabel(self, number: int, name: str) -> None:
        for label in self.issue(number)["labels"]:
            if label["name"] == name:
                self.who.delete(f"{self.path}/issues/{number}/labels/{label['id']}")

    def pulls(self, state: str = "all") -> list[Any]:
        return self.who.every(f"{self.path}/pulls", state=state)

    def pull(self, number: int) -> Any:
        return self.who.get(f"{self.path}/pulls/{number}")

    def open_pull(self, branch: str, title: str = "", body: str = "", base: str = "main") -> Any:
        body_fields = {"head": branch, "base": base, "title": title or branch, "body": body}
        return self.who.post(f"{self.path}/pulls", body_fields)

    def merge(self, number: int, do: str = "merge", **more: Any) -> None:
        """Merge as a person does; repeat while Gitea still checks whether it can merge."""
        for _ in range(40):
            try:
                self.who.post(f"{self.path}/pulls/{number}/merge", {"Do": do, **more})
            except Refused as refused:
                if refused.status != 405 or self.pull(number)["merged"]:
                    raise
                time.sleep(0.25)
            else:
                return
        raise AssertionError(f"#{number} cannot be merged")

    def review(self, number: int, event: str, body: str = "", commit: str = "") -> Any:
        """`event`: APPROVED, REQUEST_CHANGES or COMMENT."""
        body_fields = {"event": event, "body": body} | ({"commit_id": commit} if commit else {})
        return self.who.post(f"{self.path}/pulls/{number}/reviews", body_fields)

    def branch(self, name: str) -> Any:
        return self.who.get(f"{self.path}/branches/{name}")

    def branches(self) -> dict[str, str]:
        branches = self.who.every(f"{self.path}/branches")
        return {branch["name"]: branch["commit"]["id"] for branch in branches}

    def delete_branch(self, name: str) -> None:
        self.who.delete(f"{self.path}/branches/{name}")

    def write_file(self, path: str, text: str, branch: str = "main", **more: Any) -> str:
        """Write a file in the forge's own editor; the new commit. `new_branch` makes one first."""
        body = {
            "content": base64.b64encode(text.encode()).decode(),
            "branch": branch,
            "message": f"write {path}",
            **more,
        }
        try:
            old = self.who.get(f"{self.path}/contents/{path}", ref=branch)
        except Refused as refused:
            if refused.status != 404:
                raise
            done = self.who.post(f"{self.path}/contents/{path}", body)
        else:
            done = self.who.put(f"{self.path}/contents/{path}", body | {"sha": old["sha"]})
        commit: str = done["commit"]["sha"]
        return commit

    def file(self, path: str, ref: str = "main") -> str:
        got = self.who.get(f"{self.path}/contents/{path}", ref=ref)
        return base64.b64decode(got["content"]).decode()

    def files(self, ref: str = "main") -> set[str]:
        tree = self.who.get(f"{self.path}/git/trees/{ref}", recursive="true")
        return {entry["path"] for entry in tree["tree"] if entry["type"] == "blob"}

    def commits(self, branch: str = "main") -> list[str]:
        """Return the messages of the commits of a branch, the newest first."""
        commits = self.who.every(f"{self.path}/commits", sha=branch)
        return [commit["commit"]["message"] for commit in commits]

    def status(self, commit: str, state: str, context: str, description: str = "") -> None:
        """Set the status of a CI for a commit: pending, success, error, failure or warning."""
        body_fields = {"state": state, "context": context, "description": description}
        self.who.post(f"{self.path}/statuses/{commit}", body_fields)

    def statuses(self, commit: str) -> list[Any]:
        return self.who.every(f"{self.path}/commits/{commit}/statuses")

    def change(self, **settings: Any) -> None:
        """Change settings of pull requests, with Gitea's own names."""
        # Gitea overlooks them unless the request has this one.
        self.who.patch(self.path, {"has_pull_requests": True, **settings})

    def collaborator(self, who: Person, permission: str = "write") -> None:
        self.who.put(f"{self.path}/collaborators/{who.login}", {"permission": permission})

    def protect(self, branch: str = "main", **rules: Any) -> None:
        """Branch protection, with Gitea's own names: `required_approvals`, `enable_push`, …"""
        self.who.post(f"{self.path}/branch_protections", {"rule_name": branch, **rules})

    def webhook(self, url: str, secret: str = "", events: tuple[str, ...] = ()) -> Any:
        config = {"url": url, "content_type": "json", "secret": secret}
        event_names = list(events or ("issues", "issue_comment", "pull_request", "push"))
        body_fields = {"type": "gitea", "active": True, "config": config, "events": event_names}
        return self.who.post(f"{self.path}/hooks", body_fields)


class Gitea:
    """A running server: accounts, tokens and repositories are made as its administrator."""

    def __init__(self, url: str, admin: Person) -> None:
        self.url = url
        self.admin = admin
        self._people: dict[str, Person] = {}
        self._making = threading.Lock()

    def person(self, login: str) -> Person:
        """An account with a token that may do everything the account may."""
        with self._making:
            if login not in self._people:
                try:
                    self.admin.get(f"/users/{login}")
                except Refused as refused:
                    if refused.status != 404:
                        raise
                    self._new_account(login)
                self._people[login] = Person(self.url, login, self.token(login, "all"))
            return self._people[login]

    def _new_account(self, login: str) -> None:
        self.admin.post(
            "/admin/users",
            {
                "username": login,
                "email": f"{login}@example.org",
                "password": _PASSWORD,
                "must_change_password": False,
                "full_name": login.capitalize(),
            },
        )

    def token(self, login: str, *scopes: str) -> str:
        """A new token with exactly these scopes, such as `write:issue`."""
        answer = httpx.post(
            f"{self.url}/api/v1/users/{login}/tokens",
            auth=(login, _PASSWORD),
            json={"name": secrets.token_hex(6), "scopes": list(scopes)},
            timeout=30,
            trust_env=False,
        )
        if answer.status_code >= 400:
            raise Refused(answer)
        token: str = answer.json()["sha1"]
        return token

    def revoke(self, login: str, token: str) -> None:
        """Delete a token of an account."""
        address, auth = f"{self.url}/api/v1/users/{login}/tokens", (login, _PASSWORD)
        listed = httpx.get(address, auth=auth, params={"limit": 50}, timeout=30, trust_env=False)
        (token_id,) = [t["id"] for t in listed.json() if t["token_last_eight"] == token[-8:]]
        answer = httpx.delete(f"{address}/{token_id}", auth=auth, timeout=30, trust_env=False)
        if answer.status_code >= 400:
            raise Refused(answer)

    def repository(
        self, owner: Person, name: str = "", *, empty: bool = False, **more: Any
    ) -> Repository:
        """A new repository with a README as its first commit, or without a commit."""
        name = name or f"r-{secrets.token_hex(5)}"
        body_fields = {"name": name, "auto_init": not empty, "default_branch": "main", **more}
        made = owner.post("/user/repos", body_fields)
        return Repository(owner, made["full_name"])

    def close(self) -> None:
        for person in (self.admin, *self._people.values()):
            person.close()


class Server(Gitea):
    """A Gitea of this process, in a folder of its own; its clients live through a restart."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="caloron-gitea-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        as_root = os.getuid() == 0
        self._who = (
            (f"--reuid={_ACCOUNT}", f"--regid={_ACCOUNT}", "--clear-groups") if as_root else ()
        )
        if as_root:
            os.chown(self.folder, _ACCOUNT, _ACCOUNT)
        url = f"http://127.0.0.1:{self.port}"
        super().__init__(url, Person(url, "root", ""))
        self._write_settings()
        try:
            self._run("migrate")
            self._run(
                "admin", "user", "create", "--username", "root", "--password", _PASSWORD,
                "--email", "root@example.org", "--admin", "--must-change-password=false",
            )  # fmt: skip
            self.start()
            self.admin.token = self.token("root", "all")
        except BaseException:
            self.remove()
            raise

    @cached_property
    def _settings(self) -> Path:
        return self.folder / "app.ini"

    def _write_settings(self) -> None:
        self._settings.write_text(
            _SETTINGS.format(
                user="tests",
                folder=self.folder,
                port=self.port,
                static=program().parent / "static",
            )
        )
        if self._who:
            os.chown(self._settings, _ACCOUNT, _ACCOUNT)

    def _argv(self, *words: str) -> list[str]:
        # The end of this process ends the server as well, whatever its cause.
        return ["setpriv", "--pdeathsig", "KILL", *self._who, "--", str(program()), *words]

    @property
    def _environment(self) -> dict[str, str]:
        # Gitea starts a new process for each hook of each push: garbage collection in these short
        # processes was a quarter of all its work.
        thrifty = {"GOGC": "off", "GOMEMLIMIT": "512MiB"}
        who = {"USER": "tests", "HOME": str(self.folder)}
        return {**who, **thrifty, "PATH": "/usr/local/bin:/usr/bin:/bin"}

    def _run(self, *words: str) -> None:
        done = subprocess.run(
            self._argv(*words, "--config", str(self._settings)),
            cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"gitea {words}: {done.stdout}{done.stderr}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start it, on the same port each time, and wait until it answers."""
        assert self._process is None
        with (self.folder / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                self._argv("web", "--config", str(self._settings)),
                cwd=self.folder, env=self._environment, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + _READY_S
        while time.monotonic() < until:
            assert self._process.poll() is None, (self.folder / "output.log").read_text()
            try:
                if httpx.get(f"{self.url}/api/v1/version", trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        self.kill()
        raise AssertionError(f"Gitea does not answer at {self.url}")

    def kill(self) -> None:
        """End the server as a power cut does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # Each git that it started is a group of its own, in the session that began with it.
        for pid in _session(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        self.close()
        self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def _session(leader: int) -> list[int]:
    """The living processes of a session."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(entry.name)) == leader:
                pids.append(int(entry.name))
    return pids
