"""The organisation's conventions: merged key by key, rendered in full, never a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from caloron.agents.conventions import EXAMPLE, ORGANISATION_FILE, Conventions, load, render
from caloron.errors import UsageError


def conventions(home: Path, organisation: str = "", project: str | None = None) -> Conventions:
    (home / ORGANISATION_FILE).write_text(organisation, "utf-8")
    return load(home, project)


@pytest.fixture(autouse=True)
def no_conventions_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALORON_CONVENTIONS", raising=False)


def test_without_files_there_are_no_conventions_and_no_text(tmp_path: Path) -> None:
    loaded = load(tmp_path, None)
    assert loaded.is_empty
    assert render(loaded) == ""
    assert render(conventions(tmp_path, "# only a comment\n", "")) == ""


def test_the_example_is_rendered_completely_and_without_a_warning(tmp_path: Path) -> None:
    loaded = conventions(tmp_path, EXAMPLE)
    assert loaded.warnings == ()
    rendered = render(loaded)
    assert rendered.startswith("## Organisation Conventions\n")
    headings = [line for line in rendered.splitlines() if line.startswith("### ")]
    assert headings == [
        "### Package naming",
        "### Imports",
        "### Repository layout",
        "### License",
        "### Dependencies",
        "### Commit message",
        "### Branch naming",
    ]
    example = yaml.safe_load(EXAMPLE)
    assert example.pop("organisation") in rendered
    for section in example.values():
        for key, value in section.items():
            assert f"- {key}: " in rendered
            assert (value[0] if isinstance(value, list) else value) in rendered


def test_the_project_overrides_single_keys_and_replaces_whole_lists(tmp_path: Path) -> None:
    loaded = conventions(
        tmp_path,
        EXAMPLE + "team: {chat: here, rooms: {small: one, large: two}}\n",
        "imports: {style: relative}\ndependencies: {disallow: [moment]}\n"
        "team: {rooms: {small: three}}\n",
    )
    assert loaded.sections["imports"] == {"namespace": "example", "style": "relative"}
    assert loaded.sections["dependencies"] == {"disallow": ["moment"]}
    assert loaded.extra["team"] == {"chat": "here", "rooms": {"small": "three", "large": "two"}}
    assert loaded.sources == ("organisation.yml", "caloron.yml")
    # An empty list allows what the organisation disallows.
    assert "left-pad" not in render(conventions(tmp_path, EXAMPLE, "dependencies: {disallow: []}"))


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        ("dependencies: [GPL]", "`dependencies`", "expected a mapping"),
        ("dependencies: {disallow: {a: 1}}", "`dependencies.disallow`", "expected a list"),
        ("dependencies: {disallow: GPL}", "`dependencies.disallow`", "expected a list"),
        ("license: {header: [a]}", "`license.header`", "expected text"),
        ("organisation: [a, b]", "`organisation`", "expected text"),
        ("packge_naming: {style: x}", "`packge_naming`", "not a known section"),
        ("imports: {styel: x}", "`imports.styel`", "not known"),
    ],
)
def test_a_wrong_part_is_a_warning_that_names_file_field_and_expectation(
    tmp_path: Path, text: str, field: str, expected: str
) -> None:
    (warning,) = load(tmp_path, f"{text}\ncommit_message: {{format: kept}}\n").warnings
    assert warning.startswith("caloron.yml: ")
    assert field in warning
    assert expected in warning


def test_unknown_keys_are_rendered_and_invalid_values_are_skipped(tmp_path: Path) -> None:
    text = (
        "license: [GPL]\nimports: {styel: x}\n"
        "team: {chat: '#dev', people: [ann, bob], since: 2020-01-02}\n"
    )
    rendered = render(load(tmp_path, text))
    other = rendered.partition("### Other\n")[2]
    assert "chat: #dev" in other
    assert "`ann`, `bob`" in other
    assert "2020-01-02" in other
    assert "- styel: x" in rendered
    assert "GPL" not in rendered


def test_a_licence_header_of_several_lines_keeps_its_lines(tmp_path: Path) -> None:
    rendered = render(load(tmp_path, "license:\n  header: |\n    Copyright X\n    All rights\n"))
    assert "      Copyright X\n      All rights" in rendered


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("imports:\n  style: [unclosed\n", "line 3"),
        ("a: 1\nb: 'open\n", "line"),
        ("- a list\n", "line 1"),
        ("just words", "line 1"),
        ("a: &x [1]\nb: *x\n", "line 2"),
        ("a: \x00\n", "caloron.yml"),
        ("a: !!timestamp x\n", "caloron.yml"),
        ('a: "\\UFFFFFFFF"\n', "caloron.yml"),
        ('a: "\\U00110000"\n', "caloron.yml"),
        ("[" * 5000, "caloron.yml"),
        ("a: " + "x" * 100_000, "caloron.yml"),
    ],
)
def test_a_file_that_is_not_yaml_is_refused_with_its_name_and_line(
    tmp_path: Path, text: str, line: str
) -> None:
    with pytest.raises(UsageError) as refused:
        load(tmp_path, text)
    assert str(refused.value).startswith("caloron.yml")
    assert line in str(refused.value)
    assert refused.value.hint


def test_an_unreadable_organisation_file_is_refused_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / ORGANISATION_FILE
    file.write_bytes(b"organisation: \xff\n")
    with pytest.raises(UsageError, match=ORGANISATION_FILE):
        load(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(UsageError, match=ORGANISATION_FILE):
        load(tmp_path)


def test_conventions_from_the_environment_follow_those_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALORON_CONVENTIONS", "### House\n\n- no tabs\n")
    rendered = render(conventions(tmp_path, EXAMPLE))
    assert rendered.endswith("- format: agent/<task>\n\n### House\n\n- no tabs")
    alone = load(tmp_path / "nowhere")
    assert not alone.is_empty
    assert "no tabs" in render(alone)
    assert alone.sources == ("CALORON_CONVENTIONS",)


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner)
)
_SECTION = st.sampled_from(
    ["organisation", "imports", "dependencies", "license", "repository_layout", "x", "other"]
)


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(_SECTION, _VALUES), st.dictionaries(_SECTION, _VALUES))
def test_any_yaml_mapping_can_be_loaded_and_rendered(one: dict, two: dict) -> None:
    home = Path("/nonexistent")
    first = load(home, yaml.safe_dump(one, allow_unicode=True))
    second = load(home, yaml.safe_dump(two))
    assert isinstance(render(first) + render(second), str)
    assert first.is_empty == (render(first) == "")


@settings(deadline=None)
@given(st.text())
def test_any_text_is_accepted_or_refused_with_a_message(text: str) -> None:
    try:
        outcome = render(load(Path("/nonexistent"), text))
    except UsageError as error:
        outcome = f"## {error}"
    assert outcome == "" or outcome.startswith(("## Organisation", "## caloron.yml"))


def test_conventions_of_the_repository_precede_those_of_the_work_dir(tmp_path: Path) -> None:
    (tmp_path / "organisation.yml").write_text("organisation: Acme\nlicense: {header: org}\n")
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    (work_dir / "caloron.yml").write_text("license: {header: work}\nimports: {style: absolute}\n")
    loaded = load(tmp_path, "license: {header: main}\n", work_dir)
    assert (loaded.organisation, loaded.sections["license"]) == ("Acme", {"header": "main"})
    assert loaded.sections["imports"] == {"style": "absolute"}
    assert loaded.sources == ("organisation.yml", str(work_dir / "caloron.yml"), "caloron.yml")
    assert load(tmp_path, None, tmp_path / "nowhere").sources == ("organisation.yml",)
