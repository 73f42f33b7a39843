"""A file that is written atomically is the old one or the new one, whatever goes wrong."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caloron.errors import StoreError
from caloron.store import files
from caloron.store.files import append_line, write_atomic
from tests.integration.store.conftest import PROCESSES

OLD, NEW = b"old" * 1000, b"new" * 2000


def _break(function: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "No space left on device")

    return broken


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
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
    match step:
        case "os.fsync":
            monkeypatch.setattr(os, "fsync", _break(os.fsync))
        case "sync_directory":
            monkeypatch.setattr(files, "sync_directory", _break(os.fsync))
        case _:
            monkeypatch.setattr(Path, step, _break(getattr(Path, step)))
    with pytest.raises(StoreError, match="No space left") as refused:
        write_atomic(file, NEW)
    monkeypatch.undo()
    assert str(file) in str(refused.value)
    assert refused.value.hint
    assert file.read_bytes() == (NEW if step == "sync_directory" else OLD)
    assert list(tmp_path.iterdir()) == [file]


def _write_and_die(path: Path, point: str) -> None:
    def die(name: str, of: str = "") -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    files.crashpoint = die  # type: ignore[attr-defined]
    write_atomic(path, NEW)


@pytest.mark.parametrize(
    ("point", "expected"), [("file.temp", OLD), ("file.fsync", OLD), ("file.rename", NEW)]
)
def test_a_kill_at_any_step_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, point: str, expected: bytes
) -> None:
    file = tmp_path / "state.json"
    file.write_bytes(OLD)
    worker = PROCESSES.Process(target=_write_and_die, args=(file, point))
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    assert file.read_bytes() == expected
    write_atomic(file, NEW)
    assert file.read_bytes() == NEW


def _write_on_a_full_disk(path: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        write_atomic(path, NEW)
    except StoreError as error:
        os._exit(0 if "the old file is untouched" in error.hint else 3)
    os._exit(4)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_bytes(OLD)
    worker = PROCESSES.Process(target=_write_on_a_full_disk, args=(file,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert file.read_bytes() == OLD
    assert list(tmp_path.iterdir()) == [file]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreError, match=r"Not a directory|File exists") as refused:
        write_atomic(blocked / "state.json", NEW)
    assert "make the directory writable" in refused.value.hint


def test_lines_are_added_whole_and_after_half_a_line_on_their_own(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "log"
    append_line(file, b"one")
    with file.open("ab") as torn:
        torn.write(b"tw")
    append_line(file, b"three")
    assert file.read_bytes() == b"one\ntw\nthree\n"


def _append_on_a_full_disk(path: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
    try:
        append_line(path, b"x" * 100)
    except StoreError as error:
        os._exit(0 if str(path) in str(error) else 3)
    os._exit(4)


def test_a_line_that_finds_no_room_leaves_nothing_of_itself(tmp_path: Path) -> None:
    file = tmp_path / "log"
    append_line(file, b"one")
    worker = PROCESSES.Process(target=_append_on_a_full_disk, args=(file,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert file.read_bytes() == b"one\n"
