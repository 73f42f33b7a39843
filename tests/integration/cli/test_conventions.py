"""`caloron conventions`: creates, shows and checks the conventions of the organisation."""

from __future__ import annotations

from pathlib import Path

from caloron.cli.app import main
from tests.support.git import new_repository


def test_the_example_is_written_once_and_is_valid(run, home: Path) -> None:
    assert run("conventions", "init", "--dry-run")[0] == 9
    assert not (home / "organisation.yml").exists()
    answer = run.data("conventions", "init")
    assert answer["path"] == str(home / "organisation.yml")
    assert run("conventions", "validate")[0] == 0
    answer = run.data("conventions", "show")
    assert answer["organisation"] == "Example Ltd"
    assert answer["rendered"].startswith("## Organisation Conventions")
    (home / "organisation.yml").write_text("organisation: Mine\n")
    assert run("conventions", "init")[0] == 5
    assert (home / "organisation.yml").read_text() == "organisation: Mine\n"


def test_without_a_file_check_exits_with_not_found_and_show_is_empty(run) -> None:
    assert run("conventions", "validate")[0] == 3
    answer = run.data("conventions", "show")
    assert answer["is_empty"]


def test_warnings_exit_with_1_and_no_yaml_with_2(run, home: Path, capsys) -> None:
    home.mkdir()
    (home / "organisation.yml").write_text("dependencies: [left-pad]\n")
    code, answer = run("conventions", "validate")
    assert code == 1
    assert answer["data"]["valid"] is False
    assert "dependencies" in answer["data"]["warnings"][0]
    assert main(["conventions", "validate"]) == 1
    reply = capsys.readouterr()
    assert reply.out == ""
    assert "warning: " in reply.err
    (home / "organisation.yml").write_text("a: [\n")
    assert run("conventions", "validate")[0] == 2
    assert run("conventions", "show")[0] == 2


def test_the_file_of_a_project_is_read_from_its_main_or_from_a_directory(
    run, home: Path, tmp_path: Path
) -> None:
    home.mkdir()
    (home / "organisation.yml").write_text("organisation: House\nlicense: {header: A}\n")
    repo = new_repository(tmp_path / "repo", {"caloron.yml": "license: {header: B}\n"})
    assert run("init", "shop", "--framework", "stub", "--repo", str(repo))[0] == 0
    (repo / "caloron.yml").write_text("license: {header: C}\n")
    for project, header in ((None, "A"), ("shop", "B"), (str(repo), "C")):
        options = ("--project", project) if project else ()
        answer = run.data("conventions", "show", *options)
        assert f"header: {header}" in answer["rendered"]
        assert "House" in answer["rendered"]
    assert run("conventions", "show", "--project", "nowhere")[0] == 3
    assert run("conventions", "show", "--project", "./nowhere")[0] == 3
