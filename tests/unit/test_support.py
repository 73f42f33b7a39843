"""The helpers of the tests themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.wait import paths


def test_a_listing_survives_a_folder_that_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path.glob` raises `FileNotFoundError` for a removed folder."""
    for name in ("gone", "kept"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").touch()
    scandir = os.scandir

    def remove_before_it_is_listed(path: Any) -> Any:
        if "gone" in str(path):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", remove_before_it_is_listed)
    with pytest.raises(FileNotFoundError):
        list(tmp_path.glob("*/*/*"))
    assert paths(tmp_path, "*/*/*") == [tmp_path / "kept" / "deep" / "file"]
