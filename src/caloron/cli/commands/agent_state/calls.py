"""The calls of `caloron agent-state`: their flags, their help, and how a command line is read.

Standard library only, and little of it: this is read before every call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from caloron.agentstate.records import STATUSES, TERMINAL
from caloron.errors import UsageError

_LARGEST = 2**63 - 1
#: Reads the value of a flag: its name, then the value as it was typed.
Reader = Callable[[str, str], Any]


class Flag(NamedTuple):
    name: str
    help: str
    #: None: the flag takes no value.
    read: Reader | None
    required: bool = False


class Call(NamedTuple):
    """One command of a script."""

    help: str
    flags: tuple[Flag, ...] = ()
    example: str = ""
    positional: str = ""
    #: The exit code of a call without its positional or a required flag.
    missing: int = 2
    #: More lines of its help.
    details: tuple[str, ...] = ()


class MissingFlag(UsageError):
    """A required flag is missing; scaffold reports that as a failure, not as wrong use."""


def _text(flag: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{flag} is no text that a file can hold") from None
    return value


def _json(flag: str, value: str) -> str:
    """JSON, which is kept just as it was written."""
    _decoded(flag, value)
    return value


def _object(flag: str, value: str) -> dict[str, Any]:
    decoded = _decoded(flag, value)
    if not isinstance(decoded, dict):
        raise UsageError(f"{flag} must be a JSON object, not {value[:40]!r}")
    return decoded


def _decoded(flag: str, value: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(_text(flag, value), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{flag} is not JSON: {error}", hint=f"it was {value[:80]!r}") from None


def _positive(flag: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value[:25]) > 0):
        raise UsageError(f"{flag} must be a positive whole number, not {value[:40]!r}")
    return min(int(value[:25]), _LARGEST)


def _whole(flag: str, value: str) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise UsageError(f"{flag} must be a whole number, not {value[:40]!r}")
    return int(value)


def _seconds(flag: str, value: str) -> int:
    """Seconds, as the milliseconds that the file has."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 1e9:
        raise UsageError(f"{flag} must be a number of seconds, not {value[:40]!r}")
    return int(seconds * 1000)


def _lease(flag: str, value: str) -> int:
    """Seconds that a claim lasts; a claim that ends at once would protect nothing."""
    milliseconds = _seconds(flag, value)
    if milliseconds < 1000:
        raise UsageError(f"{flag} must be 1 second or more, not {value[:40]!r}")
    return milliseconds


def _one_of(*choices: str) -> Reader:
    def read(flag: str, value: str) -> str:
        if value not in choices:
            raise UsageError(f"{flag} must be one of {', '.join(choices)}, not {value[:40]!r}")
        return value

    return read


as_form = _one_of("text", "json", "table")

PROGRAM = "caloron agent-state"
_HOOK = (
    "It takes no flags; a host says in the environment:", "",
    "  MF_INSTANCE_DIR          the folder of the agent, else the one you are in",
    "  MF_AGENT_NAME            the agent: owner of new work, actor in the diary",
    "  MF_HOST                  the host; not needed",
    "  MF_TRIGGER_TYPE          the kind of work, if the message names none",
    "  MF_TRIGGER_PAYLOAD_JSON  the message, a JSON object: id, message_id or correlation_id;",
    "                           kind or capability; reason or error",
)  # fmt: skip
_ID = Flag("--id", "the work item", _text, required=True)
_KIND = Flag("--kind", "only of this kind", _text)
_TOKEN = Flag("--token", "only if this is still the newest claim", _whole)
_LEASE = Flag("--lease-s", "how long the claim holds without a renewal (default 600)", _lease)
_REASON = Flag("--reason", "why, for the diary", _text)
_OWNER = Flag("--owner", "the agent", _text, required=True)

CALLS: dict[str, dict[str, Call]] = {
    "scaffold": {
        "": Call(
            "Create the folder of one agent; existing files are never overwritten.",
            (
                Flag("--host", "the host, such as grove", _text, required=True),
                Flag("--agent", "the agent", _text, required=True),
                Flag("--strict", "first check that every migration is present", None),
            ),
            "scaffold ~/.config/grove/agents/forge --host grove --agent forge",
            "DIR",
            1,
        )
    },
    "errands": {
        "list": Call(
            "List work items, the last changed first.",
            (
                _KIND,
                Flag("--status", "only with this status", _one_of(*STATUSES)),
                Flag("--owner", "only of this agent", _text),
                Flag("--limit", "at most so many (default 200)", _positive),
                Flag("--json", "accepted for compatibility: the output is always JSON", None),
            ),
            "errands list --status in_flight --limit 20",
        ),
        "enqueue": Call(
            "Add a work item; an id that is known already changes nothing.",
            (
                Flag("--kind", "the kind of work; any name", _text, required=True),
                Flag("--id", "stable for the same trigger", _text, required=True),
                Flag("--payload", "JSON that the work needs", _json, required=True),
                Flag("--owner", "the agent that shall do it", _text),
                Flag("--notes", "notes", _text),
                Flag("--status", "pending or waiting_human", _one_of("pending", "waiting_human")),
                Flag("--priority", "higher is claimed first (default 0)", _whole),
                Flag("--delay-s", "seconds until `next` may claim it", _seconds),
            ),
            """errands enqueue --kind review --id msg-17 --payload '{"pr":17}'""",
        ),
        "claim": Call(
            "Claim one work item; refused while another claim holds it.",
            (_ID, _OWNER, _LEASE, Flag("--show-lease", "print the lease too", None)),
            "errands claim --id msg-17 --owner forge",
        ),
        "next": Call(
            "Claim the most urgent work item that waits or was abandoned; prints nothing if none.",
            (
                _OWNER,
                Flag("--kind", "of this kind only; several with commas", _text),
                _LEASE,
                Flag("--max-attempts", "an item claimed so often fails instead", _positive),
            ),
            "errands next --owner forge --kind review,release",
        ),
        "renew": Call(
            "Renew a claim: the work continues.",
            (_ID, Flag("--token", "of your claim", _whole, required=True), _LEASE),
            "errands renew --id msg-17 --token 1",
        ),
        "release": Call(
            "Return a work item unfinished.",
            (_ID, _TOKEN, _REASON),
            "errands release --id msg-17 --reason 'wrong machine'",
        ),
        "resolve": Call(
            "End a work item.",
            (
                _ID,
                Flag("--status", "done, failed or cancelled", _one_of(*TERMINAL), required=True),
                Flag("--notes", "the result; appended to the notes", _text),
                _TOKEN,
                Flag("--owner", "only if this agent has it", _text),
            ),
            "errands resolve --id msg-17 --status done --notes 'merged as 4f2a'",
        ),
        "park": Call(
            "Hold a work item for a person.",
            (_ID, Flag("--question", "the question for that person", _text, required=True), _TOKEN),
            "errands park --id msg-17 --question 'May I force-push?'",
        ),
        "answer": Call(
            "Answer the question of a work item; it waits for its agent again.",
            (_ID, Flag("--answer", "the answer", _text, required=True)),
            "errands answer --id msg-17 --answer 'Yes, once.'",
        ),
        "reopen": Call(
            "Reopen a work item that has ended.", (_ID, _REASON), "errands reopen --id msg-17"
        ),
        "retry": Call(
            "Retry a work item that failed or was abandoned, up to --max-attempts.",
            (
                _ID,
                Flag("--max-attempts", "attempts in all (default 3)", _positive),
                Flag("--delay-s", "seconds until `next` may claim it", _seconds),
                _REASON,
            ),
            "errands retry --id msg-17 --delay-s 60",
        ),
        "pending": Call(
            "List work items that wait, oldest first.", (_KIND,), "errands pending --kind review"
        ),
        "replay": Call(
            "List the work items to continue after a start: waiting and abandoned ones.",
            (
                _KIND,
                Flag("--owner", "only of this agent", _text),
                Flag("--threshold-s", "abandoned for at least so long (default 0)", _seconds),
            ),
            "errands replay --threshold-s 600",
        ),
        "get": Call("Show one work item.", (_ID,), "errands get --id msg-17"),
        "annotate": Call(
            "Add keys to the notes of a work item.",
            (_ID, Flag("--notes-json", "a JSON object", _object, required=True)),
            """errands annotate --id msg-17 --notes-json '{"session_id":"s1"}'""",
        ),
        "notes": Call(
            "Show every earlier text of the notes.", (_ID,), "errands notes --id msg-17"
        ),
    },
    "events": {
        "append": Call(
            "Write one line into the diary.",
            (
                Flag("--type", "what happened", _text, required=True),
                Flag("--payload", "JSON about it", _json, required=True),
                Flag("--actor", "who", _text),
                Flag("--work-item-id", "about which work item", _text),
                Flag("--key", "write it only if no line has this key yet", _text),
            ),
            """events append --type boot --payload '{"v":1}' --actor forge""",
        ),
        "tail": Call(
            "List the newest lines, the newest first.",
            (Flag("--limit", "at most so many (default 50)", _positive),),
            "events tail --limit 20",
        ),
        "since": Call(
            "List every line from a time on.", (), "events since 2026-11-16T00:00:00Z", "TIME"
        ),
    },
    "dashboard": {"regen": Call("Write dashboard.md again.", (), "dashboard regen")},
    "retro": {
        "weekly": Call(
            "Write the retro of a week (default: the last whole week).",
            (Flag("--week", "such as 2026-W46", _text),),
            "retro weekly --week 2026-W46",
        )
    },
    "hook": {
        name: Call(f"Called by a host {when}.", (), f"hook {name}", details=_HOOK)
        for name, when in (
            ("onStart", "when the agent starts: prints the work items to continue"),
            ("onMessageAccepted", "when it accepts a message: adds a work item"),
            ("onStateTransition", "when something changed: writes the dashboard again"),
            ("onMessageReplied", "when it has answered: a line in the diary"),
            ("onShutdown", "when it ends: a line in the diary"),
            ("onError", "when work failed: ends the work item as failed"),
        )
    },
    "skill": {
        "": Call(
            "Install the workflows as a skill folder, with a manifest for arc.",
            (Flag("--force", "also overwrite files that were changed", None),),
            "skill ~/.claude/skills/agent-state",
            "DIR",
        )
    },
}  # fmt: skip


def usage(script: str = "", sub: str = "") -> str:
    """The help of the program, of a script, or of a command of a script."""
    calls = CALLS.get(script)
    if calls is not None and sub in calls:
        return _usage_of_call(script, sub, calls[sub])
    if calls is not None:
        lines = [f"Usage: {PROGRAM} {script} COMMAND [flags]", ""]
        lines += [f"  {name:20}{call.help}" for name, call in calls.items()]
        details = next(iter(calls.values())).details
        lines += ["", *details] if details else []
        examples = [call.example for call in calls.values()][:3]
    else:
        lines = [
            f"Usage: {PROGRAM} SCRIPT COMMAND [flags]", "",
            "The queue, diary, dashboard and retros of one agent, as agent-state has them:",
            "JSON Lines; exit 0 done, 1 refused, 2 wrong use, 3 scaffold --strict failed.",
            "The folder of the agent is $MF_INSTANCE_DIR, else the one you are in.", "",
        ]  # fmt: skip
        lines += [
            f"  {name:10} {', '.join(sub or call.positional for sub, call in calls.items())}"
            for name, calls in CALLS.items()
        ]
        examples = [next(iter(calls.values())).example for calls in CALLS.values()]
    return "\n".join([*lines, "", "Examples:", *(f"  {PROGRAM} {line}" for line in examples)])


def _usage_of_call(script: str, sub: str, call: Call) -> str:
    words = " ".join(filter(None, (PROGRAM, script, sub, call.positional)))
    lines = [f"Usage: {words} [flags]", "", call.help, ""]
    lines += [
        f"  {flag.name:16}{flag.help}{' (required)' if flag.required else ''}"
        for flag in call.flags
    ]
    return "\n".join([*lines, *call.details, "", "Example:", f"  {PROGRAM} {call.example}"])


def parse(call: Call, words: Sequence[str]) -> dict[str, Any]:
    """Read the flags of a command line; keys without the dashes, the positional as `""`."""
    values: dict[str, Any] = {}
    flags = {flag.name: flag for flag in call.flags}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if not call.positional or "" in values:
                raise UsageError(f"unexpected argument {word[:80]!r}")
            values[""] = _text("the argument", word)
            continue
        name, has_value, value = word.partition("=")
        flag = flags.get(name)
        if flag is None:
            known = ", ".join(flags) or "none"
            raise UsageError(f"there is no flag {name[:80]!r} here", hint=f"flags: {known}")
        if flag.read is None:
            values[name[2:]] = True
            continue
        if not has_value:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"{name} needs a value", hint=f"write {name}=VALUE")
            value = rest.pop(0)
        values[name[2:]] = flag.read(name, value)
    _require(call, values)
    return values


def _require(call: Call, values: dict[str, Any]) -> None:
    if call.positional and not values.get(""):
        raise UsageError(f"{call.positional} is missing")
    for flag in call.flags:
        if flag.required and values.get(flag.name[2:], "") == "":
            raise MissingFlag(f"{flag.name} is missing: {flag.help}")
