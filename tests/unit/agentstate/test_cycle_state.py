"""The state of cycles is a pure fold over their log; repeated reads agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caloron.cycles.report import report_of
from caloron.cycles.state import CycleState, apply, read, render

AT = st.sampled_from(["2026-04-06T22:00:00.000Z", "2026-04-06T22:15:00.000Z"])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ENTRIES = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"event": st.just("begin"), "at": AT, "cycle": st.integers(0, 9)},
            optional={"work": TEXT, "holder": st.just({"pid": 1})},
        ),
        st.fixed_dictionaries(
            {"event": st.just("act"), "at": AT, "cycle": st.integers(0, 9), "action": TEXT},
            optional={"result": st.just("failure"), "artefact": TEXT, "next": TEXT},
        ),
        st.fixed_dictionaries(
            {"event": st.just("end"), "at": AT, "cycle": st.integers(0, 9),
             "result": st.just("success")},
            optional={"artefacts": st.lists(TEXT), "reason": TEXT, "work": TEXT},
        ),
        st.fixed_dictionaries(
            {"event": st.sampled_from(["crashed", "stopped", "of a later version"]), "at": AT,
             "cycle": st.integers(0, 9)},
        ),
    ),
    max_size=12,
)  # fmt: skip


def folded(entries: list[dict]) -> CycleState:
    state = CycleState("allegro")
    for number, entry in enumerate(entries, 1):
        state = apply(state, entry | {"seq": number})
    return state


@given(ENTRIES)
def test_a_written_state_reads_back_equal(entries) -> None:
    state = folded(entries)
    assert read(render(state), "allegro") == state


@given(ENTRIES)
def test_a_known_line_changes_nothing(entries) -> None:
    state = folded(entries)
    for number, entry in enumerate(entries, 1):
        assert apply(state, entry | {"seq": number}) == state


@given(ENTRIES)
def test_a_snapshot_replaces_all_earlier_lines(entries) -> None:
    state = folded(entries)
    kept = {"version": 1} | state._asdict() | {"artefacts": list(state.artefacts)}
    line = {"event": "snapshot", "at": "", "cycle": state.cycle_number, "state": kept}
    again = apply(CycleState("allegro"), line | {"seq": len(entries) + 1})
    assert again._replace(seq=0) == state._replace(seq=0) or not state.cycle_number


@given(ENTRIES)
def test_numbers_never_decrease_and_every_state_has_a_report(entries) -> None:
    numbers = [folded(entries[:n]).cycle_number for n in range(len(entries) + 1)]
    begun = [e["cycle"] for e in entries if e["event"] == "begin"]
    if begun == sorted(begun):
        assert numbers == sorted(numbers)
    text = report_of(folded(entries)).text()
    assert text.startswith(("This is cycle", "No cycle of allegro is open."))
