"""A failed verification is named by its tests, in one line and in a few."""

from __future__ import annotations

import pytest

from caloron.answers import failure_line, last_lines

_PYTEST = """
=================================== FAILURES ===================================
_______________________________ test_expiring __________________________________

    def test_expiring():
>       assert 1 == 2
E       assert 1 == 2

tests/test_larder.py:4: AssertionError
=========================== short test summary info ============================
FAILED tests/test_larder.py::test_expiring - assert 1 == 2
========================= \x1b[31m1 failed\x1b[0m, 6 passed in 0.13s ==========================
"""
_UNITTEST = """
F.
======================================================================
FAIL: test_mean (test_tally.Averages)
----------------------------------------------------------------------
AssertionError: 2 != 3

----------------------------------------------------------------------
Ran 2 tests in 0.000s

FAILED (failures=1)
"""
_GO = """--- FAIL: TestParse (0.00s)
    parse_test.go:9: got 1
FAIL
FAIL\texample.org/parse\t0.002s
FAIL
"""
_CARGO = """test parse::works ... FAILED
test other ... ok

failures:
    parse::works

test result: FAILED. 1 passed; 1 failed; 0 ignored
"""


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        (_PYTEST, "1 failed, 6 passed in 0.13s: tests/test_larder.py::test_expiring"),
        (_UNITTEST, "test_mean (test_tally.Averages)"),
        (_GO, "TestParse"),
        (_CARGO, "test result: FAILED. 1 passed; 1 failed; 0 ignored: parse::works"),
        ("not ok 3 - adds numbers\n# fail 1\n", "# fail 1: adds numbers"),
        ("make: *** [Makefile:2: test] Error 1\n", "make: *** [Makefile:2: test] Error 1"),
        ("==== 3 failed, 1398 passed ====\n\n", "3 failed, 1398 passed"),
        ("", ""),
        ("=====\n-----\n", ""),
    ],
)  # fmt: skip
def test_one_line_names_the_tests_that_failed(printed: str, line: str) -> None:
    assert failure_line(printed) == line


def test_many_failures_are_counted() -> None:
    printed = "".join(f"FAILED tests/test_a.py::test_{n}\n" for n in range(9)) + "9 failed in 1s\n"
    names = "tests/test_a.py::test_0, tests/test_a.py::test_1, tests/test_a.py::test_2"
    assert failure_line(printed) == f"9 failed in 1s: {names} and 6 more"


def test_the_last_lines_show_the_failure_without_rulers_and_colours() -> None:
    lines = last_lines(_PYTEST)
    assert "E       assert 1 == 2" in lines
    assert lines[-1] == "1 failed, 6 passed in 0.13s"
    assert not [line for line in lines if "====" in line or "\x1b" in line]
    assert len(last_lines("line\n" * 100)) == 15
