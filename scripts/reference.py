"""Writes the generated parts of docs/reference.md: every command, and the exit codes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from caloron.cli.tree import EXIT_CODES, describe

FILE = Path(__file__).parents[1] / "docs" / "reference.md"
#: On every command, and told once above the table.
_COMMON = ("--output", "--project", "--dry-run")


def commands() -> str:
    rows = ["| command | does |", "|---|---|"]
    for command in describe()["commands"]:
        rows += _rows(command, "")
    return "\n".join(rows)


def _rows(command: dict[str, Any], before: str) -> list[str]:
    name = f"{before}{command['name']}"
    if command["subcommands"]:
        return [row for sub in command["subcommands"] for row in _rows(sub, f"{name} ")]
    words = [name]
    for argument in command["arguments"]:
        shown = argument["name"].upper().removesuffix("_ID")
        words.append(shown if argument["required"] else f"[{shown}]")
    words += [_option(o) for o in command["options"] if o["name"] not in _COMMON]
    line = " ".join(words).replace("|", "\\|")
    return [f"| `{line}` | {command['description']} |"]


def _option(option: dict[str, Any]) -> str:
    if option["type"] == "flag":
        return f"[{option['name']}]"
    if choices := option.get("choices"):
        return f"[{option['name']} {'|'.join(choices)}]"
    return f"[{option['name']} {option['metavar']}]"


def exit_codes() -> str:
    rows = ["| code | name | meaning |", "|---|---|---|"]
    rows += [f"| {code} | `{name}` | {what} |" for code, (name, what) in EXIT_CODES.items()]
    return "\n".join(rows)


def text(old: str) -> str:
    """The file with its generated parts made anew; what is written by hand stays."""
    for part, content in (("commands", commands()), ("exit codes", exit_codes())):
        begin, end = f"<!-- {part}: scripts/reference.py -->", f"<!-- end of {part} -->"
        before, found, rest = old.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise SystemExit(f"{FILE} has no place for {part}: {begin} … {end}")
        old = f"{before}{begin}\n{content}\n{end}{after}"
    return old


if __name__ == "__main__":
    found = FILE.read_text("utf-8")
    if "--check" in sys.argv:
        sys.exit(0 if text(found) == found else 1)
    FILE.write_text(text(found), "utf-8")
    print(f"wrote {FILE}")
