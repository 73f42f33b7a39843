"""Which tokens the settings of a project name, and their values for those who must hide them."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

from caloron.errors import CaloronError
from caloron.forge.addresses import address_of
from caloron.forge.tokens import TokenSource, read_token
from caloron.ledger.settings import ProjectConfig
from caloron.store import log

GITHUB = "https://api.github.com"


class Tokens(NamedTuple):
    """Where the tokens are: that of our account, and that of the second one which reviews."""

    own: TokenSource
    reviewer: TokenSource | None


def tokens_of(config: ProjectConfig) -> Tokens:
    """The places that the settings name; none for our own account: git's credential helper."""
    reviewer = TokenSource(config.reviewer_token_env, config.reviewer_token_file)
    return Tokens(
        TokenSource(config.token_env, config.token_file),
        reviewer if reviewer.env or reviewer.file else None,
    )


def token_values(config: ProjectConfig) -> dict[str, str]:
    """Every token that can be read now, by a name for it: none of them may be written down."""
    if config.forge == "local":
        return {}
    own, reviewer = tokens_of(config)
    named = {config.token_env or "forge_token": own}
    if reviewer:
        named[config.reviewer_token_env or "reviewer_token"] = reviewer
    host = config.host or GITHUB
    found = {name: _value(source, config.forge, host) for name, source in named.items()}
    if config.webhook_secret_env:
        found[config.webhook_secret_env] = os.environ.get(config.webhook_secret_env, "")
    return {name: value for name, value in found.items() if value}


def _value(source: TokenSource, kind: str, host: str) -> str:
    """Empty if it cannot be read now: `read_token` makes it known to redactors once it can be."""
    if source.env:
        return os.environ.get(source.env, "").strip()
    try:
        return _read_once(source, address_of(kind, host).web)
    except CaloronError as error:
        log.warning("a token of the forge cannot be read yet", error=error)
        return ""


@lru_cache(maxsize=8)
def _read_once(source: TokenSource, host: str) -> str:
    """A credential helper may take its time."""
    return read_token(source, host)
