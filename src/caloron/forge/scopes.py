"""Whether a token may do what Caloron does with it, found out without changing anything."""

from __future__ import annotations

from caloron.errors import NotFound, PreconditionFailed
from caloron.forge.http import Refused
from caloron.forge.remote import RemoteForge

#: What a token needs: no more, and not less.
SCOPES = {
    "gitea": "write:repository, write:issue and read:user",
    "github": "repo (classic), or for this repository (fine-grained) Contents, Issues, Pull"
    " requests and Commit statuses: read and write (it cannot read check runs)",
}
_FORBIDDEN = 403


def check_scopes(forge: RemoteForge, kind: str) -> None:
    """Refuse a token that may read but not write; of GitHub's newer ones nobody can tell."""
    if kind == "github":
        _check_told_scopes(forge)
        return
    try:
        # There is no issue 0: whoever may not write is refused before anybody looks for it.
        forge.http.change("PATCH", "issues/0", {"state": "open"})
    except NotFound:
        return
    except Refused as error:
        if error.status == _FORBIDDEN:
            raise _lacking(kind, error.said) from None


def _check_told_scopes(forge: RemoteForge) -> None:
    told = forge.http.get("").headers.get("x-oauth-scopes")
    if told is None:
        return
    scopes = {one.strip() for one in told.split(",")}
    if not scopes & {"repo", "public_repo"}:
        raise _lacking("github", f"it has {told or 'none'}")


def _lacking(kind: str, said: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"the token may not do what is needed: {said}",
        hint=f"make one with the scopes {SCOPES[kind]}",
    )
