"""The differences between kinds of forges: addresses, paths, parameters, meanings of types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import quote

import msgspec

from caloron.domain.model.merge import MergeStyle
from caloron.domain.model.snapshots import Verdict
from caloron.errors import PreconditionFailed, UsageError
from caloron.forge.api import types
from caloron.ids import http_url

if TYPE_CHECKING:
    # `httpx` is heavy, and addresses are needed without it.
    from caloron.forge.http import ForgeHttp
    from caloron.http import Params

#: The scopes that a token needs: no more, and not less.
SCOPES = {
    "gitea": "write:repository, write:issue and read:user",
    "github": "repo (classic), or for this repository (fine-grained) Contents, Issues, Pull"
    " requests and Commit statuses: read and write (it cannot read check runs)",
}
_API = {"gitea": "/api/v1", "github": "/api/v3"}
#: `people`: an approval is missing; `unclear`: the forge may still be checking the change.
MergeRefusal = Literal["head", "base", "conflict", "unclear", "merged", "people", "refused"]
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+")


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements of the main branch for a merge."""

    protected: bool = False
    can_merge: bool = True
    required_checks: tuple[str, ...] = ()
    required_approvals: int = 0


class BranchRules(msgspec.Struct, frozen=True, kw_only=True):
    """The branch rules that would stop us, by their names."""

    #: We may not push to branches of ours.
    closed: tuple[str, ...] = ()
    #: Only signed commits are taken.
    signed: tuple[str, ...] = ()
    #: A branch behind main is not merged, so of two changes at once the second never is.
    outdated: tuple[str, ...] = ()
    #: Our account may not read them.
    unreadable: bool = False


class Check(msgspec.Struct, frozen=True):
    """One check of a commit by the forge's own CI."""

    name: str
    state: str


class ForgeApi(Protocol):
    """One kind of forge: how to ask it, never when. What both kinds share is the default."""

    kind: str
    #: The authentication scheme before the token in a request.
    scheme: str
    headers: Mapping[str, str]
    #: The parameter that asks for the largest page.
    page: Params
    #: The part before the number in the address of a pull request's page.
    pull_pages: str
    #: The name that goes with a token when git asks for a password.
    git_user: str
    #: The longest body that is taken, in characters.
    longest_body: int
    #: A change may become visible so long after the time that it carries.
    overlap_s: int
    #: All branches with their commits: one answer, which neither forge cuts into pages.
    heads: str
    #: The path and the type of a pull request's diff.
    diff_path: str
    diff_type: str
    #: The words for submitting a review.
    events: Mapping[Verdict, str]
    #: The permissions of those who may write.
    writers: tuple[str, ...]
    #: The ways to merge, the preferred one first, each with the field that allows it.
    merge_styles: Mapping[MergeStyle, str]
    #: The meaning of a refused merge by its status and words of its message; the first row counts.
    merge_refusals: tuple[tuple[int, str, MergeRefusal], ...]
    #: What to grant where a merge is refused for lack of a right.
    grant: str

    def created_by(self, author: str) -> Params: ...

    def pulls_from(self, owner: str, branch: str, author: str) -> Params:
        """The parameters that narrow the list of pull requests to a branch, as far as it goes."""
        ...

    def head_name(self, pull: types.Pull) -> str:
        return pull.head.ref

    def diff(self, http: ForgeHttp, number: int) -> str:
        response = http.get(self.diff_path.format(number), accept=self.diff_type)
        return response.body.decode("utf-8", "replace")

    def label_reference(self, label: types.Label) -> int | str: ...

    def statuses(self, http: ForgeHttp, head: str) -> list[Check]:
        """The results of the forge's CI: all statuses of a commit, the last of each context."""
        checks: list[Check] = []
        params = dict(self.page)
        while True:
            response = http.get(f"commits/{segment(head)}/status", params)
            listed = response.read(types.CombinedStatus).statuses or []
            checks += [Check(status.context, status.status or status.state) for status in listed]
            if not listed or not response.next_page:
                return checks
            params = {**self.page, **response.next_page}

    def sees_check_runs(self, http: ForgeHttp, commit: str) -> bool:
        """True if our token may read the results of CI that are not statuses."""
        return True

    def is_required(self, name: str, wanted: str) -> bool:
        """True if the protection of the branch wants a check of this name.

        On GitHub a name with an asterisk or a bracket means just that; Gitea has patterns.
        """
        return name == wanted

    def protection(self, http: ForgeHttp, main: str) -> Protection: ...

    def branch_rules(
        self, http: ForgeHttp, main: str, ours: tuple[str, ...], who: str
    ) -> BranchRules:
        """The rules in the way of pushes to branches named as `ours`, and of unsigned commits."""
        ...

    def known_to_write(self, http: ForgeHttp, user: str) -> bool:
        """True if a user may write, where only an administrator may ask for permissions."""
        return False

    def merge_style(self, repository: types.Repository, wanted: MergeStyle) -> MergeStyle:
        """Return the wanted way to merge if the repository allows it, else one that it allows."""
        allowed = [s for s, field in self.merge_styles.items() if getattr(repository, field)]
        return wanted if wanted in allowed else next(iter(allowed), "merge")

    def merge(self, http: ForgeHttp, number: int, head: str, style: str, message: str) -> None:
        """Ask for the merge, once; the forge's refusal as it is."""
        ...

    def shows_pushed_merges(self, repository: types.Repository, style: MergeStyle) -> bool:
        """True if a pull request whose change is pushed to main can be shown as merged."""
        return True

    def mark_merged(self, http: ForgeHttp, number: int, commit: str) -> None:
        """Name the merge commit on main, where the forge does not find it by itself.

        GitHub finds the commits of open pull requests in each push to main.
        """

    def check_scopes(self, http: ForgeHttp) -> None:
        """Refuse a token that may read but not write, as far as the forge shows that."""
        ...

    def merge_refusal(self, status: int, reason: str) -> MergeRefusal:
        message = reason.casefold()
        for known, words, meaning in self.merge_refusals:
            if status == known and words in message:
                return meaning
        return "refused"


class Address(msgspec.Struct, frozen=True):
    """The two addresses of a forge."""

    #: What a person opens in a browser; repositories are cloned from below it.
    web: str
    #: The root of the API.
    api: str


def address_of(kind: str, host: str) -> Address:
    """Both addresses of a forge; `host` is its base address or the root of its API."""
    parts = http_url(host.strip())
    if parts is None or parts.username is not None:
        raise UsageError(
            f"{host!r} is not the address of a forge",
            hint="give it as https://forge.example, without a user or a token in it",
        )
    if kind == "github" and parts.hostname in ("github.com", "www.github.com", "api.github.com"):
        return Address("https://github.com", "https://api.github.com")
    if kind == "github" and parts.netloc.startswith("api.") and parts.netloc.endswith(".ghe.com"):
        return Address(f"https://{parts.netloc[4:]}", f"https://{parts.netloc}")
    if kind == "github" and parts.netloc.endswith(".ghe.com"):
        return Address(f"https://{parts.netloc}", f"https://api.{parts.netloc}")
    path = parts.path.rstrip("/").removesuffix(_API[kind])
    web = f"{parts.scheme}://{parts.netloc}{path}"
    return Address(web, web + _API[kind])


def repo_of(name: str) -> str:
    """Return a repository as `owner/name`, without a `.git` or slashes around it."""
    cleaned = name.strip().strip("/").removesuffix(".git")
    if not _REPO.fullmatch(cleaned) or cleaned.split("/")[1] in (".", ".."):
        raise UsageError(f"{name!r} is no repository", hint="give it as owner/name")
    return cleaned


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def lacking_scopes(kind: str, reason: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"the token may not do what is needed: {reason}",
        hint=f"make one with the scopes {SCOPES[kind]}",
    )
