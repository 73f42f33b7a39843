"""Stages that reach outside: files, HTTP, the environment, stored values."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from caloron.errors import StoreError
from caloron.graph.errors import StageFailed
from caloron.graph.json_text import Json, compact
from caloron.graph.runners.http import exchange
from caloron.graph.runtime.protocols import Call
from caloron.graph.stdlib.input_fields import field, mapping, optional, text
from caloron.graph.storage.sqlite import open_database

_SECONDS = 30.0


def read_file(input: Json) -> Json:
    try:
        content = Path(text(input, "path")).read_bytes()
        return {"content": content.decode("utf-8"), "size_bytes": len(content)}
    except (OSError, ValueError) as error:
        raise StageFailed(f"the file cannot be read: {error}") from error


def write_file(input: Json) -> Json:
    path, content = text(input, "path"), text(input, "content").encode("utf-8")
    try:
        Path(path).write_bytes(content)
    except (OSError, ValueError) as error:
        raise StageFailed(f"the file cannot be written: {error}") from error
    return {"bytes_written": len(content), "path": path}


def http_get(input: Json, call: Call) -> Json:
    return _http("GET", input, None, call)


def http_post(input: Json, call: Call) -> Json:
    return _http("POST", input, text(input, "body"), call)


def http_put(input: Json, call: Call) -> Json:
    return _http("PUT", input, text(input, "body"), call)


def _http(method: str, input: Json, body: str | None, call: Call) -> Json:
    """Return any HTTP response, whatever its status."""
    url = text(input, "url")
    if not url.startswith(("http://", "https://")):
        raise StageFailed(f"only http and https can be called, not {url[:60]!r}")
    headers = {} if optional(input, "headers") is None else mapping(input, "headers")
    if body is not None:
        headers = {"Content-Type": optional(input, "content_type") or "application/json", **headers}
    left = call.seconds_left()
    seconds = _SECONDS if left is None else max(min(left, _SECONDS), 0.001)
    data = None if body is None else body.encode("utf-8")
    try:
        status, received_headers, received = exchange(method, url, headers, data, seconds)
    except (OSError, ValueError) as error:
        raise StageFailed(f"{method} {url} failed: {error}") from error
    return {
        "status": status,
        "headers": received_headers,
        "body": received.decode("utf-8", "replace"),
    }


_TABLE = """CREATE TABLE IF NOT EXISTS kv (
  namespace TEXT NOT NULL DEFAULT '', key TEXT NOT NULL, value TEXT NOT NULL,
  PRIMARY KEY (namespace, key));"""
_SET = "INSERT INTO kv VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_GET = "SELECT value FROM kv WHERE namespace = ? AND key = ?"
_DELETE = "DELETE FROM kv WHERE namespace = ? AND key = ?"
_LIST = "SELECT key FROM kv WHERE namespace = ? AND key LIKE ? || '%' ORDER BY key"


class KeyValues:
    """The five kv stages, on a table of the shape that Noether's own database has."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def set(self, input: Json) -> Json:
        self._execute(_SET, input, compact(field(input, "value")))
        return "ok"

    def get(self, input: Json) -> Json:
        rows, _ = self._execute(_GET, input)
        return json.loads(rows[0][0]) if rows else None

    def delete(self, input: Json) -> Json:
        _, changed = self._execute(_DELETE, input)
        return changed > 0

    def exists(self, input: Json) -> Json:
        rows, _ = self._execute(_GET, input)
        return bool(rows)

    def keys(self, input: Json) -> Json:
        """Per cent and underscore in a prefix are wild cards, as in Noether."""
        prefix = optional(input, "prefix")
        asked = {
            "key": prefix if isinstance(prefix, str) else "",
            "namespace": optional(input, "namespace"),
        }
        rows, _ = self._execute(_LIST, asked)
        return [row[0] for row in rows]

    def _execute(self, statement: str, inputs: Json, *more: str) -> tuple[list[Any], int]:
        space = optional(inputs, "namespace")
        values = (space if isinstance(space, str) else "", text(inputs, "key"), *more)
        if self._directory is None:
            raise StageFailed("no directory was given in which values can be kept")
        try:
            # Opened for each call, because nothing reports the last call.
            with (
                closing(open_database(self._directory / "kv.db", _TABLE)) as database,
                database.transaction("graph.kv") as connection,
            ):
                cursor = connection.execute(statement, values)
                return cursor.fetchall(), cursor.rowcount
        except (StoreError, OSError) as error:
            raise StageFailed(f"the store of values cannot be used: {error}") from error
