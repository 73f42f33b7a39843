"""`caloron skill`: a SKILL.md that teaches an agent to use this program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from caloron.cli.options import dry_run_option, output_option
from caloron.cli.output import dry_run as answer_dry_run
from caloron.cli.output import printable, success
from caloron.cli.tree import EXIT_CODES, describe
from caloron.errors import AlreadyExists, StoreError
from caloron.store.files import write_atomic

_HEAD = """---
name: caloron
description: Turn a goal into reviewed, tested, merged code with a team of agents.
when_to_use: A change is large enough for several tasks, or must survive crashes, reviews and \
verification on its way to main.
---

# Caloron {version}

A goal becomes a plan of tasks; agents do them side by side in sandboxes; each result is reviewed,
verified on top of main, and merged on the project's own forge. It can be stopped and resumed.

Start like this:

```sh
cd ~/src/shop
caloron sprint "Add a discount code to the basket" --yes --output json
caloron report --output json
caloron take --output json
```
"""

#: How each of them begins, whatever wrote it.
_OURS = b"---\nname: caloron\n"

_OUTPUT = """## Answers

`--output json` prints one envelope on standard output: `{"ok": true, "command", "data", "meta"}` or
`{"ok": false, "command", "error": {"code", "message", "hint"}, "meta"}`. With text, errors go to
standard error. A dry run answers `{"ok": true, "dry_run": true, "planned_actions": […]}`.
"""


@click.command()
@click.option(
    "--out",
    metavar="FILE",
    help="Write it there, with the folders that are missing; `-` prints it.",
)
@click.option("--force", is_flag=True, help="Also write over a file that holds something else.")
@dry_run_option
@output_option
def skill(out: str | None, force: bool, dry_run: bool) -> int:
    """Print a SKILL.md that teaches an agent to use Caloron, made from the commands themselves.

    \b
    Examples:
      caloron skill
      caloron skill --out .claude/skills/caloron/SKILL.md
    """
    content = skill_text()
    out = None if out == "-" else out
    if out is None and not dry_run:
        success("skill", {"path": None, "content": content}, content.rstrip("\n"))
        return 0
    if out is None:
        return answer_dry_run("skill", [])
    path = Path(out).absolute()
    replaced = _stands_there(path, force=force)
    if dry_run:
        size = len(content.encode())
        return answer_dry_run("skill", [{"action": "write", "target": str(path), "bytes": size}])
    try:
        write_atomic(path, content.encode())
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot write {path}: {error}", hint="choose another file") from error
    success("skill", {"path": str(path), "content": content}, printable(_said(path, replaced)))
    return 0


def _said(path: Path, replaced: bool) -> str:
    return f"Wrote {path}{', in place of what stood there' if replaced else ''}."


def _stands_there(path: Path, *, force: bool) -> bool:
    """Whether a file is written over; one that is no earlier SKILL.md of ours must be meant."""
    try:
        with path.open("rb") as file:
            ours = file.read(len(_OURS)) == _OURS
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot write {path}: {error}", hint="choose another file") from error
    if not ours and not force:
        raise AlreadyExists(
            f"{path} is there already, and is no SKILL.md of Caloron",
            hint="choose another file, or write over it with --force; nothing was changed",
        )
    return True


def skill_text() -> str:
    """The whole SKILL.md."""
    told = describe()
    flat = [entry for command in told["commands"] for entry in _flat(command, "caloron")]
    index = "\n".join(f"- `{name}`: {command['description']}" for name, command in flat)
    sections = "\n".join(_section(name, command) for name, command in flat)
    codes = "\n".join(f"- {code} `{name}`: {what}" for code, (name, what) in EXIT_CODES.items())
    head = _HEAD.format(version=told["version"])
    return f"{head}\n## Commands\n\n{index}\n\n{sections}\n{_OUTPUT}\n## Exit codes\n\n{codes}\n"


def _flat(command: dict[str, Any], before: str) -> list[tuple[str, dict[str, Any]]]:
    name = f"{before} {command['name']}"
    if not command["subcommands"]:
        return [(name, command)]
    return [entry for sub in command["subcommands"] for entry in _flat(sub, name)]


def _section(name: str, command: dict[str, Any]) -> str:
    words = [a["name"].upper() for a in command["arguments"]]
    lines = [f"## {' '.join((name, *words))}", "", command["description"], ""]
    for option in command["options"]:
        default = option["default"]
        shown = "" if default in (None, False, "") else f" (default `{default}`)"
        lines.append(f"- `{option['name']}`: {option['description']}{shown}")
    if command["examples"]:
        lines += ["", "```sh", *command["examples"], "```"]
    return "\n".join((*lines, ""))
