"""`caloron agent-state` as one of the commands: in the help, and with an envelope on request."""

from __future__ import annotations

import json
from typing import Any

import click

from caloron.cli import output
from caloron.cli.app import Failed, command, report
from caloron.cli.commands.agent_state import main as program

_CODES = {1: "GENERAL_ERROR", 2: "INVALID_ARGS", 3: "NOT_FOUND"}


# Only options before the script are read here: after it, a word that looks like an option may be
# the value of a flag, and one parser decides that.
@command(
    "agent-state",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    examples=[
        "caloron agent-state scaffold ~/.config/grove/agents/forge --host grove --agent forge",
        "caloron agent-state errands enqueue --kind review --id msg-17 --payload '{\"pr\":17}'",
        "caloron agent-state errands next --owner forge",
        "caloron agent-state errands resolve --id msg-17 --status done",
    ],
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT COMMAND [FLAGS]...")
def agent_state(words: tuple[str, ...]) -> int:
    """Keep the queue, diary, dashboard and retros of one agent, in the form of agent-state.

    Scripts: scaffold, errands, events, dashboard, retro, hook, skill; each explains itself with
    `caloron agent-state errands --help`. The answer is one line of JSON for each row, and the exit
    codes are those of agent-state (1 refused, 2 wrong use, 3 scaffold --strict failed). The
    folder of the agent is $MF_INSTANCE_DIR, else the one you are in.
    """
    return in_envelope(program.split(words)) if output.wants_json() else program.main(words)


def in_envelope(line: program.Line) -> int:
    """Answer one call with one JSON envelope."""
    output.set_command("agent-state", "json")
    answers: list[str] = []
    messages: list[str] = []
    code = program.run(line, answers.append, messages.append)
    data = {"lines": [_decoded(answer) for answer in answers], "messages": messages}
    if code == 0:
        output.success("agent-state", data, "")
        return 0
    found = {kind: _first(messages, f"{kind}: ") for kind in ("error", "hint")}
    message = found["error"] or "no command was given"
    report(Failed(_CODES.get(code, "GENERAL_ERROR"), message, hint=found["hint"]))
    return code


def _first(messages: list[str], beginning: str) -> str:
    """The first message that begins like this, without its beginning."""
    fitting = (text.removeprefix(beginning) for text in messages if text.startswith(beginning))
    return next(fitting, "")


def _decoded(line: str) -> Any:
    return json.loads(line) if line.startswith("{") else line
