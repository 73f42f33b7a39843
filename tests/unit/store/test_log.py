"""The content of the log, its redaction and its size."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caloron.errors import StoreError, UsageError
from caloron.store import log, log_file


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    log.pin(log.log_of(tmp_path), sprint="shop-3")
    yield log.log_of(tmp_path)
    log.unpin()
    log.set_verbose(False)


def entries(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_an_ignored_error_is_in_the_log_with_its_sprint_task_thread_and_place(file: Path) -> None:
    def work() -> None:
        with (
            log.context(task="login"),
            log.ignored(OSError, message="cannot remove the workspace", attempt=2),
        ):
            raise PermissionError("nope")

    worker = threading.Thread(target=work, name="worker-1")
    worker.start()
    worker.join()

    (entry,) = entries(file)
    assert entry["level"] == "warning"
    assert entry["message"] == "cannot remove the workspace"
    assert entry["error"] == "PermissionError: nope"
    assert (entry["sprint"], entry["task"], entry["attempt"]) == ("shop-3", "login", 2)
    assert entry["thread"] == "worker-1"
    assert entry["where"].startswith("test_log:")
    assert entry["time"].endswith("+00:00")


def test_an_error_of_another_kind_is_not_ignored(file: Path) -> None:
    with pytest.raises(ValueError, match="other"), log.ignored(OSError, message="not this"):
        raise ValueError("other")
    assert not file.exists()


def test_secrets_are_not_in_the_log(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "hunter2-hunter2-hunter2")
    try:
        raise StoreError("the forge refused hunter2-hunter2-hunter2")
    except StoreError as caught:
        log.error("push failed", error=caught, url="https://u:hunter2-hunter2-hunter2@host/")

    assert "hunter2" not in file.read_text("utf-8")
    (entry,) = entries(file)
    assert "[redacted SHOP_TOKEN]" in entry["error"]
    assert "StoreError" in entry["traceback"]


def test_only_the_owner_reads_the_log(file: Path) -> None:
    log.info("begin")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    log.info("again")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_rotation_bounds_the_size_and_keeps_the_newest(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "MAX_BYTES", 2000)
    for number in range(200):
        log.info("x" * 50, number=number)

    kept = sorted(file.parent.iterdir())
    assert len(kept) == 1 + log_file.KEPT
    assert all(part.stat().st_size <= 2000 for part in kept)
    assert all(stat.S_IMODE(part.stat().st_mode) == 0o600 for part in kept)
    older = [file.with_name(f"{file.name}.{n}") for n in range(log_file.KEPT, 0, -1)]
    numbers = [entry["number"] for part in (*older, file) for entry in entries(part)]
    assert numbers == list(range(numbers[0], 200))


def test_processes_that_share_the_file_lose_no_record_when_it_is_rotated(file: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from caloron.store import log, log_file\n"
        "log_file.MAX_BYTES, log_file.KEPT = 20_000, 50\n"
        "log.pin(Path(sys.argv[1]), writer=sys.argv[2])\n"
        "for n in range(300): log.info('x' * 100, number=n)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(file), name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    records = [(e["writer"], e["number"]) for part in file.parent.iterdir() for e in entries(part)]
    assert sorted(records) == [(name, number) for name in "abc" for number in range(300)]


def test_a_record_of_any_size_and_content_is_one_line(file: Path) -> None:
    log.warning("a\nb" * 100_000, path=Path("/tmp/caf\udce9"), error="no\x1b[31m text")
    (entry,) = entries(file)
    assert len(file.read_bytes()) < 20_000
    assert entry["path"] == "/tmp/caf\\udce9"


def test_levels(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log.debug("small")
    monkeypatch.setenv("CALORON_LOG_LEVEL", "debug")
    log.debug("wanted")
    monkeypatch.setenv("CALORON_LOG_LEVEL", "ERROR")
    log.warning("not wanted")
    assert capsys.readouterr().err == ""
    log.set_verbose(True)
    log.debug("with \x1b[31m colour")
    assert [entry["message"] for entry in entries(file)] == ["wanted", "with \x1b[31m colour"]
    assert "\x1b" not in capsys.readouterr().err

    monkeypatch.setenv("CALORON_LOG_LEVEL", "loud")
    with pytest.raises(UsageError, match="CALORON_LOG_LEVEL is 'loud'"):
        log.check_level()


def test_a_deleted_project_gets_no_folder_and_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    log.pin(log.log_of(tmp_path / "gone"))
    try:
        log.warning("after the end")
    finally:
        log.unpin()
    assert list(tmp_path.iterdir()) == []


def test_the_log_module_does_not_import_logging() -> None:
    program = "import sys; import caloron.ledger.locate; sys.exit('logging' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
