"""All decisions of a tick, as `execute_actions` takes them."""

from __future__ import annotations

from caloron.graph.held import opened
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone

_PASSED_ON = ("repo", "token_env", "shell_url", "host", "sprint_id")


def execute(given: Json) -> Json:
    return {
        "dag_actions": (opened(given.get("eval")) or {}).get("actions") or [],
        "supervisor_actions": (opened(given.get("supervisor")) or {}).get("actions") or [],
        **{name: given.get(name) or "" for name in _PASSED_ON},
    }


if __name__ == "__main__":
    alone(execute)
