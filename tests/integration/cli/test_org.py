"""`caloron org`: the conventions of the house, made, shown and checked."""

from __future__ import annotations

from pathlib import Path

from caloron.cli.app import main
from tests.support.git import new_repository


def test_the_example_is_written_once_and_is_understood(run, home: Path) -> None:
    assert run("org", "init", "--dry-run")[0] == 9
    assert not (home / "organisation.yml").exists()
    told = run.data("org", "init")
    assert told["path"] == str(home / "organisation.yml")
    assert run("org", "validate")[0] == 0
    told = run.data("org", "show")
    assert told["organisation"] == "Example Ltd"
    assert told["rendered"].startswith("## Organisation Conventions")
    (home / "organisation.yml").write_text("organisation: Mine\n")
    assert run("org", "init")[0] == 5
    assert (home / "organisation.yml").read_text() == "organisation: Mine\n"


def test_nothing_to_check_is_not_found_and_nothing_to_show_is_empty(run) -> None:
    assert run("org", "validate")[0] == 3
    told = run.data("org", "show")
    assert told["is_empty"]


def test_warnings_exit_with_1_and_no_yaml_with_2(run, home: Path, capsys) -> None:
    home.mkdir()
    (home / "organisation.yml").write_text("dependencies: [left-pad]\n")
    code, told = run("org", "validate")
    assert code == 1
    assert told["data"]["valid"] is False
    assert "dependencies" in told["data"]["warnings"][0]
    assert main(["org", "validate"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "warning: " in said.err
    (home / "organisation.yml").write_text("a: [\n")
    assert run("org", "validate")[0] == 2
    assert run("org", "show")[0] == 2


def test_a_projects_own_file_is_merged_in_from_its_main_or_from_a_directory(
    run, home: Path, tmp_path: Path
) -> None:
    home.mkdir()
    (home / "organisation.yml").write_text("organisation: House\nlicense: {header: A}\n")
    repo = new_repository(tmp_path / "repo", {"caloron.yml": "license: {header: B}\n"})
    assert run("init", "shop", "--framework", "stub", "--repo", str(repo))[0] == 0
    (repo / "caloron.yml").write_text("license: {header: C}\n")
    for place, header in ((None, "A"), ("shop", "B"), (str(repo), "C")):
        options = ("--project", place) if place else ()
        told = run.data("org", "show", *options)
        assert f"header: {header}" in told["rendered"]
        assert "House" in told["rendered"]
    assert run("org", "show", "--project", "nowhere")[0] == 3
    assert run("org", "show", "--project", "./nowhere")[0] == 3
