"""`caloron config` and the file behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from caloron.cli.app import main
from caloron.errors import NotFound, UsageError
from caloron.ledger import locate
from caloron.ledger.projects import list_projects, load_project, save_config, set_active
from tests.support.git import new_repository


@pytest.fixture
def file(run, home):
    run("init", "shop", "--framework", "stub")
    return home / "projects" / "shop" / "config.yml"


@pytest.mark.parametrize(
    ("key", "typed", "value"),
    [
        ("verify", "python3 -m unittest # all: of 'them'", "python3 -m unittest # all: of 'them'"),
        ("verify", "--strange", "--strange"),
        ("verify", "true", "true"),
        ("git_name", "Zoë 木", "Zoë 木"),
        ("parallel", "8", 8),
        ("timeout_s", "90", 90.0),
        ("command", "agent --file '{prompt file}' -q", ["agent", "--file", "{prompt file}", "-q"]),
        ("command", "", []),
        ("framework", "command", "command"),
        ("network", "none", "none"),
        ("network_roles", "setup=model verify=none", ["setup=model", "verify=none"]),
    ],
)
def test_get_returns_the_value_of_set(run, file, key, typed, value):
    assert run("config", "set", key, typed)[0] == 0
    _, reply = run("config", "get", key)
    assert reply["data"] == {"key": key, "value": value, "detected": ""}


@pytest.mark.parametrize(
    ("key", "typed", "expected"),
    [
        ("parallel", "0", "from 1 to 256"),
        ("parallel", "many", "from 1 to 256"),
        ("parallel", "1.5", "from 1 to 256"),
        ("timeout_s", "nan", "number of seconds"),
        ("timeout_s", "inf", "number of seconds"),
        ("lease_s", "-1", "number of seconds"),
        ("verify", "one\ntwo", "one line"),
        ("command", "agent 'unclosed", "list of words"),
        ("network", "some", "one of full, none, model and public"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_was_expected(
    run, file, key, typed, expected
):
    before = file.read_bytes()
    run.refused(2, (f"setting {key} is", expected), "config", "set", key, typed)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [("zork", "1", 3), ("name", "other", 2), ("framework", "zork", 2), ("forge", "zork", 2)],
)
def test_an_impossible_setting_is_refused(run, file, key, value, code):
    assert run("config", "set", key, value)[0] == code


def test_the_list_holds_every_setting(run, file):
    settings = run.data("config", "list")["settings"]
    assert settings["parallel"] == 4
    assert settings["stall_threshold_m"] == 20.0
    assert settings["max_fix_rounds"] == 3


def test_unknown_keys_survive_a_change(run, file):
    file.write_text(file.read_text() + "colour: [red, {deep: true}]\nsince: 2026-04-24\n")
    run("config", "set", "parallel", "2")
    text = file.read_text()
    assert "colour:\n- red\n- deep: true\n" in text
    assert "since: " in text
    assert "2026-04-24" in text
    assert load_project("shop").config.parallel == 2


def test_a_config_of_the_predecessor_loads_unchanged(home):
    folder = home / "projects" / "old"
    folder.mkdir(parents=True)
    (folder / "config.yml").write_text(
        "name: old\nrepo: me/old\nbackend: noether\nframework: claude-code\n"
        "work_dir: /tmp/old/workspace\ncreated_at: 2026-04-24T10:00:00+00:00\n"
    )
    project = load_project("old")
    assert project.config.framework == "claude-code"
    assert project.config.created_at == "2026-04-24T10:00:00+00:00"
    assert str(project.workspace) == "/tmp/old/workspace"
    assert project.config.parallel == 4


def test_malformed_yaml_is_named_with_its_line_and_left_alone(run, file):
    broken = "name: shop\nverify: [unclosed\nparallel: 4\n"
    file.write_text(broken)
    for arguments in (("config", "get", "verify"), ("config", "set", "parallel", "2")):
        run.refused(2, f"{file}, line 3", *arguments)
    assert file.read_text() == broken


@pytest.mark.parametrize(
    "text", ["parallel: many\n", "parallel: true\n", "verify: [a]\n", "command: agent\n", "- a\n"]
)
def test_a_wrong_type_in_the_file_is_refused_by_name(run, file, text):
    file.write_text(text)
    setting = f"setting {text.partition(':')[0]} is" if ":" in text else ""
    run.refused(2, (str(file), setting), "config", "list")


def test_an_empty_value_in_the_file_is_the_default(run, file):
    file.write_text("verify:\nparallel:\n")
    assert run.data("config", "get", "parallel")["value"] == 4


def test_without_a_project_the_hint_names_the_command_that_creates_it(run):
    run.refused(3, "caloron init", "config", "list")


def test_an_unknown_project_is_refused_and_its_name_cannot_leave_the_home(run, file):
    run.refused(3, "known projects: shop", "config", "list", "--project", "zork")
    for name in ("..", "../shop", "/etc"):
        run.refused(2, repr(name), "config", "list", "--project", name)


def test_the_active_project_is_the_last_created_or_chosen_project(run, file):
    run("init", "garden", "--framework", "stub")
    assert load_project().name == "garden"
    set_active("shop")
    assert load_project().name == "shop"
    assert [p.name for p in list_projects()] == ["garden", "shop"]
    with pytest.raises(NotFound):
        set_active("zork")


def test_a_damaged_active_file_is_named_in_the_error(run, file, home):
    (home / "active").write_text("../../etc\n")
    with pytest.raises(UsageError, match="not a project name"):
        load_project()


def test_a_value_that_no_setting_allows_is_never_saved(run, file):
    before = file.read_bytes()
    project = load_project("shop")
    project.config.parallel = 0
    with pytest.raises(UsageError):
        save_config(project)
    assert file.read_bytes() == before


def test_the_text_settings_are_read_without_a_yaml_library(run, file):
    run("config", "set", "verify", "python3 -m unittest -q")
    plain = locate.plain_settings(file)
    assert plain is not None
    assert plain["framework"] == "stub"
    assert plain["repo"] == ""
    assert plain["verify"] == "python3 -m unittest -q"


@pytest.mark.parametrize(
    "line", ['verify: "a\\x41b"', "verify: a # b", "verify: >-\n  a\n  b", "verify: *a"]
)
def test_a_config_with_other_yaml_uses_the_yaml_library(file, line):
    file.write_text(f"name: shop\n{line}\n")
    assert locate.plain_settings(file) is None


@pytest.mark.parametrize("line", ['verify: "a\\tb\\u00e9"', "verify: 'it''s'", "verify: ''"])
def test_quoted_settings_are_read_as_by_the_yaml_library(file, line):
    file.write_text(f"name: shop\n{line}\n")
    assert locate.plain_settings(file) == yaml.safe_load(file.read_text())


def test_the_text_of_get_is_the_bare_value_and_that_of_set_names_the_project(run, file):
    assert run.text("config", "get", "framework") == "stub\n"
    assert run.data("config", "set", "parallel", "2")["project"] == "shop"
    assert "(project shop)" in run.text("config", "set", "parallel", "3")


def test_a_relative_path_is_stored_absolute(run, file, tmp_path):
    run("config", "set", "stub_fixture", "fixture.json")
    assert load_project("shop").config.stub_fixture == str(tmp_path / "fixture.json")
    run("config", "set", "stub_fixture", "")
    assert load_project("shop").config.stub_fixture == ""


TOKEN = "ghp_" + "aB3dE6gH9" * 4
HEX = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize(
    ("key", "typed", "secret"),
    [
        ("token_env", TOKEN, TOKEN),
        ("token_env", HEX, HEX),
        ("token_env", "short-secret", "short-secret"),
        ("token_file", TOKEN, TOKEN),
        ("reviewer_token_env", TOKEN, TOKEN),
        ("webhook_secret_env", "pass word", "pass word"),
        ("host", "https://ada:hunter2@git.example.org", "hunter2"),
        ("host", f"https://{TOKEN}@git.example.org", TOKEN),
        ("host", TOKEN, TOKEN),
        ("git_url", "https://ada:hunter2@git.example.org/a/b.git", "hunter2"),
    ],
)
def test_a_secret_in_place_of_a_name_is_refused_and_never_printed(run, file, key, typed, secret):
    before = file.read_bytes()
    code, reply = run("config", "set", key, typed)
    assert code == 2
    assert secret not in str(reply)
    assert key in reply["error"]["message"]
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "options",
    [
        ("--token-env", TOKEN),
        ("--token-file", TOKEN),
        ("--token-file", "short-secret"),
        ("--token-env", "T", "--host", f"https://me:{TOKEN}@git.example.org"),
    ],
)
def test_init_never_prints_a_secret(run, options):
    arguments = ("init", "shop", "--forge", "gitea", "--repo", "ada/shop")
    host = () if "--host" in options else ("--host", "https://git.example.org")
    code, reply = run(*arguments, *host, *options)
    assert code in (2, 3)
    assert TOKEN not in str(reply)
    assert "short-secret" not in str(reply)


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        ("127.0.0.1:9443", 0),
        ("[::1]:65535", 0),
        ("127.0.0.1:65536", 2),
        ("127.0.0.1:99999", 2),
        ("0.0.0.0:9443", 8),
        ("git.example.org:9443", 8),
    ],
)
def test_the_address_for_webhooks_is_checked_when_it_is_set(run, file, typed, code):
    assert run("config", "set", "webhook", typed)[0] == code


def test_webhooks_from_the_network_need_a_secret(run, file):
    assert run("config", "set", "webhook_secret_env", "HOOK")[0] == 0
    assert run("config", "set", "webhook", "0.0.0.0:9443")[0] == 0
    run.refused(8, "anybody in the network", "config", "set", "webhook_secret_env", "")


@pytest.mark.parametrize(
    ("key", "value"),
    [("repo", "ada/other"), ("host", "https://other.example.org"), ("forge", "github")],
)
def test_a_project_with_sprints_keeps_its_repository_and_forge(run, file, key, value):
    project = load_project("shop")
    project.config.forge, project.config.repo = "gitea", "ada/shop"
    project.config.host = "https://git.example.org"
    save_config(project)
    project.ledger.touch()
    before = file.read_bytes()
    reasons = ("project shop has sprints on its gitea forge", "caloron init NAME --forge")
    run.refused(2, reasons, "config", "set", key, value)
    assert file.read_bytes() == before
    assert run("config", "set", key, str(getattr(project.config, key)))[0] == 0


def test_before_its_first_sprint_a_project_may_get_another_repository(run, file):
    project = load_project("shop")
    project.config.forge, project.config.repo = "gitea", "ada/shop"
    save_config(project)
    assert run("config", "set", "repo", "ada/other")[0] == 0


def test_a_detected_command_is_shown_if_no_setting_replaces_it(run, home, tmp_path, capsys):
    (tmp_path / "src" / "tests").mkdir(parents=True)
    files = {"tests/test_a.py": "import unittest\n", "Makefile": "test:\n\ttrue\n"}
    repository = new_repository(tmp_path / "src", files)
    assert run("init", "detected", "--framework", "stub", "--repo", str(repository))[0] == 0
    detected = run.data("config", "list", "-p", "detected")["detected"]["verify"]
    assert detected
    for command in (["config", "get", "verify"], ["config", "list"]):
        assert f"{detected}  (detected)" in run.text(*command, "-p", "detected")
    assert run("config", "set", "verify", "make check", "-p", "detected")[0] == 0
    assert main(["config", "get", "verify", "-p", "detected"]) == 0
    assert capsys.readouterr().out.strip() == "make check"


def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let $EDITOR be a script that edits the file "$1"."""
    program = tmp_path / "editor"
    program.write_text(f"#!/bin/sh\nsleep 0.01\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(program))
    monkeypatch.delenv("VISUAL", raising=False)


def test_settings_are_edited_in_the_users_editor(run, file, tmp_path, monkeypatch) -> None:
    editor(tmp_path, monkeypatch, 'sed -i "s/^parallel: .*/parallel: 7/; /^pool/d" "$1"')
    assert run("config", "set", "pool", "5")[0] == 0
    assert run.data("config", "edit")["changed"] == ["parallel", "pool"]
    settings = run.data("config", "list")["settings"]
    assert (settings["parallel"], settings["pool"]) == (7, 2)


@pytest.mark.parametrize(
    ("line", "word"),
    [("parallel: many", "parallel"), ("verfy: x", "verify"), ("name: other", "name"), ("a: [", "")],
)
def test_a_bad_edit_changes_nothing_and_is_kept(run, file, tmp_path, monkeypatch, line, word):
    before = file.read_bytes()
    editor(tmp_path, monkeypatch, f'echo "{line}" >> "$1"; echo "pool: 9" >> "$1"')
    code, answer = run("config", "edit")
    assert code in (2, 3)
    assert word in answer["error"]["message"] + answer["error"]["hint"]
    assert file.read_bytes() == before
    assert line in (file.parent / "config.edit.yml").read_text("utf-8")
    # The next edit begins with the kept text.
    editor(tmp_path, monkeypatch, f'grep -vF "{line}" "$1" > "$1.new"; mv "$1.new" "$1"')
    assert run.data("config", "edit")["changed"] == ["pool"]
    assert not (file.parent / "config.edit.yml").exists()


def test_a_setting_gets_its_default_again(run, file) -> None:
    assert run("config", "set", "parallel", "9")[0] == 0
    assert run.data("config", "unset", "parallel")["value"] == 4
    assert run.data("config", "get", "parallel")["value"] == 4
    assert run("config", "unset", "name")[0] == 2
    assert run("config", "unset", "paralel")[1]["error"]["hint"] == "did you mean parallel?"


def test_every_setting_has_a_description(run, file) -> None:
    answer = run.data("config", "list")
    assert list(answer["descriptions"]) == list(answer["settings"])


def test_a_setting_by_its_earlier_name_is_accepted_and_stored_by_its_present_one(run, file):
    text = file.read_text("utf-8")
    file.write_text(text.replace("planner_timeout_s: 900.0", "po_timeout_s: 60.0"), "utf-8")
    assert run.data("config", "get", "po_timeout_s") == {
        "key": "planner_timeout_s", "value": 60.0, "detected": ""
    }  # fmt: skip
    assert run("config", "set", "parallel", "2")[0] == 0
    assert "po_timeout_s" not in file.read_text("utf-8")
    assert run.data("config", "get", "planner_timeout_s")["value"] == 60.0
