"""A plan is a tree that fits the screen with any names and titles."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from caloron.cli.commands.sprint.plan import plan_tree
from caloron.domain.model.plan import PlannedTask


def task(name: str, *needs: str, title: str = "", **more: str) -> PlannedTask:
    fields = {"id": name, "title": title or name.upper(), "agent_prompt": "x"} | more
    return PlannedTask(depends_on=needs, **fields)  # type: ignore[arg-type]


def test_a_task_is_below_its_last_dependency_and_names_the_others() -> None:
    plan = (
        task("a"), task("b", "a"), task("c", "a"), task("d", "b", "c"), task("e"),
        task("f", "d", "a"), task("g", kind="check"),
    )  # fmt: skip
    assert plan_tree(plan, 80).splitlines() == [
        "  a  A",
        "  ├─ b  B",
        "  └─ c  C",
        "     └─ d  D (also after b)",
        "        └─ f  F",
        "  e  E",
        "  g  G (a check, changes nothing)",
    ]


def test_a_deep_chain_fits_the_width_and_states_its_order() -> None:
    plan = (task("t0"), *(task(f"t{n}", f"t{n - 1}") for n in range(1, 200)))
    lines = plan_tree(plan, 80).splitlines()
    assert len(lines) == 200
    assert max(map(len, lines)) <= 80
    assert lines[199].endswith("t199  T199 (after t198)")


def test_wide_letters_count_as_two_cells() -> None:
    lines = plan_tree((task("a", title="日本語" * 40),), 80).splitlines()
    assert len(lines) > 2
    assert max(map(cell_len, lines)) <= 80
    assert "".join(lines).replace(" ", "").removeprefix("a") == "日本語" * 40


_NAMES = st.lists(st.from_regex(r"[a-z0-9_-]{1,20}", fullmatch=True), unique=True, min_size=1)


@settings(max_examples=60, deadline=None)
@given(st.data(), _NAMES, st.integers(60, 200))
def test_every_task_is_shown_once_and_no_line_is_too_wide(
    data: st.DataObject, names: list[str], width: int
) -> None:
    plan = tuple(
        task(
            name,
            *data.draw(st.lists(st.sampled_from(names[:number]), unique=True, max_size=4))
            if number
            else (),
            title=data.draw(st.text(min_size=1, max_size=200).filter(str.strip)),
        )
        for number, name in enumerate(names)
    )
    shown = plan_tree(plan, width)
    assert max(map(cell_len, shown.splitlines())) <= width
    for name in names:
        assert sum(line.lstrip(" │├└─").split(" ")[0] == name for line in shown.splitlines()) >= 1
