"""Where a forge is: its pages and its API, from whichever of the two addresses the user gave."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from caloron.errors import UsageError

_API = {"gitea": "/api/v1", "github": "/api/v3"}
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+")


class Address(msgspec.Struct, frozen=True):
    #: What a person opens in a browser; repositories are cloned from below it.
    web: str
    #: The root of the API.
    api: str


def address_of(kind: str, host: str) -> Address:
    """Both addresses of a forge; `host` is its base address or the root of its API."""
    parts = urlsplit(host.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
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
    """A repository as `owner/name`, without what people copy along with it."""
    cleaned = name.strip().strip("/").removesuffix(".git")
    if not _REPO.fullmatch(cleaned) or cleaned.split("/")[1] in (".", ".."):
        raise UsageError(f"{name!r} is no repository", hint="give it as owner/name")
    return cleaned
