"""What a user typed where the name of a secret was asked for may be the secret: never repeat it."""

from __future__ import annotations

import re

#: Settings that name the place of a secret.
NAMES_OF_SECRETS = (
    "token_env",
    "token_file",
    "reviewer_token_env",
    "reviewer_token_file",
    "webhook_secret_env",
)

_SECRET = re.compile(
    r"(?:gh[pousr]_|github_pat_|glpat-)\w+"
    r"|[0-9a-fA-F]{32,}"
    # Capitals, small letters and two digits in at least 20: no name that people give.
    r"|(?=.*[A-Z])(?=.*[a-z])(?=(?:.*\d){2})[A-Za-z0-9_+=-]{20,}"
)
_USER = re.compile(r"[^\s/@'\"]+@")


def looks_like_secret(text: str) -> bool:
    """Whether something is a token, as far as its form tells."""
    return _SECRET.fullmatch(text.strip()) is not None


def shown(key: str, value: object) -> str:
    """A value that was refused, for a message; empty: it must not stand in one."""
    text = value if isinstance(value, str) else repr(value)
    if key in NAMES_OF_SECRETS or looks_like_secret(text):
        return ""
    if key in ("host", "git_url", "repo"):
        text = without_user(text)
    return repr(text) if isinstance(value, str) else text


def without_user(address: str) -> str:
    """An address without the name, the password or the token in front of its host."""
    return _USER.sub("***@", address)
