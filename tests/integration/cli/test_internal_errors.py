"""The report file of an internal error: complete, without secrets, readable only by its owner."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from caloron.cli import app as program


def test_the_file_has_no_secret_and_only_its_owner_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALORON_HOME", str(tmp_path))
    monkeypatch.setenv("SHOP_TOKEN", "hunter2-hunter2-hunter2")
    key = "sk-ant-api03-" + "A1b2C3d4" * 8
    url = "https://ada:pass4word99@forge.example/shop.git"
    monkeypatch.setattr(sys, "argv", ["caloron", "sprint", f"use {key}", "--git-url", url])

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the forge answered hunter2-hunter2-hunter2")

    monkeypatch.setattr(program.cli, "main", broken)
    assert program.main() == 1

    (file,) = (tmp_path / "logs").glob("defect-*.log")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text("utf-8")
    assert "RuntimeError: the forge answered [redacted SHOP_TOKEN]" in text
    assert "broken" in text
    assert "'sprint'" in text
    everything = text + (tmp_path / "logs" / "caloron.log").read_text("utf-8")
    everything += "".join(capsys.readouterr())
    for secret in ("hunter2", key, "pass4word99"):
        assert secret not in everything


def test_the_file_has_no_value_of_a_variable_from_the_project_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The names of these variables do not match the patterns for secrets."""
    monkeypatch.setenv("CALORON_HOME", str(tmp_path))
    named = {
        "token_env": "FTOK",
        "reviewer_token_env": "SECOND",
        "webhook_secret_env": "HOOK",
        "pass_env": "[MODEL, OTHER]",
    }
    variables = ("FTOK", "SECOND", "HOOK", "MODEL", "OTHER")
    for name in variables:
        monkeypatch.setenv(name, f"value-of-{name.lower()}-998877")
    for number, (key, value) in enumerate(named.items()):
        settings = tmp_path / "projects" / f"p{number}" / "config.yml"
        settings.parent.mkdir(parents=True)
        settings.write_text(f"{key}: {value}\n", "utf-8")
    for name, text in {"broken": "a: [", "odd": "pass_env: 7\ntoken_env: [1]\n"}.items():
        settings = tmp_path / "projects" / name / "config.yml"
        settings.parent.mkdir(parents=True)
        settings.write_text(text, "utf-8")
    words = [f"value-of-{name.lower()}-998877" for name in variables]
    monkeypatch.setattr(sys, "argv", ["caloron", "agents", "show", *words])

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"cannot read {words}")

    monkeypatch.setattr(program.cli, "main", broken)
    assert program.main() == 1

    (file,) = (tmp_path / "logs").glob("defect-*.log")
    text = file.read_text("utf-8")
    assert "'[redacted FTOK]'" in text
    everything = text + (tmp_path / "logs" / "caloron.log").read_text("utf-8")
    everything += "".join(capsys.readouterr())
    assert "value-of" not in everything
