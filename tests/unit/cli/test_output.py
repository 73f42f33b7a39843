"""The two forms of every answer: text for people, one envelope for machines."""

from __future__ import annotations

import json

import pytest

from caloron import __version__
from caloron.cli import output


def test_a_success_in_json_is_one_envelope(capsys):
    output.begin(["status", "--output", "json"])
    output.success("status", {"project": "shop"}, "Project shop")
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is True
    assert said["command"] == "status"
    assert said["data"] == {"project": "shop"}
    assert said["meta"]["version"] == __version__
    assert isinstance(said["meta"]["duration_ms"], int)


def test_a_success_in_text_is_only_the_text(capsys):
    output.begin(["status"])
    output.success("status", {"project": "shop"}, "Project shop")
    assert capsys.readouterr().out == "Project shop\n"


def test_a_failure_in_json_goes_to_standard_output_and_may_carry_data(capsys):
    output.begin(["sprint", "-o", "json"])
    output.failure("sprint", "STOPPED", "it was stopped", hint="resume it", data={"tasks": []})
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert said["ok"] is False
    assert said["data"] == {"tasks": []}
    assert said["error"] == {"code": "STOPPED", "message": "it was stopped", "hint": "resume it"}
    assert captured.err == ""


def test_a_failure_in_text_goes_to_standard_error_with_its_hint(capsys):
    output.begin([])
    output.failure("sprint", "STOPPED", "it was stopped", hint="resume it")
    captured = capsys.readouterr()
    assert captured.err == "error: it was stopped\nhint: resume it\n"
    assert captured.out == ""


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
def test_the_form_is_known_before_the_command_line_is_understood(arguments, expected):
    output.begin(arguments)
    assert output.wants_json() is expected


def test_text_of_others_cannot_steer_the_terminal():
    shown = output.printable("a\x1b[2Jb\tc\nd\u202e\x9b")
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    assert "\u202e" not in shown
    assert shown.startswith("a")
    assert "b\tc\nd" in shown
