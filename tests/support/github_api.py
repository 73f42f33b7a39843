"""GitHub as its official OpenAPI description has it.

Each request is checked against the description; each answer is one of its own examples.

Prism was tried for this and is not used: it takes 14 s and 320 MB to start on this description, and
it lets through a misspelt field of a body and a query parameter that GitHub does not know.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from tests.support.http_server import HttpServer, Reply, Request

_FETCH = Path(__file__).parents[2] / "scripts" / "github_api.sh"
_URN = "urn:github"
#: Where an Enterprise Server has the same API; at GitHub itself it is a host of its own.
_ENTERPRISE = "/api/v3"
_REFUSALS = (" 401", " 403", " 404", " 405", " 409", " 410", " 422")
#: Of the text of an operation: media types that it can answer with besides JSON.
_MEDIA = re.compile(r"application/vnd\.github[\w.+-]+")


#: The number of an item in a path.
_INDEX = re.compile(r"\[\d+\]")


class DescriptionMissing(Exception):
    """The description is not in the cache and cannot be fetched."""


#: Other values for fields of an example; for a list, an item for each.
Change = dict[str, Any] | list[dict[str, Any]] | None
#: Instead of a value: the field is left out, as the schema allows.
LEFT_OUT = object()


@dataclass(frozen=True)
class Asked:
    """A request of the adapter, and what it is called in the description."""

    method: str
    template: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class _Reply:
    """The reply instead of the first example of the first good status."""

    status: int = 0
    example: str = ""
    change: Change | Callable[[Asked], Change] = None
    headers: dict[str, str] = field(default_factory=dict)
    times: int | None = None


class Description:
    """The operations of the official description, their rules and their examples."""

    def __init__(self, path: Path) -> None:
        self.all: dict[str, Any] = json.loads(path.read_text())
        resource = DRAFT202012.create_resource(self.all)
        self._registry: Registry[Any] = Registry().with_resource(_URN, resource)
        self._templates: list[tuple[re.Pattern[str], str]] = [
            (re.compile(re.sub(r"\\{[^}]+\\}", "([^/]+)", re.escape(template)) + "$"), template)
            for template in sorted(self.all["paths"], key=lambda t: (t.count("{"), t))
        ]

    @property
    def version(self) -> str:
        info: str = self.all["info"]["version"]
        return info

    def template(self, path: str) -> str:
        """The path as the description writes it: `/repos/{owner}/{repo}`; empty if it has none."""
        for pattern, template in self._templates:
            if pattern.match(path):
                return template
        # A file, a ref or a compared range has slashes of its own.
        for pattern, template in self._templates:
            if template.endswith(("{path}", "{ref}", "{basehead}")):
                wide = re.compile(pattern.pattern.removesuffix("([^/]+)$") + "(.+)$")
                if wide.match(path):
                    return template
        return ""

    def operation(self, method: str, template: str) -> dict[str, Any] | None:
        operation: dict[str, Any] | None = self.all["paths"].get(template, {}).get(method.lower())
        return operation

    def has(self, asked: Asked, status: int) -> bool:
        """True if an operation can answer with a status."""
        operation = self.operation(asked.method, asked.template) or {}
        return str(status) in operation.get("responses", {})

    def resolved(self, value: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in value:
            target: Any = self.all
            for part in value["$ref"].removeprefix("#/").split("/"):
                target = target[part.replace("~1", "/").replace("~0", "~")]
            value = target
        return value

    def problems_of_request(self, asked: Asked) -> list[str]:
        """List the deviations of a request from the description."""
        name = f"{asked.method} {asked.path}"
        if not asked.template:
            return [f"{name}: no such path in the description"]
        operation = self.operation(asked.method, asked.template)
        if operation is None:
            return [f"{name}: {asked.template} has no {asked.method}"]
        problems = [f"{name}: {p}" for p in self._query_problems(asked, operation)]
        return problems + [f"{name}: {p}" for p in self._body_problems(asked, operation)]

    def _query_problems(self, asked: Asked, operation: dict[str, Any]) -> list[str]:
        known = {
            p["name"]: p
            for p in map(self.resolved, operation.get("parameters", []))
            if p["in"] == "query"
        }
        problems = [f"?{name} is missing" for name, p in known.items() if _left_out(p, asked.query)]
        for name, value in asked.query.items():
            if name not in known:
                problems.append(f"?{name} is no parameter of it")
                continue
            schema = known[name]["schema"]
            problems += [
                f"?{name}={value}: {p}" for p in self._wrong(_typed(value, schema), schema)
            ]
        return problems

    def _body_problems(self, asked: Asked, operation: dict[str, Any]) -> list[str]:
        declared = operation.get("requestBody")
        if declared is None:
            return ["it takes no body"] if asked.body is not None else []
        body = self.resolved(declared)
        if asked.body is None:
            return ["its body is missing"] if body.get("required") else []
        schema = self.resolved(body["content"]["application/json"]["schema"])
        problems = self._wrong(asked.body, schema)
        # GitHub drops a field that it does not know without a word: for us that is a mistake.
        if "properties" in schema and isinstance(asked.body, dict):
            more = asked.body.keys() - schema["properties"].keys()
            problems += [f"its body has {name!r}, which is no field of it" for name in sorted(more)]
        return problems

    def answer(self, method: str, template: str, reply: _Reply) -> tuple[int, Any, list[str]]:
        """A status, an example of it, changed where a test says so, and what the change breaks."""
        operation = self.operation(method, template)
        assert operation, (method, template)
        good = sorted(int(code) for code in operation["responses"] if code.startswith("2"))
        status = reply.status or good[0]
        response = operation["responses"].get(str(status))
        assert response is not None, f"{method} {template} never answers {status}"
        content = self.resolved(response).get("content", {}).get("application/json")
        if content is None:
            return status, None, []
        example = self._example(content, reply.example, f"{method} {template} {status}")
        # Some of the official examples are older than the official schema.
        known = self._wrong(example, content["schema"])
        assert not callable(reply.change)
        value = _changed(copy.deepcopy(example), reply.change)
        broken = [p for p in self._wrong(value, content["schema"]) if p not in known]
        return status, value, broken

    def _example(self, content: dict[str, Any], name: str, where: str) -> Any:
        """Return the named example, or the first that conforms, or the first."""
        named = content.get("examples", {})
        chosen = [self.resolved(each)["value"] for key, each in named.items() if name in ("", key)]
        # An example may refer to another example instead of a value.
        values = [
            self.resolved(value)["value"]
            if isinstance(value, dict) and value.keys() == {"$ref"}
            else value
            for value in chosen
        ]
        values += [content["example"]] if "example" in content else []
        if not values and where.endswith(_REFUSALS):
            # The text of a refusal has no example, only a schema.
            values = [{"message": "text"}]
        assert values, f"{where} has no example {name}"
        good = (value for value in values if not self._wrong(value, content["schema"]))
        return next(good, values[0])

    def media(self, method: str, template: str) -> set[str]:
        """The other media types that the text of an operation names."""
        operation = self.operation(method, template) or {}
        return set(_MEDIA.findall(operation.get("description", "")))

    def _wrong(self, value: Any, schema: dict[str, Any]) -> list[str]:
        """The deviations of a value from a schema; the items of a list count as one."""
        validator = _validator()(_rooted(schema), registry=self._registry)
        return [
            f"{_INDEX.sub('[]', e.json_path)} {e.message[:200]}"
            for e in validator.iter_errors(value)
        ]


def _rooted(schema: Any) -> Any:
    """A part of the description whose references lead into the whole."""
    if isinstance(schema, dict):
        return {
            k: f"{_URN}{v}" if k == "$ref" and isinstance(v, str) else _rooted(v)
            for k, v in schema.items()
        }
    if isinstance(schema, list):
        return [_rooted(each) for each in schema]
    return schema


@cache
def _validator() -> type[Validator]:
    """JSON Schema as OpenAPI 3.0 writes it: `nullable` beside a type."""

    def lenient(check: Any) -> Any:
        def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            if instance is None and schema.get("nullable"):
                return
            yield from check(validator, value, instance, schema) or ()

        return checked

    rules = {name: lenient(check) for name, check in Draft202012Validator.VALIDATORS.items()}
    made: type[Validator] = extend(Draft202012Validator, rules)
    return made


def _left_out(parameter: dict[str, Any], query: dict[str, str]) -> bool:
    return bool(parameter.get("required")) and parameter["name"] not in query


def _typed(value: str, schema: dict[str, Any]) -> Any:
    if schema.get("type") == "integer" and value.isdecimal():
        return int(value)
    if schema.get("type") == "boolean" and value in ("true", "false"):
        return value == "true"
    return value


def _changed(value: Any, change: Change) -> Any:
    """An example with other values in some of its fields; a list: one item for each change."""
    if change is None:
        return value
    if isinstance(change, list):
        base = value[0] if value else {}
        return [_changed(copy.deepcopy(base), each) for each in change]
    if isinstance(value, list):
        return [_changed(each, change) for each in value]
    for name, new in change.items():
        if new is LEFT_OUT:
            value.pop(name, None)
            continue
        nested = isinstance(new, dict) and isinstance(value.get(name), dict)
        value[name] = _changed(value[name], new) if nested else new
    return value


@cache
def description() -> Description:
    """The official description; CALORON_GITHUB_API names another file of it."""
    if named := os.environ.get("CALORON_GITHUB_API"):
        return Description(Path(named))
    done = subprocess.run((str(_FETCH),), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = done.stderr.strip().splitlines()
        raise DescriptionMissing(errors[-1] if errors else f"{_FETCH} ended with {done.returncode}")
    return Description(Path(done.stdout.strip()))


class GithubApi(HttpServer):
    """A server on loopback that knows nothing but the description."""

    def __init__(self) -> None:
        self.description = description()
        self.asked: list[Asked] = []
        #: What the adapter asked that GitHub does not have, and examples that break their schema.
        self.problems: list[str] = []
        self._replies: dict[tuple[str, str], list[_Reply]] = {}
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()
        super().__init__(self._answer)

    def reply(self, method: str, template: str, status: int = 0, **more: Any) -> None:
        """Answer an operation with another status, example, or other values in the example."""
        with self._lock:
            made = _Reply(status, **more)
            self._replies.setdefault((method, template), []).insert(0, made)

    def text(self, media: str, text: str) -> None:
        """The replies for media types that the description only names."""
        self._texts[media] = text

    def used(self) -> list[tuple[str, str]]:
        """Every operation that was asked for, once."""
        return sorted({(asked.template, asked.method) for asked in self.asked})

    def _answer(self, request: Request) -> Reply:
        parts = urlsplit(request.path)
        path = parts.path.removeprefix(_ENTERPRISE)
        asked = Asked(
            request.method,
            # A slash within a name is written %2F, as in the description's own clients.
            self.description.template(path),
            unquote(path),
            dict(parse_qsl(parts.query, keep_blank_values=True)),
            request.headers,
            request.json,
        )
        status, headers, text = self._handle(asked)
        content = (text or "").replace("https://api.github.com", f"{self.url}{_ENTERPRISE}")
        return Reply(content, status, {"Content-Type": "application/json", **headers})

    def _handle(self, asked: Asked) -> tuple[int, dict[str, str], str | None]:
        with self._lock:
            self.asked.append(asked)
            wrong = self.description.problems_of_request(asked)
            self.problems += wrong
            if wrong:
                return 400, {}, json.dumps({"message": "; ".join(wrong)})
            accepted = asked.headers.get("accept", "")
            named = self.description.media(asked.method, asked.template) & {accepted}
            for media in named & self._texts.keys():
                return 200, {"Content-Type": media}, self._texts[media]
            reply = self._next_reply(asked)
            if callable(reply.change):
                reply = replace(reply, change=reply.change(asked))
            if reply.headers.get("ETag", "") == asked.headers.get("if-none-match"):
                # The description has no 304 for lists, although GitHub answers so.
                return 304, reply.headers, None
            if reply.status == 403 and not self.description.has(asked, reply.status):
                # Any operation can be refused, declared or not.
                words = {"message": "Resource not accessible by personal access token"}
                return 403, reply.headers, json.dumps(words)
            status, value, broken = self.description.answer(asked.method, asked.template, reply)
            self.problems += [f"the answer to {asked.method} {asked.template}: {p}" for p in broken]
        return status, reply.headers, None if value is None else json.dumps(value)

    def _next_reply(self, asked: Asked) -> _Reply:
        for reply in self._replies.get((asked.method, asked.template), ()):
            if reply.times is None or reply.times > 0:
                if reply.times is not None:
                    reply.times -= 1
                return reply
        return _Reply()
