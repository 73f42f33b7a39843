"""What on a forge belongs to which sprint."""

from __future__ import annotations

from caloron.domain.model.snapshots import IssueSnapshot, marker
from caloron.domain.model.sprint import last_number


def issue(body: str) -> IssueSnapshot:
    return IssueSnapshot(
        version=1, number=1, title="t", body=body, state="closed", author="somebody"
    )


def test_the_last_number_is_that_of_the_same_name_alone() -> None:
    keys = ("issue/shop-2/a", "issue/shop-10/b", "issue/shop-x-12/a", "issue/my-shop-13/a")
    told = [issue(marker(key)) for key in keys]
    assert last_number("shop", told) == 10
    assert last_number("shop-x", told) == 12


def test_without_a_sprint_of_that_name_there_is_no_number() -> None:
    told = [
        issue(""),
        issue(marker("escalation/shop-4/a/1")),
        issue(marker("issue/shop-9999999/a")),
    ]
    assert last_number("shop", told) == 0
