"""What differs between the forges: paths, parameters, and what their answers mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from caloron.domain.observations import Verdict
from caloron.forge import answers
from caloron.forge.connection import Params
from caloron.forge.http import Http


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """What the main branch asks of a change before it may be merged."""

    protected: bool = False
    can_merge: bool = True
    required_checks: tuple[str, ...] = ()
    required_approvals: int = 0


class BranchRules(msgspec.Struct, frozen=True, kw_only=True):
    """What rules for branches keep us from, each as the name of the rule."""

    #: We may not push to branches of ours.
    closed: tuple[str, ...] = ()
    #: Only signed commits are taken.
    signed: tuple[str, ...] = ()
    #: What is behind main is not merged, so of two changes at once the second never is.
    outdated: tuple[str, ...] = ()
    #: Our account may not look at them.
    unseen: bool = False


class Check(msgspec.Struct, frozen=True):
    """One check of a commit by the forge's own CI."""

    name: str
    state: str


class Dialect(Protocol):
    """One kind of forge; it knows how to ask, never when."""

    kind: str
    #: How the token is announced in a request.
    scheme: str
    headers: Mapping[str, str]
    #: The parameter that asks for the largest page.
    page: Params
    #: What stands before the number in the address of a pull request's page.
    pull_pages: str
    #: The name that goes with a token when git asks for a password.
    git_user: str
    #: The longest body that is taken, in characters.
    longest_body: int
    #: A change may become visible so long after the time that it carries.
    overlap_s: int
    #: All branches with their commits: one answer, which neither forge cuts into pages.
    heads: str
    #: The words for submitting a review.
    events: Mapping[Verdict, str]
    #: What to grant where a merge is refused for lack of a right.
    grant: str

    def created_by(self, author: str) -> Params: ...

    def pulls_from(self, owner: str, branch: str, author: str) -> Params:
        """The parameters that narrow the list of pull requests to a branch, as far as it goes."""
        ...

    def head_name(self, pull: answers.Pull) -> str: ...

    def diff(self, http: Http, number: int) -> str: ...

    def label_reference(self, label: answers.Label) -> int | str: ...

    def statuses(self, http: Http, head: str) -> list[Check]: ...

    def sees_check_runs(self, http: Http, commit: str) -> bool:
        """Whether our token may read what CI tells in another way than as statuses."""
        ...

    def is_required(self, name: str, wanted: str) -> bool:
        """Whether a check of this name is one that the protection of the branch wants."""
        ...

    def protection(self, http: Http, main: str) -> Protection: ...

    def branch_rules(self, http: Http, main: str, ours: tuple[str, ...], who: str) -> BranchRules:
        """The rules in the way of pushes to branches named as `ours`, and of unsigned commits."""
        ...

    #: The permissions of those who may write.
    writers: tuple[str, ...]

    def known_to_write(self, http: Http, user: str) -> bool:
        """Whether one may write, where only an administrator may ask for permissions."""
        ...

    def merge_style(self, repository: answers.Repository) -> str: ...

    def merge(self, http: Http, number: int, head: str, style: str, message: str) -> None:
        """Ask for the merge, once; the forge's refusal as it is."""
        ...

    def merge_refusal(self, status: int, said: str) -> str:
        """What a refusal means.

        `head`, `base`, `conflict`, `unclear`, `merged`, `people` (one who has a say is missing)
        or `refused`.
        """
        ...
