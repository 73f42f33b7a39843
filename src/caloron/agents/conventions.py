"""The organisation's conventions: read from files, merged, and part of every agent's prompt.

`organisation.yml` in Caloron's home applies to all projects; `caloron.yml` at the root of a
repository's main branch, or in the project's workspace, overrides it key by key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from caloron.errors import UsageError

ORGANISATION_FILE = "organisation.yml"
PROJECT_FILE = "caloron.yml"
ENVIRONMENT = "CALORON_CONVENTIONS"

_MAX_BYTES = 64 * 1024
_DEEPEST = 20
_TEXT, _NAMES = "text", "a list of names"
#: The sections in their order in prompts, with the keys of each; none: any keys, with texts.
_SECTIONS: dict[str, dict[str, str]] = {
    "package_naming": {"style": _TEXT, "prefix": _TEXT},
    "imports": {"namespace": _TEXT, "style": _TEXT},
    "repository_layout": {},
    "license": {"header": _TEXT},
    "dependencies": {"disallow": _NAMES},
    "commit_message": {"format": _TEXT},
    "branch_naming": {"format": _TEXT},
}
#: Besides its own errors, the YAML library raises these for a value that does not fit its tag.
_UNFIT = (ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)

EXAMPLE = """\
# The conventions of all projects of this organisation. Every part may be left out, and a project's
# own caloron.yml may override it. It is part of every prompt; tests and people enforce it.
organisation: Example Ltd
package_naming:
  style: kebab-case
  prefix: example-
imports:
  namespace: example
  style: absolute
repository_layout:
  source: src/
  tests: tests/
license:
  header: "SPDX-License-Identifier: Apache-2.0"
dependencies:
  disallow: [left-pad]
commit_message:
  format: "area: what changes"
branch_naming:
  format: "agent/<task>"
"""


class Conventions(msgspec.Struct, frozen=True, kw_only=True):
    """The merged conventions; `extra` has the unknown sections."""

    organisation: str = ""
    sections: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    #: Markdown from the environment, unchanged.
    added: str = ""
    #: The files and variables that are not empty.
    sources: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.organisation or self.sections or self.extra or self.added)


def load(home: Path, project_yaml: str | None = None, work_dir: Path | None = None) -> Conventions:
    """Load the conventions of a project; an unknown part is a warning, not a failure.

    Older versions read the project's file in `work_dir`; the repository's own file wins over it.
    `UsageError` if a file is not YAML, cannot be read, or is no mapping.
    """
    warnings: list[str] = []
    organisation = _checked(*_read(home / ORGANISATION_FILE), warnings)
    beside = _checked(*_read(work_dir / PROJECT_FILE), warnings) if work_dir else {}
    project = _checked(project_yaml or "", PROJECT_FILE, warnings)
    merged = _merge(_merge(organisation, beside), project)
    added = os.environ.get(ENVIRONMENT, "").strip()
    sources = (
        (ORGANISATION_FILE, organisation),
        (str(work_dir and work_dir / PROJECT_FILE), beside),
        (PROJECT_FILE, project),
        (ENVIRONMENT, added),
    )
    sections = {name: merged[name] for name in _SECTIONS if merged.get(name)}
    extra = {k: v for k, v in merged.items() if k not in _SECTIONS and k != "organisation"}
    return Conventions(
        organisation=merged.get("organisation", ""),
        sections=sections,
        extra=extra,
        added=added,
        sources=tuple(name for name, content in sources if content),
        warnings=tuple(warnings),
    )


def render(conventions: Conventions) -> str:
    """Return the conventions as Markdown for agents; empty if there are none."""
    if conventions.is_empty:
        return ""
    parts = ["## Organisation Conventions"]
    if conventions.organisation:
        parts.append(f"Organisation: {conventions.organisation}")
    for name, section in conventions.sections.items():
        parts.append(f"### {name.replace('_', ' ').capitalize()}\n\n{_lines(section)}")
    if conventions.extra:
        parts.append(f"### Other\n\n{_lines(conventions.extra)}")
    return "\n\n".join((*parts, conventions.added)).strip()


def _read(path: Path) -> tuple[str, str]:
    """Return the text of a file that may be missing, and its name in messages."""
    try:
        data = path.read_bytes() if path.exists() else b""
        return data.decode("utf-8-sig"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the conventions in {path} cannot be read: {error}",
            hint="make it a readable file in UTF-8, or remove it",
        ) from error


def _checked(text: str, file: str, warnings: list[str]) -> dict[str, Any]:
    """Return the content of a file without the parts of a wrong type."""
    kept: dict[str, Any] = {}
    for key, value in _parse(text, file).items():
        name, where = str(key), f"{file}: `{key}`"
        known = _SECTIONS.get(name)
        if value is None:
            continue
        if name == "organisation":
            kept[name] = _fitting(value, _TEXT, where, warnings)
        elif known is None:
            warnings.append(f"{where} is not a known section; agents read it unchanged")
            kept[name] = _plain(value)
        elif not isinstance(value, dict):
            example = next(iter(known), "source")
            warnings.append(f"{where} is left out: expected a mapping, e.g. `{example}: …`")
        else:
            others = "" if known else _TEXT
            kept[name] = _filled({
                str(k): _fitting(v, known.get(k, others), f"{file}: `{name}.{k}`", warnings)
                for k, v in value.items()
            })  # fmt: skip
    return _filled(kept)


def _filled(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if value not in (None, "", {})}


def _fitting(value: Any, expected: str, where: str, warnings: list[str]) -> Any:
    """Return a value in the expected form; None, with a warning, if it has another one."""
    if value is None:
        return None
    if not expected:
        warnings.append(f"{where} is not known; agents read it unchanged")
        return _plain(value)
    if expected == _NAMES:
        if isinstance(value, str):
            warnings.append(f"{where} is read as a list of one: expected {_NAMES}")
            value = [value]
        if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
            # An empty list counts too: it allows what the organisation disallows.
            return [text for item in value if (text := _scalar(item))]
    elif not isinstance(value, dict | list):
        return _scalar(value)
    warnings.append(f"{where} is left out: expected {expected}")
    return None


def _parse(text: str, file: str) -> dict[Any, Any]:
    import yaml

    hint = "correct the file; nothing was started"
    if len(text) > _MAX_BYTES:
        raise UsageError(f"{file} is larger than {_MAX_BYTES // 1024} KB", hint=hint)
    try:
        _refuse_bombs(text, file)
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{file}{where} is not YAML: {error.problem}", hint=hint) from error
    except (yaml.YAMLError, *_UNFIT) as error:
        reason = str(error).splitlines()[0] if str(error) else "nested too deeply"
        raise UsageError(f"{file} is not YAML: {reason}", hint=hint) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{file}, line 1: expected `section: …` lines", hint=hint)
    return content


def _refuse_bombs(text: str, file: str) -> None:
    """Refuse aliases and deep nesting: a few bytes could expand beyond the memory."""
    import yaml

    hint = "write it out plainly; nothing was started"
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        where = f"{file}, line {event.start_mark.line + 1}" if event.start_mark else file
        if isinstance(event, yaml.AliasEvent):
            raise UsageError(f"{where}: aliases (`*{event.anchor}`) are not allowed", hint=hint)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise UsageError(f"{where} is nested too deeply", hint=hint)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge two mappings; the second wins key by key, and lists are replaced whole."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        deep = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = _merge(merged[key], value) if deep else value
    return merged


def _plain(value: Any) -> Any:
    """Return any value as texts, lists and mappings."""
    if isinstance(value, dict):
        return {_scalar(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value).strip()


def _lines(content: dict[str, Any], indent: str = "") -> str:
    return "\n".join(line for key, value in content.items() for line in _line(key, value, indent))


def _line(key: str, value: Any, indent: str) -> Iterator[str]:
    label = f"{indent}- {key}:"
    if isinstance(value, dict):
        yield label
        yield _lines(value, indent + "  ")
    elif isinstance(value, list):
        flat = all(isinstance(item, str) and "\n" not in item for item in value)
        if flat:
            yield f"{label} {', '.join(f'`{item}`' for item in value) or '(none)'}"
            return
        yield label
        for number, item in enumerate(value, 1):
            yield from _line(str(number), item, indent + "  ")
    elif "\n" in value:
        # A licence header is copied as it is, so it keeps its lines.
        yield label
        yield from (f"{indent}      {line}" for line in value.splitlines())
    else:
        yield f"{label} {value}"
