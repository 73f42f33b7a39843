"""Pages fit the screen with texts of any language."""

from __future__ import annotations

import pytest

from caloron.cli.render import Item, Linked, Page, Section, as_text, cells, render

_ROWS = [
    ("task", "title", "cost"),
    ("search", "在全部商品里按名字和描述查找,并且把最相关的放在最前面显示给顾客看", "$1.20"),
    ("basket", "A basket that keeps what was put into it until the customer has paid", "$0.30"),
]
_PAGE = Page("Sprint", sections=[Section("Done", rows=_ROWS, items=[Item("word " * 40)])])


def _table(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("  task", "  search", "  bask"))]


def test_columns_are_aligned_even_with_letters_of_two_cells() -> None:
    places = [
        cells(line[: line.index(end)])
        for line, end in zip(_table(as_text(_PAGE)), ("cost", "$", "$"), strict=True)
    ]
    assert len(set(places)) == 1


@pytest.mark.parametrize("columns", [80, 200])
def test_a_page_at_a_terminal_fits_without_cut_text(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr("caloron.cli.render.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    text = as_text(_PAGE)
    assert max(cells(line) for line in text.splitlines()) <= columns
    assert "…" not in text
    assert text.count("word") == 40
    assert [c for c in _ROWS[1][1] if c not in text] == []
    assert [line.rsplit(maxsplit=1)[1] for line in _table(text)] == ["cost", "$1.20", "$0.30"]


def test_a_pipe_gets_the_complete_page() -> None:
    text = as_text(_PAGE)
    assert all(title in text for _, title, _ in _ROWS)
    assert "…" not in text


def test_logs_can_be_clicked_on_where_a_page_has_links() -> None:
    log = '/home/a "b"/<x>/output.log'
    rows = [("task", "verified"), ("a", Linked("green", log))]
    page = Page("Sprint", sections=[Section("Done", rows=rows, items=[Item("b", files=[log])])])
    address = "file:///home/a%20%22b%22/%3Cx%3E/output.log"
    assert render(page, "html").count(f'<a href="{address}">') == 2
    assert f"| a | [green](<{address}>) |" in render(page, "md")
    assert "file:" not in render(page, "text")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_table_of_a_report_fits_and_keeps_every_column(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr("caloron.cli.render.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    head = ("task", "title", "pull request", "change", "verified", "reviews", "cost", "time")
    row = ("shopping-list", "Show both lists on the command line and keep their order",
           "#4 merged", "12 files +120 -33", "green", "2", "$0.12", "18 s")  # fmt: skip
    text = as_text(Page("Sprint", sections=[Section("Done", rows=[head, row])]))
    assert max(map(cells, text.splitlines())) <= columns
    words = text.replace(":", " ").split()
    assert [word for cell in (*head, *row) for word in cell.split() if word not in words] == []
