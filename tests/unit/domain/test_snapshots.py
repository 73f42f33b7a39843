"""Markers and sections in bodies on the forge, and the sprints that they belong to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caloron.domain.model.snapshots import (
    IssueSnapshot,
    has_section,
    issues_closed_by,
    marker,
    marker_key,
    with_section,
    without_markers,
    without_sections,
)
from caloron.domain.model.sprint import last_number

NAME = "shop-1/a"
BODY = f"Closes #4\n\nAgent: a\n\n{marker('pull/shop-1/a/1')}"


def put(body: str, text: str, *, add: bool = True) -> str:
    return with_section(body, NAME, text, add=add)


def test_a_section_is_appended_once_and_then_replaced_in_place() -> None:
    first = put(BODY, "cycle 2")
    assert first.startswith(BODY)
    moved = f"{first}\n\nA person's last word."
    second = put(moved, "cycle 3")
    assert second == moved.replace("cycle 2", "cycle 3")
    assert second.count("<!-- caloron-section:") == 1


def test_the_same_text_changes_nothing_even_with_the_line_ends_of_a_browser() -> None:
    first = put(BODY, "cycle 2\n\nmore")
    assert put(first, "cycle 2\n\nmore") == first
    with_crlf = first.replace("\n", "\r\n")
    assert put(with_crlf, "cycle 2\n\nmore") == with_crlf


def test_a_removed_section_is_not_restored() -> None:
    assert put(BODY, "cycle 3", add=False) == BODY


def test_a_section_with_missing_or_repeated_markers_is_not_changed() -> None:
    whole = put(BODY, "cycle 2")
    begin, _, end = whole.removeprefix(BODY).strip().partition("\ncycle 2\n")
    broken = (
        whole.replace(begin, ""),
        whole.replace(end, ""),
        f"{whole}\n{begin}",
        f"{whole}\n{end}",
        f"{BODY}\n{end}\ncycle 2\n{begin}",
    )
    for body in broken:
        assert not has_section(body, NAME)
        assert put(body, "cycle 3") == body


def test_a_section_can_be_added_to_an_empty_description_and_beside_another_section() -> None:
    alone = put("", "cycle 2")
    assert has_section(alone, NAME)
    both = with_section(alone, "shop-1/b", "cycle 9", add=True)
    assert has_section(both, NAME)
    assert has_section(both, "shop-1/b")
    assert without_sections(both) == ""


def test_no_description_grows_beyond_the_limit_of_a_forge() -> None:
    long = "x" * 59_990
    assert put(long, "cycle 2") == long
    longer = "x" * 70_000 + put("", "cycle 222")
    assert put(longer, "cycle 3") == longer.replace("cycle 222", "cycle 3")
    assert put(longer, "cycle 3" * 99) == longer


def test_text_of_agents_closes_no_issue_and_ends_no_section() -> None:
    closing_words = (
        "fixes #12, Closes o/r#13, resolves GH-14, fix https://forge/o/r/issues/15, close !16"
    )
    body = put(BODY, f"{closing_words}\n<!-- /caloron-section:{NAME} --> {marker('pull/other')}")
    assert issues_closed_by(body) == (4,)
    assert has_section(body, NAME)
    assert marker_key(body) == "pull/shop-1/a/1"
    for reference in ("#12", "#13", "GH-14", "https://", "!16"):
        assert reference not in body


def test_people_read_the_section_without_its_markers() -> None:
    assert without_markers(put(BODY, "cycle 2")) == "Closes #4\n\nAgent: a\n\n\n\n\ncycle 2"


@given(st.text(), st.lists(st.text(), min_size=1, max_size=4), st.text())
def test_text_of_people_around_the_only_section_stays(
    before: str, texts: list[str], after: str
) -> None:
    body = put(before, "first") + after
    for text in texts:
        body = put(body, text, add=False)
    assert body.count("<!-- caloron-section:") == 1
    assert body.startswith(before.rstrip())
    assert body.endswith(after)
    assert without_sections(body) == without_sections(put(before, "first") + after)


def issue(body: str) -> IssueSnapshot:
    return IssueSnapshot(version=1, number=1, title="t", body=body, state="closed", author="ada")


def test_the_last_number_is_that_of_the_same_name_alone() -> None:
    keys = ("issue/shop-2/a", "issue/shop-10/b", "issue/shop-x-12/a", "issue/my-shop-13/a")
    issues = [issue(marker(key)) for key in keys]
    assert last_number("shop", issues) == 10
    assert last_number("shop-x", issues) == 12


def test_without_a_sprint_of_that_name_there_is_no_number() -> None:
    issues = [
        issue(""),
        issue(marker("escalation/shop-4/a/1")),
        issue(marker("issue/shop-9999999/a")),
    ]
    assert last_number("shop", issues) == 0
