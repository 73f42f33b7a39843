"""What an agent without a protocol of its own tells about its run: its output and `report.json`.

Any agent may write one JSON object to the file that CALORON_REPORT names, with any of the fields
`cost_usd`, `tokens_in`, `tokens_out`, `session`, `model`, `stop_reason`, `trouble`, `detail` and
`reset_at`. A field of the wrong type is left out, and `detail` says so.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, get_args

from caloron.agents.untrusted import folder_in, read_regular
from caloron.ports import AgentReport, Trouble

REPORT_FILE = "report.json"

#: An answer of this length is kept whole; of a longer one the beginning and the end.
TEXT_LIMIT = 1 << 20
_REPORT_LIMIT = 64 * 1024
_LINE_LIMIT = 500
_TEXTS = ("session", "model", "stop_reason", "trouble", "detail")
_COUNTS = ("tokens_in", "tokens_out")
_AMOUNTS = ("cost_usd", "reset_at")


def told_report(run_dir: Path) -> AgentReport:
    """The report of an attempt from what it printed and what it told about itself."""
    return AgentReport(text=both_ends(run_dir / "output.log"), **_told(run_dir / "home"))


def both_ends(file: Path) -> str:
    """A text file as it is; of a long one, a plan is at the beginning and a verdict at the end."""
    half = TEXT_LIMIT // 2
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            if size <= TEXT_LIMIT:
                return opened.read(TEXT_LIMIT).decode("utf-8", "replace")
            head = opened.read(half)
            opened.seek(size - half)
            tail = opened.read(half)
    except FileNotFoundError:
        return ""
    left_out = f"\n[... {size - TEXT_LIMIT} bytes omitted ...]\n"
    return head.decode("utf-8", "replace") + left_out + tail.decode("utf-8", "replace")


def one_line(text: str, limit: int = _LINE_LIMIT) -> str:
    """A text of somebody else's as one line that can be shown anywhere."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * limit])
    return " ".join(printable.split())[:limit]


def _told(home: Path) -> dict[str, Any]:
    try:
        with folder_in(home) as folder:
            data = read_regular(folder, REPORT_FILE, _REPORT_LIMIT)
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {"detail": f"its {REPORT_FILE} was not read: {error.strerror or error}"}
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        return {"detail": f"its {REPORT_FILE} is not JSON"}
    if not isinstance(told, dict):
        return {"detail": f"its {REPORT_FILE} is not an object"}
    return _typed(told)


def _typed(told: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {}
    wrong = []
    for name, value in told.items():
        if value is None and name in _AMOUNTS:
            continue
        if _fits(name, value):
            good[name] = one_line(value) if name in _TEXTS else value
        else:
            wrong.append(one_line(name, 40))
    if wrong:
        listed = ", ".join(wrong[:5])
        good["detail"] = one_line(
            f"{good.get('detail', '')} (its {REPORT_FILE} has unusable fields: {listed})"
        )
    return good


def _fits(name: str, value: object) -> bool:
    if name == "trouble":
        return value in get_args(Trouble)
    if name in _TEXTS:
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if name in _COUNTS:
        return isinstance(value, int) and 0 <= value < 1 << 53
    return name in _AMOUNTS and math.isfinite(value) and 0 <= value < 1e15
