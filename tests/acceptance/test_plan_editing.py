"""A plan that waits can be changed in the user's own editor, and nothing that was typed is lost."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from tests.acceptance.terminals import Terminal
from tests.support.home import Home, does, task, writes

_ASKS, _AGAIN = "[r]eplan", "Edit it again?"


@pytest.fixture
def planned(home: Home) -> Home:
    prompt = "first line\n\n  indented: yes\nlast"
    plan = json.dumps([task("first", agent_prompt=prompt), task("second", "first")])
    return home.script(does("po", output=plan), writes("first"), writes("second"), writes("third"))


def _editor(home: Home, *edits: str) -> str:
    """An editor that makes the next of these changes each time, and keeps the files it got.

    Each change is a line of Python on `plan`, the parsed tasks, or on `text`.
    """
    folder = home.root / "editor"
    folder.mkdir(exist_ok=True)
    (folder / "edits.json").write_text(json.dumps(edits))
    program = folder / "edit.py"
    program.write_text(
        "import json, pathlib, sys, yaml\n"
        f"folder, file = pathlib.Path({str(folder)!r}), pathlib.Path(sys.argv[-1])\n"
        "edits = json.loads((folder / 'edits.json').read_text())\n"
        "(folder / 'edits.json').write_text(json.dumps(edits[1:]))\n"
        "text = original = file.read_text()\n"
        "(folder / f'opened-{len(edits)}.yml').write_text(original)\n"
        "try: plan = yaml.safe_load(text)\n"
        "except yaml.YAMLError: plan = None\n"
        "exec(edits[0])\n"
        "file.write_text(text if text != original else yaml.safe_dump(plan) "
        "if plan != yaml.safe_load(original) else original)\n"
    )
    return shlex.join((sys.executable, str(program)))


def _edits(home: Home) -> list[Path]:
    return sorted((home.project() / "edits").glob("*.yml"))


_THIRD = (
    "plan[1] = {'id': 'third', 'title': 'Another one', 'agent_prompt': 'x',"
    " 'depends_on': ['first']}"
)


def test_an_edited_plan_is_shown_again_and_runs_as_edited(planned: Home) -> None:
    terminal = Terminal(planned, "sprint", "go", EDITOR=_editor(planned, _THIRD))
    code, screen = terminal.end((_ASKS, "e"), (_ASKS, "y"))
    assert code == 0, screen
    assert "└─ third  Another one" in screen
    assert planned.files() == {"first.txt": b"first\n", "third.txt": b"third\n"}
    assert [i["title"] for i in planned.issues()] == ["Task first", "Another one"]
    (event,) = planned.events("plan_edited")
    assert event == {"sprint": "demo-1", "tasks": ["first", "third"]}
    assert _edits(planned) == []


def test_the_plan_file_is_yaml_with_instructions_and_keeps_every_character(planned: Home) -> None:
    planned.caloron("sprint", "go", "--plan-only")
    answer = planned.caloron("resume", "--edit", EDITOR=_editor(planned, "pass"))
    assert answer.code == 11, answer
    text = (planned.root / "editor" / "opened-1.yml").read_text()
    assert text.startswith("# The plan of sprint demo-1")
    assert "  agent_prompt: |-\n    first line\n" in text
    first, second = yaml.safe_load(text)
    assert first["agent_prompt"] == "first line\n\n  indented: yes\nlast"
    assert second["depends_on"] == ["first"]
    assert planned.events("plan_edited") == []


@pytest.mark.parametrize("edit", ["pass", "text = '# only words\\n'"])
def test_an_unchanged_or_empty_file_changes_nothing(planned: Home, edit: str) -> None:
    planned.caloron("sprint", "go", "--plan-only")
    answer = planned.caloron("resume", "--edit", "--yes", EDITOR=_editor(planned, edit))
    assert answer.code == 0, answer
    assert list(answer.statuses) == ["first", "second"]
    assert planned.events("plan_edited") == []
    assert _edits(planned) == []


def test_the_errors_of_an_invalid_plan_are_shown_and_it_can_be_edited_again(planned: Home) -> None:
    bad = "plan[0]['depends_on'] = ['second', 'ghost']; plan[1]['framework'] = 'abacus'"
    good = "plan[0]['depends_on'] = []; plan[1]['framework'] = ''"
    terminal = Terminal(planned, "sprint", "go", EDITOR=_editor(planned, bad, good + "; " + _THIRD))
    code, screen = terminal.end((_ASKS, "e"), (_AGAIN, ""), (_ASKS, "n"))
    assert code == 11, screen
    assert "'ghost'" in screen
    assert "abacus" in screen
    # The second time the editor got the text that had been typed.
    assert "ghost" in (planned.root / "editor" / "opened-1.yml").read_text()
    assert [t["id"] for t in planned.caloron("show", "1").data["tasks"]] == ["first", "third"]


def test_editing_can_be_cancelled_and_the_typed_text_is_there_the_next_time(planned: Home) -> None:
    bad = "plan[0]['title'] = ''"
    terminal = Terminal(planned, "sprint", "go", EDITOR=_editor(planned, bad))
    code, screen = terminal.end((_ASKS, "e"), (_AGAIN, "n"), (_ASKS, "n"))
    assert code == 11, screen
    (kept,) = _edits(planned)
    assert str(kept) in screen.replace("\n", "")
    better = "plan[0]['title'] = 'Better'"
    answer = planned.caloron("resume", "--edit", "--yes", EDITOR=_editor(planned, better))
    assert answer.code == 0, answer
    assert answer.data["tasks"][0]["title"] == "Better"
    assert _edits(planned) == []


def test_without_a_terminal_a_bad_plan_is_an_error_that_names_the_kept_file(planned: Home) -> None:
    planned.caloron("sprint", "go", "--plan-only")
    for text in ("text = '- id: ['", "text = 'just words'", "plan[0]['id'] = 'Bad Id'"):
        answer = planned.caloron("resume", "--edit", "--yes", EDITOR=_editor(planned, text))
        assert answer.code == 2, answer
        (kept,) = _edits(planned)
        assert str(kept) in answer.error["hint"]
        kept.unlink()
    assert planned.caloron("resume", "--yes").code == 0


@pytest.mark.parametrize(
    ("editor", "word"), [("false", "exit code 1"), ("/no/such/editor", "cannot be started")]
)
def test_an_editor_that_fails_is_named_and_the_plan_stays(
    planned: Home, editor: str, word: str
) -> None:
    planned.caloron("sprint", "go", "--plan-only")
    answer = planned.caloron("resume", "--edit", "--yes", VISUAL=editor, EDITOR="true")
    assert answer.code == 8
    assert word in answer.error["message"]
    code, screen = Terminal(planned, "resume", VISUAL=editor).end((_ASKS, "e"), (_ASKS, "y"))
    assert code == 0, screen
    assert word in screen


def test_the_text_of_an_editor_that_failed_is_kept(planned: Home) -> None:
    planned.caloron("sprint", "go", "--plan-only")
    failing = f"{_THIRD}; file.write_text(yaml.safe_dump(plan)); sys.exit(3)"
    editor = _editor(planned, failing)
    answer = planned.caloron("resume", "--edit", "--yes", EDITOR=editor)
    assert answer.code == 8
    (kept,) = _edits(planned)
    assert str(kept) in answer.error["message"]
    answer = planned.caloron("resume", "--edit", "--yes", EDITOR="true")
    assert list(answer.statuses) == ["first", "third"]


def test_a_plan_whose_tasks_were_begun_cannot_be_edited(planned: Home) -> None:
    assert planned.caloron("sprint", "go", "--yes").code == 0
    answer = planned.caloron("resume", "--edit", EDITOR="true")
    assert answer.code == 8
    assert "its tasks were started" in answer.error["message"]


@pytest.mark.parametrize("point", ["edit.before_commit", "edit.after_commit", "tick.before_commit"])
def test_a_crash_around_an_edit_leaves_the_whole_old_or_the_whole_new_plan(
    planned: Home, point: str
) -> None:
    planned.caloron("sprint", "go", "--plan-only")
    once = planned.root / "once"
    count = 2 if point == "tick.before_commit" else 1
    at = f"engine|{point}|{count}|{once}"
    killed = planned.caloron(
        "resume", "--edit", "--yes", CALORON_CRASH_AT=at, EDITOR=_editor(planned, _THIRD)
    )
    assert killed.code == -9, killed
    # The typed text is in the ledger or still in its file.
    edit = ("--edit",) if point == "edit.before_commit" else ()
    answer = planned.caloron("resume", "--yes", *edit, EDITOR="true")
    assert answer.code == 0, answer
    assert list(answer.statuses) == ["first", "third"]


def test_secrets_typed_into_a_plan_are_redacted(planned: Home) -> None:
    secret = "sk-ant-api03-" + "q7Zx" * 12
    planned.caloron("sprint", "go", "--plan-only")
    edit = f"plan[0]['agent_prompt'] = 'use {secret}'"
    planned.caloron("resume", "--edit", EDITOR=_editor(planned, edit), MY_API_KEY=secret)
    with planned.ledger() as ledger:
        (text,) = ledger.execute("SELECT group_concat(CAST(data AS TEXT)) FROM tasks").fetchone()
    assert "use" in text
    assert secret not in text


def _written(home: Home) -> tuple[list[str], list[str]]:
    """The tasks of `dag.json`, and the agents that there are files of."""
    workspace = home.project() / "workspace"
    dag = workspace / "dag.json"
    tasks = [t["id"] for t in json.loads(dag.read_text())] if dag.exists() else []
    return tasks, sorted(p.stem for p in workspace.glob("agents/*.agent"))


def test_a_plan_edited_before_its_first_answer_leaves_no_file_of_the_old_plan(
    planned: Home,
) -> None:
    terminal = Terminal(planned, "sprint", "go", EDITOR=_editor(planned, _THIRD))
    terminal.read_until(_ASKS)
    terminal.type("e\n")
    terminal.read_until(_ASKS, times=2)
    assert _written(planned) == ([], [])
    terminal.type("y\n")
    code, screen = terminal.end()
    assert code == 0, screen
    assert _written(planned) == (["first", "third"], ["first", "third"])


def test_the_errors_of_an_edit_stand_at_the_top_of_the_file_and_only_once(planned: Home) -> None:
    first = "text = text.replace('depends_on: []', 'depends_on: [ghost]')"
    second = "text = text.replace('[ghost]', '[]').replace('title: Task first', 'title: [')"
    third = "text = text.replace('title: [', 'title: Better')"
    terminal = Terminal(planned, "sprint", "go", EDITOR=_editor(planned, first, second, third))
    code, screen = terminal.end(
        (_ASKS, "e"), (_AGAIN, "e"), (_AGAIN, "?"), (_AGAIN, ""), (_ASKS, "y")
    )
    assert code == 0, screen
    again = (planned.root / "editor" / "opened-2.yml").read_text()
    assert again.startswith("#! ")
    assert "ghost" in again.partition("# The plan")[0]
    last = (planned.root / "editor" / "opened-1.yml").read_text()
    errors, _, typed = last.partition("# The plan")
    # The line number of a parser would be wrong now, so the line itself is quoted.
    assert "kind: change" in errors
    assert "ghost" not in last
    assert "title: [" in typed
    assert "changed: first (title)" in screen
    assert planned.issues()[0]["title"] == "Better"


def test_after_an_edit_the_changed_tasks_and_fields_are_named(planned: Home) -> None:
    edit = "plan[0]['acceptance'] = ['it is tested']; plan[0]['agent_prompt'] = 'x'; " + _THIRD
    terminal = Terminal(planned, "sprint", "go", EDITOR=_editor(planned, edit))
    code, screen = terminal.end((_ASKS, "e"), (_ASKS, "n"))
    assert code == 11, screen
    for line in ("removed: second", "added: third", "changed: first (prompt, acceptance)"):
        assert line in screen


def test_the_plan_can_be_viewed_with_its_prompts_and_criteria(home: Home) -> None:
    plan = json.dumps([task("first", agent_prompt="one\ntwo [/b]", acceptance=["it is tested"])])
    home.script(does("po", output=plan))
    code, screen = Terminal(home, "sprint", "go").end((_ASKS, "v"), (_ASKS, "n"))
    assert code == 11, screen
    assert "two [/b]" in screen
    assert "- it is tested" in screen


def test_tasks_that_are_not_selected_are_not_run_and_neither_are_their_dependents(
    home: Home,
) -> None:
    plan = [task("a"), task("b", "a"), task("c", "b"), task("d")]
    home.script(does("po", output=json.dumps(plan)), writes("a"), writes("d"))
    out = "Leave out which tasks?"
    dialogue = ((_ASKS, "s"), (out, "nope"), (_ASKS, "s"), (out, "a d"), (_ASKS, "s"), (out, "b"))
    code, screen = Terminal(home, "sprint", "go").end(*dialogue, (_ASKS, "y"))
    assert code == 0, screen
    assert "There is no task nope" in screen
    assert "No task would be left" in screen
    assert "depend on these: c" in screen
    assert home.files().keys() == {"a.txt", "d.txt"}
    assert len(home.issues()) == 2


def test_a_remark_sends_the_plan_back_to_the_planner(home: Home) -> None:
    once, more = [task("all", agent_prompt="old prompt")], [task("one"), task("two")]
    paid = {"cost_usd": 0.25, "tokens_in": 10, "tokens_out": 10}
    home.script(does("po", output=json.dumps(once), report=paid))
    remark, secret = "split it in two", "sk-ant-api03-" + "q7Zx" * 12
    terminal = Terminal(home, "sprint", "go", MY_API_KEY=secret)
    terminal.read_until(_ASKS)
    home.script(does("po", output=json.dumps(more), report=paid), writes("one"), writes("two"))
    terminal.type("r\n")
    terminal.read_until("What should be different?")
    terminal.type(f"{remark} {secret}\n")
    terminal.read_until(_ASKS, times=2)
    terminal.type("y\n")
    code, screen = terminal.end()
    assert code == 0, screen
    assert "$0.50 is spent for 2 plans" in screen
    first, second = home.prompts("po")
    assert remark not in first
    assert "old prompt" in second
    assert f"- {remark}" in second
    assert secret not in second
    assert home.files().keys() == {"one.txt", "two.txt"}


def test_a_crash_after_a_remark_leaves_the_remark_or_the_old_plan(planned: Home) -> None:
    planned.caloron("sprint", "--plan-only", "go")
    terminal = Terminal(
        planned, "resume", CALORON_CRASH_AT=f"engine|edit.after_commit|1|{planned.root / 'once'}"
    )
    terminal.read_until(_ASKS)
    terminal.type("r\n")
    terminal.read_until("What should be different?")
    terminal.type("smaller\n")
    code, screen = terminal.end()
    assert code == -9, screen
    answer = planned.caloron("resume", "--yes")
    assert answer.code == 0, answer
    assert planned.attempts("po") == 2
    assert "smaller" in planned.prompts("po")[-1]
