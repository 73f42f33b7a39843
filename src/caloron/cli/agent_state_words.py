"""What `caloron agent-state` takes: its scripts, their flags and what each of them is for.

Standard library only, and little of it: this is read before every call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from caloron.agentstate.records import STATUSES, TERMINAL
from caloron.errors import UsageError

PROGRAM = "caloron agent-state"
_MOST = 2**63 - 1


class Flag(NamedTuple):
    """One flag: how its value is read, and what it means."""

    name: str
    says: str
    read: Callable[[str, str], Any] | None
    required: bool = False


class Call(NamedTuple):
    """One thing that a script does."""

    says: str
    flags: tuple[Flag, ...] = ()
    example: str = ""
    positional: str = ""
    #: What a call without its positional or a required flag exits with.
    missing: int = 2


class MissingFlag(UsageError):
    """A flag that must be there is not; scaffold calls that a failure, all others a wrong use."""


def text(_flag: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{_flag} is no text that a file can hold") from None
    return value


def as_json(flag: str, value: str) -> str:
    """JSON, which is kept just as it was written."""
    _decoded(flag, text(flag, value))
    return value


def as_object(flag: str, value: str) -> dict[str, Any]:
    found = _decoded(flag, text(flag, value))
    if not isinstance(found, dict):
        raise UsageError(f"{flag} must be a JSON object, not {value[:40]!r}")
    return found


def _decoded(flag: str, value: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(value, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{flag} is not JSON: {error}", hint=f"it was {value[:80]!r}") from None


def positive(flag: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value[:25]) > 0):
        raise UsageError(f"{flag} must be a positive whole number, not {value[:40]!r}")
    return min(int(value[:25]), _MOST)


def whole(flag: str, value: str) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise UsageError(f"{flag} must be a whole number, not {value[:40]!r}")
    return int(value)


def seconds(flag: str, value: str) -> int:
    """Seconds, as the milliseconds that the file counts in."""
    try:
        found = float(value)
    except ValueError:
        found = -1
    if not 0 <= found < 1e9:
        raise UsageError(f"{flag} must be a number of seconds, not {value[:40]!r}")
    return int(found * 1000)


def status(flag: str, value: str) -> str:
    return _one_of(flag, value, STATUSES)


def terminal(flag: str, value: str) -> str:
    return _one_of(flag, value, TERMINAL)


def beginning(flag: str, value: str) -> str:
    return _one_of(flag, value, ("pending", "waiting_human"))


def _one_of(flag: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise UsageError(f"{flag} must be one of {', '.join(choices)}, not {value[:40]!r}")
    return value


_ID = Flag("--id", "the work item", text, required=True)
_KIND = Flag("--kind", "only of this kind", text)
_TOKEN = Flag("--token", "only if this is still the newest claim", whole)
_LEASE = Flag("--lease-s", "how long the claim holds without a renewal (default 600)", seconds)
_REASON = Flag("--reason", "why, for the diary", text)
_OWNER = Flag("--owner", "the agent", text, required=True)

CALLS: dict[str, dict[str, Call]] = {
    "scaffold": {
        "": Call(
            "Lay down the folder of one agent; what is there already is never written over.",
            (
                Flag("--host", "the host, such as grove", text, required=True),
                Flag("--agent", "the agent", text, required=True),
                Flag("--strict", "first make sure that every migration is there", None),
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
                Flag("--status", "only with this status", status),
                Flag("--owner", "only of this agent", text),
                Flag("--limit", "at most so many (default 200)", positive),
                Flag("--json", "taken and not needed: it is always JSON", None),
            ),
            "errands list --status in_flight --limit 20",
        ),
        "enqueue": Call(
            "Hand in a work item; an id that is known already changes nothing.",
            (
                Flag("--kind", "what sort of work; yours to name", text, required=True),
                Flag("--id", "stable for what triggered it", text, required=True),
                Flag("--payload", "JSON that the work needs", as_json, required=True),
                Flag("--owner", "the agent that it is for", text),
                Flag("--notes", "anything to remember", text),
                Flag("--status", "pending or waiting_human", beginning),
                Flag("--priority", "higher is claimed first (default 0)", whole),
                Flag("--delay-s", "not to be claimed as next before", seconds),
            ),
            """errands enqueue --kind review --id msg-17 --payload '{"pr":17}'""",
        ),
        "claim": Call(
            "Take one work item; refused while somebody holds it.",
            (_ID, _OWNER, _LEASE, Flag("--show-lease", "print the lease too", None)),
            "errands claim --id msg-17 --owner forge",
        ),
        "next": Call(
            "Take the most urgent work item that waits or was left alone; prints nothing if none.",
            (
                _OWNER,
                Flag("--kind", "of this kind only; several with commas", text),
                _LEASE,
                Flag("--max-attempts", "what was claimed so often fails instead", positive),
            ),
            "errands next --owner forge --kind review,release",
        ),
        "renew": Call(
            "Say that you still work on it.",
            (_ID, Flag("--token", "of your claim", whole, required=True), _LEASE),
            "errands renew --id msg-17 --token 1",
        ),
        "release": Call(
            "Give a work item back unfinished.",
            (_ID, _TOKEN, _REASON),
            "errands release --id msg-17 --reason 'wrong machine'",
        ),
        "resolve": Call(
            "End a work item.",
            (
                _ID,
                Flag("--status", "done, failed or cancelled", terminal, required=True),
                Flag("--notes", "what came of it; added to what stands there", text),
                _TOKEN,
                Flag("--owner", "only if this agent has it", text),
            ),
            "errands resolve --id msg-17 --status done --notes 'merged as 4f2a'",
        ),
        "park": Call(
            "Leave a work item to a person.",
            (_ID, Flag("--question", "what they have to answer", text, required=True), _TOKEN),
            "errands park --id msg-17 --question 'May I force-push?'",
        ),
        "answer": Call(
            "Answer what a work item waits for; it waits for its agent again.",
            (_ID, Flag("--answer", "what you say", text, required=True)),
            "errands answer --id msg-17 --answer 'Yes, once.'",
        ),
        "reopen": Call(
            "Take up again what has ended.", (_ID, _REASON), "errands reopen --id msg-17"
        ),
        "retry": Call(
            "Try again what failed or was left alone, unless that was done often enough.",
            (
                _ID,
                Flag("--max-attempts", "how often in all (default 3)", positive),
                Flag("--delay-s", "not to be claimed as next before", seconds),
                _REASON,
            ),
            "errands retry --id msg-17 --delay-s 60",
        ),
        "pending": Call(
            "List what waits, the oldest first.", (_KIND,), "errands pending --kind review"
        ),
        "replay": Call(
            "List what must be taken up after a start: what waits, and what was left alone.",
            (
                _KIND,
                Flag("--owner", "only of this agent", text),
                Flag("--threshold-s", "left alone for so long at least (default 0)", seconds),
            ),
            "errands replay --threshold-s 600",
        ),
        "get": Call("Show one work item.", (_ID,), "errands get --id msg-17"),
        "annotate": Call(
            "Put keys into the notes of a work item.",
            (_ID, Flag("--notes-json", "a JSON object", as_object, required=True)),
            """errands annotate --id msg-17 --notes-json '{"session_id":"s1"}'""",
        ),
        "notes": Call(
            "Show every text that stood in the notes before.", (_ID,), "errands notes --id msg-17"
        ),
    },
    "events": {
        "append": Call(
            "Write one line into the diary.",
            (
                Flag("--type", "what happened", text, required=True),
                Flag("--payload", "JSON about it", as_json, required=True),
                Flag("--actor", "who", text),
                Flag("--work-item-id", "about which work item", text),
                Flag("--key", "write it only if no line has this key yet", text),
            ),
            """events append --type boot --payload '{"v":1}' --actor forge""",
        ),
        "tail": Call(
            "The newest lines, the newest first.",
            (Flag("--limit", "at most so many (default 50)", positive),),
            "events tail --limit 20",
        ),
        "since": Call(
            "Every line from a time on.", (), "events since 2026-11-16T00:00:00Z", "TIME"
        ),
    },
    "dashboard": {"regen": Call("Write dashboard.md anew.", (), "dashboard regen")},
    "retro": {
        "weekly": Call(
            "Write the retro of a week (default: the last one that is over).",
            (Flag("--week", "such as 2026-W46", text),),
            "retro weekly --week 2026-W46",
        )
    },
    "hook": {
        name: Call(f"What a host calls {when}.", (), f"hook {name}")
        for name, when in (
            ("onStart", "when the agent starts: prints what must be taken up"),
            ("onMessageAccepted", "when it accepts a message: hands in a work item"),
            ("onStateTransition", "when something changed: writes the dashboard anew"),
            ("onMessageReplied", "when it has answered: a line in the diary"),
            ("onShutdown", "when it ends: a line in the diary"),
            ("onError", "when work failed: ends the work item as failed"),
        )
    },
    "skill": {
        "": Call(
            "Install the workflows as a skill folder, with a manifest for arc.",
            (Flag("--force", "also write over files that were changed", None),),
            "skill ~/.claude/skills/agent-state",
            "DIR",
        )
    },
}  # fmt: skip


def parse(call: Call, words: Sequence[str]) -> dict[str, Any]:
    """The flags of a command line, read; keys without the dashes, the positional as `""`."""
    given: dict[str, Any] = {}
    flags = {flag.name: flag for flag in call.flags}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if not call.positional or "" in given:
                raise UsageError(f"{word[:80]!r} is one word too many")
            given[""] = text("the argument", word)
            continue
        name, has_value, value = word.partition("=")
        flag = flags.get(name)
        if flag is None:
            known = ", ".join(flags) or "none"
            raise UsageError(f"there is no flag {name[:80]!r} here", hint=f"flags: {known}")
        if flag.read is None:
            given[name[2:]] = True
            continue
        if not has_value:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"{name} needs a value", hint=f"write {name}=VALUE")
            value = rest.pop(0)
        given[name[2:]] = flag.read(name, value)
    _require(call, given)
    return given


def _require(call: Call, given: dict[str, Any]) -> None:
    if call.positional and not given.get(""):
        raise UsageError(f"{call.positional} is missing")
    for flag in call.flags:
        if flag.required and given.get(flag.name[2:], "") == "":
            raise MissingFlag(f"{flag.name} is missing: {flag.says}")


def usage(script: str = "", sub: str = "") -> str:
    """The help of all, of one script, or of one thing that it does."""
    if script in CALLS and sub in CALLS[script]:
        return _of_call(script, sub)
    if script in CALLS:
        lines = [f"Usage: {PROGRAM} {script} COMMAND [flags]", ""]
        lines += [f"  {name:20}{call.says}" for name, call in CALLS[script].items()]
        examples = [call.example for call in CALLS[script].values()][:3]
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
    return "\n".join((*lines, "", "Examples:", *(f"  {PROGRAM} {one}" for one in examples)))


def _of_call(script: str, sub: str) -> str:
    call = CALLS[script][sub]
    words = " ".join(filter(None, (PROGRAM, script, sub, call.positional)))
    lines = [f"Usage: {words} [flags]", "", call.says, ""]
    for flag in call.flags:
        needed = " (required)" if flag.required else ""
        lines.append(f"  {flag.name:16}{flag.says}{needed}")
    return "\n".join((*lines, "", "Example:", f"  {PROGRAM} {call.example}"))
