"""The helpers of the tests themselves."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from tests.support.wait import paths


def test_a_listing_survives_folders_that_are_removed_meanwhile(tmp_path: Path) -> None:
    """`Path.glob` raises `FileNotFoundError` there."""
    (tmp_path / "kept" / "deep").mkdir(parents=True)
    (tmp_path / "kept" / "deep" / "file").touch()
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            (tmp_path / "gone" / "deep").mkdir(parents=True)
            shutil.rmtree(tmp_path / "gone")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            assert tmp_path / "kept" / "deep" / "file" in paths(tmp_path, "*/*/*")
    finally:
        over.set()
        thread.join()
