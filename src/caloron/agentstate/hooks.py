"""The hooks that a host calls in the life of an agent, as an API and by subprocess.

By subprocess: `caloron agent-state hook NAME`, with `MF_INSTANCE_DIR`, `MF_AGENT_NAME`, `MF_HOST`,
`MF_TRIGGER_TYPE` and `MF_TRIGGER_PAYLOAD_JSON` in the environment; 0 is success.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from caloron.agentstate.database import require_database
from caloron.agentstate.instance import AgentInstance
from caloron.agentstate.records import Enqueued, Event, Replayed, WorkItem
from caloron.errors import NotFound, UsageError

#: The first of these that a message has names the work item.
_IDS = ("id", "work_item_id", "message_id", "correlation_id")
_KINDS = ("kind", "capability")


class Hooks:
    """The hooks of one agent."""

    def __init__(self, instance: AgentInstance, agent: str | None = None) -> None:
        self._instance = instance
        self._agent = agent

    def on_start(self, *, threshold_ms: int = 0) -> list[Replayed]:
        """Record the start; return the work items to take up again."""
        items = self._instance.work_items.replay(threshold_ms=threshold_ms)
        details = {"replay": len(items), "stale": sum(item.why == "stale" for item in items)}
        self._instance.events.append("boot", details, actor=self._agent)
        return items

    def on_message_accepted(
        self, item: str, kind: str, payload: dict[str, Any] | str, *, owner: str | None = None
    ) -> Enqueued:
        """Enqueue a message as a work item; a second delivery is the same item."""
        return self._instance.work_items.enqueue(item, kind, payload, owner=owner or self._agent)

    def on_state_transition(self) -> Path:
        """Write the dashboard after a change."""
        return self._instance.regenerate_dashboard()

    def on_message_replied(self, payload: dict[str, Any] | str, item: str | None = None) -> Event:
        return self._append("message_sent", payload, item)

    def on_shutdown(self, payload: dict[str, Any] | str = "{}") -> Event:
        return self._append("shutdown", payload)

    def _append(self, type: str, payload: dict[str, Any] | str, item: str | None = None) -> Event:
        event = self._instance.events.append(type, payload, actor=self._agent, item=item)
        assert event is not None, "only an event with a key can exist already"
        return event

    def on_error(self, item: str, reason: str) -> WorkItem:
        """Resolve a work item as failed, with the reason."""
        return self._instance.work_items.resolve(item, "failed", notes=reason)


def run_hook(name: str, environment: Mapping[str, str], where: Path) -> Iterator[Any]:
    """Run a hook as a host calls it by subprocess; yield the lines of the answer."""
    payload = environment.get("MF_TRIGGER_PAYLOAD_JSON") or "{}"
    message = _message(payload)
    agent = _first(dict(environment), ("MF_AGENT_NAME",)) or None
    item = _first(message, _IDS)
    # Refuse wrong input before anything is opened or created.
    if name in ("onMessageAccepted", "onError") and not item:
        raise UsageError(
            "the message has no id", hint=f"MF_TRIGGER_PAYLOAD_JSON needs one of {', '.join(_IDS)}"
        )
    if name != "onMessageAccepted":
        require_database(where)
    elif not where.is_dir():
        raise NotFound(f"there is no folder {where}", hint="set MF_INSTANCE_DIR, or scaffold it")
    with AgentInstance(where) as instance:
        hooks = Hooks(instance, agent)
        if name == "onStart":
            for again in hooks.on_start():
                yield {"row": again.item._asdict(), "why": again.why, "attempt": again.attempt}
        elif name == "onMessageAccepted":
            kind = _first(message, _KINDS) or _first(dict(environment), ("MF_TRIGGER_TYPE",))
            done = hooks.on_message_accepted(item, kind or "message", payload)
            details = {"inserted": done.inserted, "row": done.item._asdict()}
            yield details | ({"differs": list(done.differs)} if done.differs else {})
        elif name == "onStateTransition":
            yield str(hooks.on_state_transition())
        elif name == "onError":
            reason = _first(message, ("reason", "error", "notes")) or "failed"
            yield hooks.on_error(item, reason)._asdict()
        elif name == "onMessageReplied":
            yield hooks.on_message_replied(payload, item or None)._asdict()
        else:
            yield hooks.on_shutdown(payload)._asdict()


def _message(text: str) -> dict[str, Any]:
    try:
        message = json.loads(text.encode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"MF_TRIGGER_PAYLOAD_JSON is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise UsageError("MF_TRIGGER_PAYLOAD_JSON must be a JSON object")
    return message


def _first(message: dict[str, Any], names: tuple[str, ...]) -> str:
    """Return the value of the first of these keys in the message, as valid UTF-8."""
    value = next((str(message[name]) for name in names if message.get(name)), "")
    return value.encode("utf-8", "replace").decode()
