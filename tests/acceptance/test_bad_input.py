"""Invalid input is refused before anything happens; the error names it and says what to do."""

from __future__ import annotations

import shlex

from tests.support.home import Home, does, task, writes


def _refused(home: Home, *named: str) -> None:
    """Check that the sprint is refused as bad input with these words, and nothing begins."""
    plan = home.plan(task("a"))
    answer = home.caloron("sprint", "go", "--plan", str(plan), "--yes")
    assert answer.code == 2, answer
    assert answer.error["code"] == "INVALID_ARGS"
    for words in named:
        assert words in answer.error["message"] + answer.error.get("hint", ""), answer
    assert not (home.path / "kv").exists()


def test_a_malformed_fixture_is_refused_naming_the_field(home: Home) -> None:
    malformed = {
        "{nope": "is not JSON",
        "[]": "object",
        '{"responses": {}}': "responses",
        '{"responses": [{"outptu": "x"}]}': "outptu",
        '{"responses": [{"when": {"rol": "po"}}]}': "rol",
        '{"responses": [{"files": {"../x": ""}}]}': "../x",
        '{"responses": [{"exit_code": "one"}]}': "exit_code",
    }
    for content, named in malformed.items():
        home.fixture.write_text(content)
        _refused(home, str(home.fixture), named)
    assert home.issues() == []


def test_a_missing_fixture_is_refused_with_the_command_that_sets_it(home: Home) -> None:
    _refused(home, str(home.fixture))
    del home.environment["CALORON_STUB_FIXTURE"]
    _refused(home, "CALORON_STUB_FIXTURE", "stub_fixture")


def test_a_fixture_can_come_from_the_configuration(home: Home) -> None:
    home.script(writes("a"))
    del home.environment["CALORON_STUB_FIXTURE"]
    assert home.caloron("config", "set", "stub_fixture", "fixture.json").code == 0
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer


def test_a_malformed_configuration_is_refused_naming_the_setting(home: Home) -> None:
    malformed = {
        "parallel: many": "parallel",
        "parallel: 0": "parallel",
        "lease_s: -1": "lease_s",
        "verify: [a, b]": "verify",
        "framework: abacus": "abacus",
        "command: {a: b": "config.yml",
        "framework: command": "command",
    }
    home.script(writes("a"))
    file = home.project() / "config.yml"
    good = file.read_text().splitlines()
    for line, named in malformed.items():
        replaced = ("command", line.partition(":")[0])
        bad = "\n".join([*(old for old in good if not old.startswith(replaced)), line, ""])
        file.write_text(bad)
        _refused(home, named)
        assert file.read_text() == bad
    file.write_text("\n".join(good))
    assert home.issues() == []


def test_without_a_project_every_command_says_how_to_create_a_project(bare_home: Home) -> None:
    for command in (["sprint", "go"], ["resume"], ["stop"], ["why"], ["issue", "list"]):
        answer = bare_home.caloron(*command)
        assert answer.code == 3, answer
        assert "caloron init" in answer.error["hint"]
    refused = bare_home.caloron("sprint", "go", "--project", "../../etc")
    assert refused.code == 2


def test_a_name_that_looks_like_an_option_is_refused_by_every_command(home: Home) -> None:
    made = home.caloron("init", "--output", "json", "--", "-x", json=False)
    assert made.code == 2, made
    assert "no '-'" in made.error["hint"]
    answer = home.caloron("sprint", "go", "--plan", str(home.plan(task("-rf"))), "--yes")
    assert answer.code == 2, answer
    assert "'-rf'" in answer.error["message"]


def test_a_project_with_an_invalid_name_is_listed_with_a_remedy(home: Home) -> None:
    folder = home.path / "projects" / "-x"
    folder.mkdir()
    (folder / "config.yml").write_text("name: -x\n")
    (home.path / "active").write_text("-x\n")
    rows = {row["name"]: row["problem"] for row in home.caloron("project", "list").data["projects"]}
    assert "rename its folder" in rows["-x"]
    assert rows["demo"] == ""
    assert home.caloron("status").code == 2
    assert home.caloron("status", "--project", "demo").code == 0


def test_the_hint_for_a_goal_that_looks_like_an_option_works(home: Home) -> None:
    home.script(does("po", output="no plan"))
    begun = home.caloron("sprint", "--yes", "--output", "json", "--", "--help me", json=False)
    assert begun.code != 0
    for options in ((), ("--project", "demo")):
        (need,) = home.caloron("inbox", *options).data["items"]
        again = shlex.split(need["commands"][-1])
        assert again[:2] == ["caloron", "sprint"]
        tried = home.caloron("sprint", "--dry-run", "--output", "json", *again[2:], json=False)
        assert tried.code == 9, tried
        assert tried.json["planned_actions"][1]["target"] == "--help me"


def test_an_empty_sprint_name_does_not_mean_the_last_sprint(home: Home) -> None:
    for name in ("apply", "resume", "show", "report", "discard"):
        for empty in ("", " "):
            answer = home.caloron(name, empty)
            assert answer.code == 2, answer
            assert "names no sprint" in answer.error["message"]
    for command in (["logs", "a"], ["trace", "a"], ["retro"]):
        assert home.caloron(*command, "--sprint", "").code == 2
