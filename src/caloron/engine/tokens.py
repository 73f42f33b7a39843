"""Where the tokens of a forge come from: a variable, a file, or git's own credential helper.

A token's value is held by whoever asks here and by nobody else: it is in no setting, no argument,
no log and no ledger.
"""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from caloron.errors import PreconditionFailed
from caloron.ledger.projects import ProjectConfig

_LONGEST = 10_000
_ANSWER_S = 20


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What opens the forge: for our account, and for the second one that reviews."""

    own: str
    reviewer: str = ""

    def __repr__(self) -> str:
        return "Tokens(…)"


def tokens_of(config: ProjectConfig) -> Tokens:
    """The tokens that the settings name; refused where one of them is not there."""
    own = _named(config.token_env, "token_env", config.token_file, "token_file")
    reviewer = _named(
        config.reviewer_token_env,
        "reviewer_token_env",
        config.reviewer_token_file,
        "reviewer_token_file",
    )
    return Tokens(own=own or from_credential_helper(config.host, config.repo), reviewer=reviewer)


def token_values(config: ProjectConfig) -> dict[str, str]:
    """Every token that can be found now, by a name for it: none of them may be written down."""
    if config.forge == "local":
        return {}
    found = {
        name: os.environ.get(name, "")
        for name in (config.token_env, config.reviewer_token_env, config.webhook_secret_env)
        if name
    }
    for key in ("token_file", "reviewer_token_file"):
        if file := getattr(config, key):
            try:
                found[key] = _read(key, file)
            except PreconditionFailed:
                # Whoever needs it says so; what is not there cannot be written down either.
                continue
    if not (config.token_env or config.token_file):
        found["git_credential"] = _ask_helper(config.host, config.repo)
    return {name: value for name, value in found.items() if value}


def _named(variable: str, variable_key: str, file: str, file_key: str) -> str:
    """The token in a variable or a file; empty if neither is named."""
    if variable:
        value = os.environ.get(variable, "").strip()
        if not value:
            raise PreconditionFailed(
                f"the environment variable {variable} ({variable_key}) is not set",
                hint=f"export {variable} with the token of the account as its value",
            )
        return _sound(value, f"the environment variable {variable}")
    return _read(file_key, file) if file else ""


def _read(key: str, file: str) -> str:
    place = Path(file).expanduser()
    try:
        value = place.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        raise PreconditionFailed(
            f"the token in {file} ({key}) cannot be read: {error}",
            hint="write the token into that file, readable for you alone (chmod 600)",
        ) from error
    if not value:
        raise PreconditionFailed(f"{file} ({key}) is empty", hint="write the token into it")
    return _sound(value, file)


def _sound(value: str, where: str) -> str:
    """A token is one word; what is not one must not go into a header."""
    if len(value) > _LONGEST or not value.isascii() or not value.isprintable() or " " in value:
        raise PreconditionFailed(
            f"what {where} holds is not a token: a token is one word",
            hint="put the token there, and nothing else",
        )
    return value


def from_credential_helper(host: str, repo: str) -> str:
    """The password that git itself would use for the repository."""
    found = _ask_helper(host, repo)
    if not found:
        raise PreconditionFailed(
            f"no token for {host}: no variable or file is named, and git's credential helper"
            " knows none",
            hint="name a variable with --token-env (setting token_env), a file with --token-file"
            " (token_file), or store one: git credential approve",
        )
    return _sound(found, "git's credential helper")


@lru_cache(maxsize=8)
def _ask_helper(host: str, repo: str) -> str:
    site = urlsplit(host or "https://github.com")
    name = "github.com" if site.netloc == "api.github.com" else site.netloc
    asked = f"protocol={site.scheme}\nhost={name}\npath={repo}.git\n\n"
    # Nobody is asked anything: a helper that has to ask knows nothing.
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "/bin/false", "SSH_ASKPASS": "/bin/false"}
    try:
        done = subprocess.run(
            ("git", "-c", "core.askPass=/bin/false", "credential", "fill"),
            input=asked.encode(),
            capture_output=True,
            env=os.environ | quiet,
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode != 0:
        return ""
    lines = dict(
        line.partition("=")[::2] for line in done.stdout.decode("utf-8", "replace").splitlines()
    )
    return lines.get("password", "")
