"""After any failure an atomically written file has its old or its new content."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from caloron.errors import StoreError
from caloron.ledger.projects import create_project
from caloron.ledger.settings import ProjectConfig
from caloron.store import files
from caloron.store.files import append_line, write_atomic
from tests.integration.store.conftest import exit_code

OLD, NEW = b"old" * 1000, b"new" * 2000


def _full(*args: Any, **kwargs: Any) -> Any:
    raise OSError(28, "No space left on device")


def test_a_file_is_replaced_without_leftover_files(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "er" / "state.json"
    write_atomic(file, OLD)
    write_atomic(file, NEW)
    assert file.read_bytes() == NEW
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("step", ["open", "os.fsync", "replace", "sync_directory"])
def test_a_failure_at_any_step_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    file = tmp_path / "state.json"
    file.write_bytes(OLD)
    owner: Any = {"os.fsync": os, "sync_directory": files}.get(step, Path)
    monkeypatch.setattr(owner, step.removeprefix("os."), _full)
    with pytest.raises(StoreError, match="No space left") as refused:
        write_atomic(file, NEW)
    monkeypatch.undo()
    assert str(file) in str(refused.value)
    assert refused.value.hint
    assert file.read_bytes() == (NEW if step == "sync_directory" else OLD)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("point", "expected"), [("file.temp", OLD), ("file.fsync", OLD), ("file.rename", NEW)]
)
def test_a_kill_at_any_step_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, point: str, expected: bytes
) -> None:
    file = tmp_path / "state.json"
    file.write_bytes(OLD)
    assert exit_code(lambda: write_atomic(file, NEW), killed_at=point) == -signal.SIGKILL
    assert file.read_bytes() == expected
    write_atomic(file, NEW)
    assert file.read_bytes() == NEW


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    def write() -> None:
        with pytest.raises(StoreError) as refused:
            write_atomic(file, NEW)
        assert "the old file is untouched" in refused.value.hint

    file = tmp_path / "state.json"
    file.write_bytes(OLD)
    assert exit_code(write, largest_file=1000) == 0
    assert file.read_bytes() == OLD
    assert list(tmp_path.iterdir()) == [file]


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    texts = [bytes([65 + number]) * 50_000 for number in range(4)]

    def write(text: bytes) -> None:
        for _ in range(30):
            write_atomic(path, text, durable=False)
            assert path.read_bytes() in texts

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, texts))
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreError, match=r"Not a directory|File exists") as refused:
        write_atomic(blocked / "state.json", NEW)
    assert "make the directory writable" in refused.value.hint


def test_lines_are_appended_completely_and_never_to_a_partial_line(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "log"
    append_line(file, b"one")
    with file.open("ab") as torn:
        torn.write(b"tw")
    append_line(file, b"three")
    assert file.read_bytes() == b"one\ntw\nthree\n"


def test_a_line_is_complete_after_any_number_of_partial_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:3]))
    append_line(tmp_path / "log", b"a line of more than six bytes")
    monkeypatch.undo()
    assert (tmp_path / "log").read_bytes() == b"a line of more than six bytes\n"


def test_a_line_that_exceeds_the_disk_is_not_written(tmp_path: Path) -> None:
    def append() -> None:
        with pytest.raises(StoreError, match="log"):
            append_line(file, b"x" * 100)

    file = tmp_path / "log"
    append_line(file, b"one")
    assert exit_code(append, largest_file=10) == 0
    assert file.read_bytes() == b"one\n"


def test_a_new_project_is_synced_before_its_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALORON_HOME", str(tmp_path / "home"))
    steps: list[str] = []
    sync, rename = os.fsync, Path.rename

    def noted_sync(handle: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{handle}').readlink()}")
        sync(handle)

    def noted_rename(self: Path, target: Path) -> Path:
        steps.append(f"rename {self}")
        return rename(self, target)

    def furnish(folder: Path) -> None:
        (folder / "forge.git" / "refs").mkdir(parents=True)
        (folder / "forge.git" / "refs" / "main").write_text("commit")

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    project = create_project(ProjectConfig(name="shop"), furnish)

    renamed = next(n for n, step in enumerate(steps) if step.startswith("rename "))
    scaffold = steps[renamed].removeprefix("rename ")
    for name in ("", "/config.yml", "/forge.git", "/forge.git/refs", "/forge.git/refs/main"):
        assert f"sync {scaffold}{name}" in steps[:renamed]
    assert f"sync {project.path.parent}" in steps[renamed + 1 :]
