"""Search everything that a home has written for a secret, in plain text and usual encodings."""

from __future__ import annotations

import base64
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.home import Answer, Home


def sources_of_secret(home: Home, secret: str, *answers: Answer) -> list[str]:
    """List the sources in which a secret is readable."""
    key = secret.encode()
    # In base64, a secret after one other byte looks different.
    inside = base64.b64encode(b"x" + key)[4:-4]
    forms = (key, base64.b64encode(key), inside, key.hex().encode())
    answer_texts = [(f"answer {n}", (a.stdout + a.stderr).encode()) for n, a in enumerate(answers)]
    return [
        name for name, data in (*_everything(home), *answer_texts) if any(f in data for f in forms)
    ]


def _everything(home: Home) -> Iterator[tuple[str, bytes]]:
    """Every file of the home, and what its databases and repositories hold in other forms."""
    for file in home.path.rglob("*"):
        if file.is_file() and not file.is_symlink():
            yield str(file), file.read_bytes()
    for file in home.path.rglob("*.sqlite"):
        connection = sqlite3.connect(file)
        yield f"{file} (rows)", "\n".join(connection.iterdump()).encode()
        connection.close()
    for objects in home.path.rglob("objects"):
        if (objects.parent / "HEAD").is_file():
            yield f"{objects} (objects)", _objects(objects.parent)


def _objects(repository: Path) -> bytes:
    command = ("git", f"--git-dir={repository}", "cat-file", "--batch", "--batch-all-objects")
    return subprocess.run(command, check=True, capture_output=True).stdout
