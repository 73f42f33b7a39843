"""The sources of a token; a token appears in no text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from caloron.errors import PreconditionFailed
from caloron.forge.tokens import Token, TokenSource, read_token

HOST = "https://forge.example"
SECRET = "0123456789abcdef-secret"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    return tmp_path


def test_a_variable_gives_the_token_without_the_space_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORGE_TOKEN", f" {SECRET}\n")
    assert read_token(TokenSource(env="FORGE_TOKEN"), HOST) == SECRET
    monkeypatch.delenv("FORGE_TOKEN")
    with pytest.raises(PreconditionFailed, match="FORGE_TOKEN is empty or not set"):
        read_token(TokenSource(env="FORGE_TOKEN"), HOST)


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    assert read_token(TokenSource(file=str(file)), HOST) == SECRET
    file.chmod(0o644)
    with pytest.raises(PreconditionFailed, match="read by everybody") as refused:
        read_token(TokenSource(file=str(file)), HOST)
    assert refused.value.hint == f"chmod 600 {file}"


def test_a_missing_empty_or_invalid_token_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(PreconditionFailed, match=f"{file} cannot be read"):
        read_token(TokenSource(file=str(file)), HOST)
    for text, words in (("\n", "is empty"), ("two words", "no token"), ("a\nb", "no token")):
        file.write_text(text)
        file.chmod(0o600)
        with pytest.raises(PreconditionFailed, match=words) as refused:
            read_token(TokenSource(file=str(file)), HOST)
        assert "words" not in str(refused.value)


def test_the_users_own_git_helper_gives_the_token_of_this_host(home: Path) -> None:
    (home / ".git-credentials").write_text(
        f"https://me:wrong@other.example\nhttps://me:{SECRET}@forge.example\n"
    )
    subprocess.run(("git", "config", "--global", "credential.helper", "store"), check=True)
    assert read_token(TokenSource(), HOST) == SECRET


def test_without_a_helper_git_does_not_prompt(home: Path) -> None:
    marker = home / "asked"
    script = home / "askpass"
    script.write_text(f"#!/bin/sh\ntouch {marker}\necho answer\n")
    script.chmod(0o755)
    subprocess.run(("git", "config", "--global", "core.askPass", str(script)), check=True)
    with pytest.raises(PreconditionFailed, match=r"forge\.example"):
        read_token(TokenSource(), HOST)
    assert not marker.exists()


def test_a_token_is_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_TOKEN", SECRET)
    token = Token(TokenSource(env="FORGE_TOKEN"), HOST, "token")
    assert token.header() == f"token {SECRET}"
    assert SECRET not in f"{token!r} {token} {token.hidden_in(f'bad {SECRET}!')}"
