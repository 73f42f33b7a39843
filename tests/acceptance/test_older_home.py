"""A home that `caloron-alpibru` 0.4.2 wrote is used as it is, and nothing in it is lost.

`data/alpibru-0.4.2` was written by that program: five sprints whose planner failed, three that ran,
and one that failed and was recorded with the numbers of the one before it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.checkouts import repository
from tests.support.home import Home, does, task, writes

_WRITTEN_AT = "/home/ada/.caloron"
_LESSON = "Fix DAG dependencies"


@pytest.fixture
def older(bare_home: Home) -> Home:
    """The home, moved to where the test is, with the scripted agent to do the work."""
    shutil.copytree(Path(__file__).parent / "data" / "alpibru-0.4.2", bare_home.path)
    for name in ("shop", "notes"):
        file = bare_home.project(name) / "config.yml"
        file.write_text(file.read_text().replace(_WRITTEN_AT, str(bare_home.path)))
    return bare_home


def put(home: Home, name: str, content: Any) -> Path:
    file = home.project("shop") / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def tree(home: Home) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(home.path.rglob("*")) if p.is_file()}


def test_reading_commands_show_everything_and_change_nothing(older: Home) -> None:
    before = tree(older)
    listed = older.caloron("project", "list").data
    assert listed["active"] == "shop"
    assert [(p["name"], p["framework"], p["problem"]) for p in listed["projects"]] == [
        ("notes", "claude-code", ""),
        ("shop", "claude-code", ""),
    ]
    history = older.caloron("history").data
    assert history["total"] == 9
    assert [s["sprint_id"] for s in history["sprints"]] == [
        f"shop-{number}" for number in range(9, 0, -1)
    ]
    assert [s["number"] for s in history["sprints"]] == list(range(9, 0, -1))
    assert all(s["imported"] for s in history["sprints"])
    assert older.caloron("history", "--limit", "2").data["sprints"] == history["sprints"][:2]
    first = older.caloron("show", "1").data
    assert (first["goal"], first["failure"]) == (
        'Add a "cart" to the shop',
        "it ended with exit code 1",
    )
    # The older program had copied 2/2 into the record of a sprint without results.
    assert older.caloron("show", "shop-9").data["total_tasks"] == 0
    metrics = older.caloron("metrics").data
    assert (metrics["total_sprints"], metrics["imported_sprints"]) == (9, 9)
    assert (metrics["total_tasks"], metrics["completed_tasks"]) == (
        6,
        5,
    )
    assert metrics["avg_clarity"] == 5.5
    status = older.caloron("status").data
    assert (status["total_sprints"], status["last_sprint"]["sprint_id"]) == (9, "shop-9")
    assert older.caloron("history", "-p", "notes").data["sprints"] == []
    for command in (
        "status",
        "history",
        "show 7",
        "metrics",
        "org show -p shop",
        "inbox",
        "agents",
    ):
        answer = older.caloron(*command.split(), json=False)
        assert answer.code == 0, (command, answer)
    for command in ("report", "retro", "why", "issue list", "show 10"):
        assert older.caloron(*command.split()).code in (3, 8)
    assert tree(older) == before


def test_a_new_sprint_goes_on_from_it_with_its_lessons(older: Home) -> None:
    before = tree(older)
    conventions = "commit_message:\n  format: 'shop: what'\n"
    put(older, "workspace/caloron.yml", conventions)
    older.set("shop", framework="stub", poll_s=0.2)
    older.script(does("po", output=json.dumps([task("cart"), task("pay")])), writes("cart"),
                 writes("pay"))  # fmt: skip
    answer = older.sprint()
    assert answer.code == 0, answer
    assert answer.data["sprint_id"] == "shop-10"
    adopted = {a["agent_id"]: a["imported"] for a in older.caloron("agents").data["agents"]}
    assert (adopted["cart"], adopted["pay"]) == (False, False)
    assert list(adopted.values()).count(True) == 3
    cart = older.caloron("agents", "show", "cart").data
    assert (len(cart["work"]), len(cart["imported_versions"])) == (1, 2)
    assert "imported from an older version of Caloron: 9 sprints" in answer.stderr
    assert "'alpi/shop' is a name on a forge" in answer.stderr

    (prompt,) = older.project("shop").glob("runs/shop-10/po/*/*/prompt.txt")
    text = prompt.read_text()
    assert _LESSON in text
    assert text.count(_LESSON) == 1
    assert "shop-7: 1/2 tasks done" in text or "shop-1 to shop-7" in text
    assert "shop: what" in text

    history = older.caloron("history").data
    assert [s["imported"] for s in history["sprints"]] == [False] + [True] * 9
    assert older.caloron("metrics").data["total_tasks"] == 8
    assert older.caloron("show", "7").data["completed_tasks"] == 1
    assert older.caloron("status").data["total_sprints"] == 10
    refused = older.caloron("report", "7")
    assert (refused.code, "caloron show 7" in refused.error["hint"]) == (3, True)

    workspace = older.project("shop") / "workspace"
    records = json.loads((older.project("shop") / "sprints.json").read_bytes())["sprints"]
    assert [record["sprint_id"] for record in records] == list(range(1, 11))
    assert [t["id"] for t in json.loads((workspace / "dag.json").read_bytes())] == ["cart", "pay"]
    versions = json.loads((workspace / "agent_versions.json").read_bytes())
    assert [v["version"] for v in versions["cart"]] == ["1.0", "1.1", "1.2"]
    assert versions["pay"][0]["framework"] == "stub"
    assert yaml.safe_load((workspace / "agents" / "pay.agent").read_text())["version"] == "1.0.0"
    # Every text of the old home is still there, in its file or beside it.
    texts = set(tree(older).values())
    changed = {"config.yml", "learnings.json", "agent_versions.json"}
    lost = [name for name, text in before.items() if text not in texts]
    assert {Path(name).name for name in lost} <= changed


def test_a_plan_in_the_form_of_the_original_runs_and_unsupported_fields_are_named(
    home: Home,
) -> None:
    dag = {
        "sprint": {"id": "s1", "goal": "g", "start": "2026-01-01T00:00:00Z"},
        "agents": [{"id": "dev", "role": "dev", "spec": {"extra_instructions": "Be kind."}}],
        "tasks": [
            {"id": "a", "title": "A", "assigned_to": "dev", "issue_template": "Write a",
             "depends_on": []},
            {"id": "b", "title": "B", "assigned_to": "dev", "issue_template": "Write b",
             "depends_on": ["a"], "reviewed_by": "dev"},
        ],
        "review_policy": {"required_approvals": 1, "auto_merge": True, "max_review_cycles": 3},
    }  # fmt: skip
    file = home.root / "dag.json"
    file.write_text(json.dumps(dag))
    home.script(writes("a"), writes("b"))
    answer = home.caloron("sprint", "go", "--yes", "--plan", str(file))
    assert answer.code == 0, answer
    assert answer.statuses == {"a": "Done", "b": "Done"}
    assert "tasks[1].reviewed_by" in answer.stderr
    written = json.loads((home.project() / "workspace" / "dag.json").read_bytes())
    assert [t["agent_prompt"] for t in written] == ["Write a\n\nBe kind.", "Write b\n\nBe kind."]
    # A plan that Caloron writes is a plan that it accepts.
    again = home.caloron(
        "sprint", "again", "--plan", str(home.project() / "workspace" / "dag.json"), "--dry-run"
    )
    assert again.code == 9, again

    dag["tasks"][0]["assigned_to"] = "nobody"  # type: ignore[index]
    file.write_text(json.dumps(dag))
    refused = home.caloron("sprint", "go", "--yes", "--plan", str(file))
    assert (refused.code, "tasks[0].assigned_to" in refused.error["message"]) == (2, True)


def test_before_the_first_sprint_every_command_refers_to_the_imported_sprints(older: Home) -> None:
    for command, hint in (("report", 9), ("report 7", 7), ("retro", 9), ("retro --sprint 7", 7)):
        refused = older.caloron(*command.split())
        assert refused.code == 3
        assert "imported from an older version" in refused.error["message"]
        assert refused.error["hint"] == f"caloron show {hint}"
    assert older.caloron("report", "77").error["message"] == "there is no sprint 77"
    improvements = older.caloron("metrics").data["improvements"]
    assert [i["text"].startswith(_LESSON) for i in improvements].count(True) == 1
    assert len(improvements) == 2

    rows = {a["agent_id"]: a for a in older.caloron("agents").data["agents"]}
    assert len(rows) == 4
    assert all(row["imported"] for row in rows.values())
    assert (rows["cart"]["frameworks"], rows["cart"]["attempts"]) == (["claude-code"], None)
    shown = older.caloron("agents", "show", "cart").data
    assert [v["version"] for v in shown["imported_versions"]] == ["1.0", "1.1"]
    assert "imported from an older version" in older.caloron("agents", json=False).stdout
    assert "version 1.1, sprint-2" in older.caloron("agents", "show", "cart", json=False).stdout
    assert older.caloron("agents", "show", "nobody").code == 3


@pytest.mark.parametrize("old_work_dir", ["projects/{name}/workspace", "elsewhere"])
def test_a_home_that_was_moved_is_used_where_it_is_now(
    older: Home, tmp_path: Path, old_work_dir: str
) -> None:
    gone = tmp_path / "gone" / old_work_dir.format(name="shop")
    older.set("shop", framework="stub", poll_s=0.2, work_dir=str(gone))
    older.script(does("po", output=json.dumps([task("cart")])), writes("cart"))
    answer = older.sprint()
    assert answer.code == 0, answer
    assert f"work_dir {gone} is not there" in answer.stderr
    assert "2 improvements" in answer.stderr
    assert not gone.exists()
    (prompt,) = older.project("shop").glob("runs/shop-10/po/*/*/prompt.txt")
    assert _LESSON in prompt.read_text()


def test_a_work_dir_that_is_new_is_made_where_it_was_chosen(home: Home, tmp_path: Path) -> None:
    home.set(work_dir=str(tmp_path / "chosen"))
    home.script(writes("a"))
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert (tmp_path / "chosen" / "dag.json").exists()
    assert "is not there" not in answer.stderr


def test_a_repository_on_this_disk_is_where_the_forge_begins(older: Home) -> None:
    shop = repository(older)
    older.set("shop", framework="stub", repo=str(shop.path), poll_s=0.2)
    older.script(writes("a"))
    answer = older.sprint(task("a"))
    assert answer.code == 0, answer
    assert shop.merged() == {"kept.txt": "kept", "a.txt": "a"}


def test_an_old_tick_state_is_kept_and_does_not_pass_for_the_new_sprints(older: Home) -> None:
    old = {"state": {"tasks": {"a": {"status": "Done"}}}, "interventions": {"a": 2}, "since": ""}
    kv = older.path / "kv"
    kv.mkdir()
    for name in ("shop-10", "sprint-add-health"):
        (kv / f"{name}.json").write_text(json.dumps(old))
    older.set("shop", framework="stub", poll_s=0.2)
    older.script(writes("a"))
    answer = older.sprint(task("a"))
    assert answer.code == 0, answer
    assert older.state_file("shop-10")["interventions"] == {}
    assert (older.project("shop") / "forge.git").exists()
    (kept,) = kv.glob("shop-10.json.foreign-*")
    assert json.loads(kept.read_bytes()) == old
    assert json.loads((kv / "sprint-add-health.json").read_bytes()) == old
