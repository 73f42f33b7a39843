"""A token that becomes readable after the redactor exists is hidden, too."""

from __future__ import annotations

from pathlib import Path

from caloron.engine.forge.access import tokens_of
from caloron.engine.runs.runtime import known_secrets
from caloron.forge.tokens import Token
from caloron.ledger.settings import ProjectConfig
from caloron.store.redact import RedactingStream, Redactor, learned_secrets

TOKEN = "plain-words-without-a-known-form"


def test_a_token_that_becomes_readable_later_is_redacted_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "token"
    config = ProjectConfig(
        name="shop", forge="gitea", host="http://127.0.0.1:1", repo="ada/shop", token_file=str(file)
    )
    redactor = Redactor(known_secrets(config))
    stream = RedactingStream(redactor)

    # The secret store mounts the token a second later, and the forge reads it then.
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert Token(tokens_of(config).own, config.host, "token").value() == TOKEN

    assert TOKEN not in redactor.text(f"fatal: http://ada:{TOKEN}@127.0.0.1/shop.git")
    assert TOKEN.encode() not in stream.feed(f"token {TOKEN}\n".encode()) + stream.finish()
    # Processes that redact by themselves receive the token.
    assert TOKEN in learned_secrets().values()

    # A renewed token is hidden, and so is the one before it.
    file.write_text("another-one-without-a-known-form")
    renewed = Token(tokens_of(config).own, config.host, "token").value()
    shown = redactor.text(f"{TOKEN} {renewed}")
    assert TOKEN not in shown
    assert renewed not in shown
