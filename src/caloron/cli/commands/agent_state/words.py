"""What `caloron agent-state` takes: its scripts, their flags and what each of them is for.

Standard library only, and little of it: this is read before every call.
"""

from __future__ import annotations

from caloron.cli.commands.agent_state.flags import (
    Call,
    Flag,
    as_json,
    as_object,
    beginning,
    lease,
    positive,
    seconds,
    status,
    terminal,
    text,
    whole,
)

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
_ID = Flag("--id", "the work item", text, required=True)
_KIND = Flag("--kind", "only of this kind", text)
_TOKEN = Flag("--token", "only if this is still the newest claim", whole)
_LEASE = Flag("--lease-s", "how long the claim holds without a renewal (default 600)", lease)
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
        name: Call(f"What a host calls {when}.", (), f"hook {name}", besides=_HOOK)
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


def usage(script: str = "", sub: str = "") -> str:
    """The help of all, of one script, or of one thing that it does."""
    if script in CALLS and sub in CALLS[script]:
        return _of_call(script, sub)
    if script in CALLS:
        lines = [f"Usage: {PROGRAM} {script} COMMAND [flags]", ""]
        lines += [f"  {name:20}{call.says}" for name, call in CALLS[script].items()]
        besides = next(iter(CALLS[script].values())).besides
        lines += ["", *besides] if besides else []
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
    lines += call.besides
    return "\n".join((*lines, "", "Example:", f"  {PROGRAM} {call.example}"))
