"""51 recorded calls of agent-state 0.3: the same rows and codes, except for corrections."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from caloron.agentstate.weekly_retro import last_week
from tests.integration.agentstate.conftest import DATA, Answer, agent_state, called

CALLS = [json.loads(line) for line in (DATA / "transcript.jsonl").read_text("utf-8").splitlines()]
#: Deliberate corrections, by the number of the call: docs/compatibility.md lists the reasons.
SAME_ID_OTHER_PAYLOAD = 6
MISSING_FLAG = 9
SECOND_CLAIM = 11
RESOLVED_WITH_NOTES = 21


def result(value: Any, times: dict[int, int]) -> Any:
    """Replace the times in rows by the order in which they first appear."""
    if isinstance(value, dict):
        return {
            key: times.setdefault(field, len(times))
            if key in ("ts", "created_at", "updated_at")
            else result(field, times)
            for key, field in value.items()
        }
    return [result(item, times) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    where = tmp_path_factory.mktemp("transcript") / "forge"
    recorded = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MF_INSTANCE_DIR", str(where))
        for call in CALLS:
            words = [str(where) if word == "<dir>" else word for word in call["args"]]
            recorded.append(called(call["script"], *words))
            # In the transcript each call has its own millisecond.
            time.sleep(0.002)
    return recorded


def expected_rows() -> list[list[Any]]:
    """Return the lines of the transcript with the corrections."""
    text = json.dumps([call["stdout"] for call in CALLS])
    # The second claim is refused, so the first owner keeps the item.
    text = text.replace('"owner_agent": "other"', '"owner_agent": "forge"')
    text = text.replace('"actor": "other"', '"actor": "forge"')
    rows: list[list[Any]] = json.loads(text)
    rows[SAME_ID_OTHER_PAYLOAD][0]["differs"] = ["payload"]
    rows[SECOND_CLAIM] = []
    kept = '{"text":"first","k":[1,2],"resolution":"broke"}'
    rows[RESOLVED_WITH_NOTES][0]["notes"] = kept
    conflict = {
        "id": 2, "ts": "conflict", "type": "work_item_conflict", "actor": None,
        "work_item_id": "m1",
        "payload": json.dumps({"differs": ["payload"], "kind": "review", "payload": '{"pr":2}'},
                              separators=(",", ":")),
    }  # fmt: skip
    for call in rows:
        if len(call) == 15 and call[0].get("type"):
            # One event more (the conflict), one less (the second claim).
            call[1:4] = [conflict, call[1] | {"id": 3}, call[2] | {"id": 4}]
    return rows


def test_every_call_gives_the_rows_of_the_transcript(answers: list[Answer]) -> None:
    actual_times: dict[Any, int] = {}
    expected_times: dict[Any, int] = {}
    for number, (call, answer, rows) in enumerate(
        zip(CALLS, answers, expected_rows(), strict=True)
    ):
        if call["script"] in ("dashboard", "retro"):
            continue
        actual_rows, expected = result(answer.lines, actual_times), result(rows, expected_times)
        if number in (41, 42):
            # The conflict's time is not in the transcript: the order of all others is compared.
            assert actual_rows[1]["type"] == expected[1]["type"] == "work_item_conflict"
            assert {**actual_rows[1], "ts": 0} == {**expected[1], "ts": 0}
            del actual_rows[1], expected[1]
        assert actual_rows == expected, (number, call["args"])


def test_every_call_gives_the_code_of_the_transcript(answers: list[Answer]) -> None:
    differing = {
        number: (call["exit"], answer.code)
        for number, (call, answer) in enumerate(zip(CALLS, answers, strict=True))
        if call["exit"] != answer.code
    }
    assert differing == {MISSING_FLAG: (1, 2), SECOND_CLAIM: (0, 1)}


def test_only_errors_are_written_to_standard_error(answers: list[Answer]) -> None:
    for number, (call, answer) in enumerate(zip(CALLS, answers, strict=True)):
        put_right = number in (SAME_ID_OTHER_PAYLOAD, SECOND_CLAIM)
        assert (answer.err == "") is (call["stderr_empty"] and not put_right), call["args"]


def test_files_are_named_as_in_the_transcript(answers: list[Answer]) -> None:
    writing = zip(CALLS, answers, strict=True)
    named = [
        Path(answer.lines[0]).name
        for call, answer in writing
        if call["script"] in ("dashboard", "retro") and answer.code == 0
    ]
    assert named == ["dashboard.md", f"{last_week(datetime.now(UTC)).label}.md", "2026-W46.md"]


def test_the_sample_database_opens_and_goes_on(tmp_path: Path) -> None:
    shutil.copy(DATA / "state.sqlite", tmp_path / "state.sqlite")
    before = next(c["stdout"] for c in CALLS if c["args"][:2] == ["list", "--status"])
    untouched = (tmp_path / "state.sqlite").read_bytes()
    listed = agent_state(tmp_path, "errands", "list", "--status", "done")
    assert listed.lines == before
    assert (tmp_path / "state.sqlite").read_bytes() == untouched, "reading changed the file"
    claimed = agent_state(tmp_path, "errands", "next", "--owner", "forge", "--kind", "review")
    assert claimed.lines[0]["row"]["id"] == "q0"
    assert claimed.lines[0]["lease"]["attempt"] == 1
    connection = sqlite3.connect(tmp_path / "state.sqlite")
    versions = [row[0] for row in connection.execute("SELECT version FROM schema_migrations")]
    assert versions == ["0001"]
    scaffolded = agent_state(
        tmp_path, "scaffold", str(tmp_path), "--host", "grove", "--agent", "forge"
    )
    assert scaffolded.lines[0] == "scaffold: skipped state.sqlite (exists)"


def test_migrations_of_ours_on_a_file_of_theirs_are_reported(tmp_path: Path) -> None:
    shutil.copy(DATA / "state.sqlite", tmp_path / "state.sqlite")
    done = agent_state(tmp_path, "scaffold", str(tmp_path), "--host", "grove", "--agent", "forge")
    assert done.lines[0] == (
        "scaffold: skipped state.sqlite (present, applied 2 new migration(s):"
        " agentstate/0002-caloron, agentstate/0003-nothing-replaced)"
    )
