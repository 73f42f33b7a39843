"""Text of agents, forges and files stays plain text in every output."""

from __future__ import annotations

import html
import io
import re
import unicodedata
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from caloron.cli import output
from caloron.cli.commands.sprint.live import LiveTable
from caloron.cli.commands.sprint.plan import plan_tree
from caloron.cli.format import printable
from caloron.cli.render import Item, Linked, Page, Section, cells, folded, render, table
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.status import Step
from caloron.domain.model.task import Task

#: Markup, terminal control sequences, and characters that change the text direction.
_BAD = (
    "[/b]", "[bold red]", "[/tmp/x]", "[link=x]", "[", "]", "\\[", "{0}", "%s", ":smile:", "`", "|",
    "<b>", "</table>", "&lt;", "&", '"', "'", "*", "_", "#", "\x1b[2J", "\x1b]0;x\x07", "\x9b31m",
    "\r", "\n", "\t", "\0", "\x08", "\x7f", "\u202e", "\u2066", "\u200b", "\u2028", "\ud800", "文",
    "e\u0301",
)  # fmt: skip
TEXTS = st.lists(
    st.sampled_from(_BAD) | st.text(max_size=4) | st.sampled_from(("see", "file", " ")), max_size=12
).map("".join)
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def assert_harmless(text: str) -> None:
    """Assert that the text has no terminal control character."""
    steering = [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf")]
    assert not steering, steering


def words(text: str) -> list[str]:
    return " ".join(printable(text).split()).encode("utf-8", "replace").decode().split()


def sprint_state(text: str, *, tasks: int = 3, planned: bool = True) -> State:
    sprint = Sprint(id="s-1", number=1, goal=text, phase="running" if planned else "planning")
    sprint.planning.failure = text
    named = [
        Task(
            plan=PlannedTask(id=f"t{n}", title=text or "x", agent_prompt="x"),
            step=Step.ESCALATED if n % 2 else Step.BLOCKED,
            reason=text,
        )
        for n in range(tasks)
    ]
    return State(sprint=sprint, tasks={t.id: t for t in named} if planned else {})


def drawn(state: State, *notes: str, columns: int = 80, rows: int = 24) -> str:
    """Return the live table for a terminal of this size, without colours."""
    view = LiveTable(None, dict)
    screen = io.StringIO()
    was = view.live.console
    view.live.console = Console(
        file=screen, width=columns, height=rows, color_system=None, markup=was._markup, emoji=False
    )
    view.state(state)
    for note in notes:
        view.message(note)
    view.live.console.print(view.live.get_renderable())
    return screen.getvalue()


@quick
@given(TEXTS, st.booleans())
def test_the_live_table_shows_any_text_unchanged(text: str, planned: bool) -> None:
    seen = drawn(sprint_state(text, planned=planned), text, columns=400)
    assert_harmless(seen)
    shown = seen.split()
    for word in words(text):
        assert word in shown, (word, seen)


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@settings(max_examples=15, deadline=None)
@given(text=TEXTS, rows=st.integers(10, 40), tasks=st.integers(0, 60))
def test_the_live_table_fits_the_screen(columns: int, text: str, rows: int, tasks: int) -> None:
    state = sprint_state(text * 20, tasks=tasks, planned=tasks > 0)
    lines = drawn(state, "budget: $5.00", columns=columns, rows=rows).rstrip("\n").split("\n")
    assert max(cells(line) for line in lines) <= columns
    assert len(lines) <= rows
    shown = sum(bool(re.match(r"t\d+ ", line)) for line in lines)
    if shown < tasks:
        assert f"… {tasks - shown} more" in "\n".join(lines)


def test_a_narrow_live_table_still_has_the_reason() -> None:
    state = sprint_state("the agent ended with exit code 1", tasks=2)
    lines = drawn(state, columns=60).split("\n")
    assert lines[0].startswith("s-1  0/2 done  the agent ended")
    assert any(re.match(r"t1 +Escalated +the agent ended with", line) for line in lines)


@quick
@given(TEXTS)
def test_pages_keep_text_as_text_in_every_form(text: str) -> None:
    rows = [("task", "title"), (text, Linked(text, "/log")), ("b", text)]
    page = Page(text, text, [Section("Done", rows=rows, items=[Item(text, [text], [text])])])
    plain, marked, hyper = (render(page, form) for form in ("text", "md", "html"))
    for form in (plain, marked, hyper):
        assert_harmless(form)
    assert [
        word for word in words(text) if word not in plain.encode("utf-8", "replace").decode()
    ] == []
    # Markdown: every tag and every fence is escaped, so only our own lines have structure.
    headings = [line for line in marked.split("\n") if line.startswith("#")]
    assert len(headings) == 2
    assert "<b>" not in re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", marked)
    parser = _Tags()
    parser.feed(hyper)
    assert parser.tags <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "blockquote", "table", "tr",
        "th", "td", "ul", "li", "code", "a", "pre",
    }  # fmt: skip
    assert html.escape(words(text)[0]) in hyper if words(text) and not _surrogate(text) else True


def _surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)


@quick
@given(TEXTS)
def test_tables_trees_and_folded_lines_accept_any_text(text: str) -> None:
    plan = (
        PlannedTask(id="a", title=text or "x", agent_prompt="x"),
        PlannedTask(id="b", title=text or "x", agent_prompt="x", depends_on=("a",)),
    )
    for seen in (
        table([{"name": text, "list": [text, text]}, {"name": "b", "list": []}]),
        plan_tree(plan, 60),
        folded(text, 40),
    ):
        assert_harmless(seen)
    assert max(cells(line) for line in plan_tree(plan, 60).split("\n")) <= 60


@quick
@given(TEXTS)
def test_no_answer_of_a_command_controls_the_terminal(text: str) -> None:
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("click.echo", lambda line, **_: printed.append(line))
        output.start([])
        output.success("x", {}, text)
        output.success("x", {}, lambda: [text, text])
        output.failure("x", "CODE", text, hint=text)
        output.dry_run("x", [{"action": text, "target": text}])
        output.note(text)
    for line in printed:
        assert_harmless(line)
