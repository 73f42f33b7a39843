"""The two forms of every answer: text for people, one envelope for machines."""

from __future__ import annotations

import json
import re

import pytest

from caloron import __version__
from caloron.cli import output
from caloron.cli.format import printable, size


def test_a_success_is_one_envelope_in_json_and_only_its_text_in_text(capsys):
    output.start(["status", "--output", "json"])
    output.success("status", {"project": "shop"}, "Project shop")
    envelope = json.loads(capsys.readouterr().out)
    assert (envelope["ok"], envelope["command"]) == (True, "status")
    assert envelope["data"] == {"project": "shop"}
    assert envelope["meta"]["version"] == __version__
    assert isinstance(envelope["meta"]["duration_ms"], int)
    output.start(["status"])
    output.success("status", {"project": "shop"}, "Project shop")
    assert capsys.readouterr().out == "Project shop\n"


def test_text_is_made_only_if_it_is_printed(capsys):
    output.start(["status", "-ojson"])
    output.success("status", {}, lambda: pytest.fail("the text was made"))
    output.start(["status"])
    output.success("status", {}, lambda: ["first\x1b", "second"])
    assert capsys.readouterr().out.endswith("first\ufffd\nsecond\n")


def test_a_failure_is_an_envelope_in_json_and_is_written_to_standard_error_in_text(capsys):
    output.start(["sprint", "-o", "json"])
    output.failure("sprint", "STOPPED", "it was stopped", hint="resume it", data={"tasks": []})
    captured = capsys.readouterr()
    envelope = json.loads(captured.out)
    assert (envelope["ok"], envelope["data"], captured.err) == (False, {"tasks": []}, "")
    error = {"code": "STOPPED", "message": "it was stopped", "hint": "resume it"}
    assert envelope["error"] == error
    output.start([])
    output.failure("sprint", "STOPPED", "it was stopped", hint="resume it")
    assert capsys.readouterr() == ("", "error: it was stopped\nhint: resume it\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["status", "--output", "json"], True),
        (["status", "--output=json"], True),
        (["status", "-o", "json"], True),
        (["status", "-ojson"], True),
        (["status", "-o", "text"], False),
        (["status", "-o", "json", "-o", "text"], False),
        (["issue", "comment", "1", "--", "-o", "json"], False),
        (["json"], False),
        ([], False),
    ],
)
def test_the_output_form_is_known_before_the_command_line_is_parsed(arguments, expected):
    output.start(arguments)
    assert output.wants_json() is expected


def test_foreign_text_cannot_control_the_terminal():
    assert printable("a\x1b[2Jb\tc\nd\u202e\x9b") == "a\ufffd[2Jb\tc\nd\ufffd\ufffd"


def test_the_form_table_is_the_text(capsys):
    output.start(["history", "--output", "table"])
    output.success("history", {"rows": [{"a": 1}]}, "as text")
    assert capsys.readouterr().out == "as text\n"


def test_a_dry_run_lists_the_planned_changes_and_exits_with_9(capsys):
    actions = [{"action": "delete", "target": "a\x1b", "bytes": 1_234_567}]
    output.start([])
    assert output.dry_run("clean", actions) == 9
    assert capsys.readouterr().out == "would delete a\ufffd (1.2 MB)\n"
    assert output.dry_run("clean", []) == 9
    assert capsys.readouterr().out == "would change nothing\n"
    output.start(["-ojson"])
    assert output.dry_run("clean", actions) == 9
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is answer["dry_run"] is True
    assert answer["planned_actions"] == actions


def test_a_message_about_a_megabyte_is_short_and_cannot_control_the_terminal(capsys):
    output.start([])
    output.failure("why", "NOT_FOUND", f"no task {'x' * 1_000_000}\x1b[2J")
    reply = capsys.readouterr().err
    assert len(reply) < 5000
    assert "\x1b" not in reply


@pytest.mark.parametrize(
    ("count", "reply"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (25_000, "25 kB"), (3_200_000_000, "3.2 GB")],
)
def test_sizes_are_readable_for_people(count, reply):
    assert size(count) == reply


@pytest.mark.parametrize(
    ("color", "variables", "expected"),
    [
        ("auto", {}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {}, False),
    ],
)
def test_states_are_colored_only_where_that_is_wanted(
    capsys, monkeypatch, color, variables, expected
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    output.start(["status"])
    output.set_screen(color=color)
    output.success("status", {}, "a  Done  Done with it\nb  Escalated")
    shown = capsys.readouterr().out
    assert ("\x1b[32mDone\x1b[0m" in shown) is expected
    assert ("\x1b[31mEscalated" in shown) is expected
    # Only a cell that is a state is colored, and the text stays the same.
    assert re.sub("\x1b\\[[0-9]+m", "", shown) == "a  Done  Done with it\nb  Escalated\n"
    assert shown.count("Done\x1b") == int(expected)
