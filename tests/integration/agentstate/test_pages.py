"""Dashboard and retro: pages exported from the file, correct at any size."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from caloron.agentstate.dashboard import dashboard
from caloron.agentstate.events import parse_time
from caloron.agentstate.instance import AgentInstance
from caloron.agentstate.weekly_retro import (
    last_week,
    percentiles,
    retro,
    week_named,
    week_of,
    write_weekly,
)
from caloron.errors import CaloronError
from tests.integration.agentstate.conftest import shift_clock

HOUR = 3_600_000
#: A time without a zone is local.
_LOCAL_2020 = int(datetime(2020, 1, 1).timestamp() * 1000)  # noqa: DTZ001


def section(page: str, title: str) -> list[str]:
    """Return the lines under a heading."""
    after = page.partition(f"## {title}\n")[2]
    return [line for line in after.partition("\n## ")[0].splitlines() if line]


def test_the_counts_cover_the_whole_file(home: AgentInstance) -> None:
    with home.db.transaction("fill") as connection:
        connection.executemany(
            "INSERT INTO work_items VALUES (?, ?, '{}', ?, NULL, ?, ?, NULL)",
            [(f"i{n}", f"k{n % 2}", "done" if n % 5 else "pending", n, n) for n in range(3000)],
        )
    page = dashboard(home.db)
    assert section(page, "Work items by kind")[2:] == [
        "| k0 | 300 | 0 | 0 | 1200 | 0 | 0 |",
        "| k1 | 300 | 0 | 0 | 1200 | 0 | 0 |",
    ]
    rows = section(page, "Open work items")
    assert rows[2].startswith("| i0 | k0 | pending |")
    assert rows[-1] == "_… and 550 more, all of them changed later._"


def test_the_longest_untouched_item_is_first_with_a_reason(
    home: AgentInstance,
) -> None:
    for item in ("stuck", "asked", "later", "fresh"):
        home.work_items.enqueue(item, "review", {}, delay_ms=HOUR * 100 if item == "later" else 0)
    home.work_items.claim("stuck", "forge")
    home.work_items.park("asked", "May I?")
    shift_clock(home, 25 * HOUR)
    home.work_items.annotate("fresh", {})
    page = dashboard(home.db)
    listed = [row for row in section(page, "Open work items") if "| 1 d |" in row]
    rows = {row.split(" | ")[0][2:]: row for row in listed}
    assert list(rows)[-1] == "fresh"
    assert "stale: no sign" in rows["stuck"]
    assert "waits for a person, 1 d" in rows["asked"]
    assert "not before" in rows["later"]
    assert "**1 in flight without a sign of the claimant.**" in page


def test_a_page_depends_only_on_the_state_and_is_written_atomically(
    home: AgentInstance, where: Path
) -> None:
    home.work_items.enqueue("a | b\nc", "x|y", {})
    path = home.regenerate_dashboard()
    first = path.read_text("utf-8")
    path.unlink()
    assert home.regenerate_dashboard().read_text("utf-8").splitlines()[4:] == first.splitlines()[4:]
    assert "a \\| b c" in first
    left = {file.name for file in where.iterdir()}
    assert {name for name in left if not name.startswith("state.sqlite")} == {"dashboard.md"}


def _past(home: AgentInstance, day: str) -> None:
    """Shift the clock of the file to a day."""
    wanted = parse_time(f"{day}T12:00:00Z")
    with home.db.transaction("test") as connection:
        (now,) = connection.execute("SELECT ms FROM caloron_clock").fetchone()
        connection.execute("UPDATE caloron_clock_offset SET ms = ms + ?", (wanted - now,))


def _week_of_work(home: AgentInstance, day: str, done: int, failed: int) -> None:
    _past(home, day)
    for n in range(done + failed):
        home.work_items.enqueue(f"{day}-{n}", "review", {})
        home.work_items.claim(f"{day}-{n}", "forge")
        shift_clock(home, HOUR * (n + 1) // 10)
        fails = n >= done
        home.work_items.resolve(
            f"{day}-{n}", "failed" if fails else "done", notes=f"broke {n}" if fails else ""
        )


def test_a_retro_has_throughput_times_failures_and_the_weeks_before(home: AgentInstance) -> None:
    _week_of_work(home, "2026-11-04", done=3, failed=1)
    _week_of_work(home, "2026-11-11", done=2, failed=2)
    with home.db.transaction("test") as connection:
        connection.execute(
            "INSERT INTO events (ts, type, payload) VALUES (?, 'work_item_resolved', 'no json')",
            (parse_time("2026-11-12"),),
        )
    page = retro(home.db, week_named("2026-W46"))
    assert section(page, "Work item resolutions")[2:] == [
        "| done | 2 |", "| failed | 2 |", "| cancelled | 0 |", "Handed in: 4. Claimed: 4.",
    ]  # fmt: skip
    assert section(page, "Cycle time")[2:] == [
        "| handed in to done | 6 min | 12 min | 12 min |",
        "| claimed to done | 6 min | 12 min | 12 min |",
    ]
    assert section(page, "Failures by kind")[0] == "review: 2"
    assert "| review | 2026-11-11-2 | broke 2 |" in section(page, "Failures by kind")
    assert section(page, "Trend")[2:4] == [
        "| 2026-W46 | 4 | 2 | 2 | 50% | 6 min |",
        "| 2026-W45 | 4 | 3 | 1 | 25% | 12 min |",
    ]
    assert "| work_item_resolved | 5 |" in section(page, "Events by type")
    assert "| forge | 8 |" in section(page, "Top actors")


def test_an_edited_retro_is_kept_beside_the_new_one(home: AgentInstance, where: Path) -> None:
    path, aside = write_weekly(where, "2026-W46")
    assert aside is None
    first = path.read_bytes()
    assert write_weekly(where, "2026-W46") == (path, None)
    assert path.read_bytes() == first
    for number in ("", "-2"):
        path.write_text("what I think of this week")
        path, aside = write_weekly(where, "2026-W46")
        assert aside == path.with_name(f"2026-W46.edited{number}.md")
        assert aside.read_text() == "what I think of this week"
        assert path.read_bytes() == first


@pytest.mark.parametrize(
    "label",
    [
        "2026-13",
        "2024-W00",
        "2024-W53",
        "2024-W99",
        "W01",
        "",
        "2026-W1",
        "9999999-W01",
        "0001-W01",
        "9999-W52",
    ],
)
def test_an_impossible_week_is_refused(home: AgentInstance, where: Path, label: str) -> None:
    with pytest.raises(CaloronError, match="there is no week"):
        write_weekly(where, label)
    assert not (where / "retros").exists()


def test_weeks_belong_to_the_year_of_their_thursday() -> None:
    assert week_of(datetime(2027, 1, 3, tzinfo=UTC).date()).label == "2026-W53"
    assert last_week(datetime(2026, 11, 16, 0, 0, tzinfo=UTC)).label == "2026-W46"
    week = week_named("2026-W46")
    assert week.window == {"begins": parse_time("2026-11-09"), "ends": parse_time("2026-11-16")}
    assert week_named("2021-W01").earlier(1).label == "2020-W53"


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1794786164593", 1794786164593),
        ("2020-01-01", 1577836800000),
        ("2020-01-01T00:00:00Z", 1577836800000),
        ("2020-01-01T01:00:00.5+01:00", 1577836800500),
        ("Wed, 01 Jan 2020 00:00:00 GMT", 1577836800000),
        ("Jan 1 2020", _LOCAL_2020),
        ("1 Jan 2020", _LOCAL_2020),
        ("Jan 1, 2020 00:00", _LOCAL_2020),
        ("2020/01/01", _LOCAL_2020),
    ],
)
def test_times_are_accepted_in_the_forms_that_people_write(text: str, ms: int) -> None:
    assert parse_time(text) == ms
    with pytest.raises(CaloronError, match="is no time"):
        parse_time("Nov 31 2026")


def test_percentiles_are_measured_values() -> None:
    assert percentiles([]) is None
    assert percentiles([7]) == (7, 7, 7)
    assert percentiles(list(range(1, 11))) == (5, 9, 10)
    assert percentiles(list(range(1, 21))) == (10, 18, 20)
    assert percentiles([1, 9]) == (1, 9, 9)
