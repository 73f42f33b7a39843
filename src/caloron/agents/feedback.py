"""Reads the feedback block of an agent's answer, in any of the forms in which agents write it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator

from caloron.domain.model.feedback import Assessment, Feedback

_LOOK_AT = 65_536
_BLOCK = 16_384
_MOST_BLOCKS = 50
_BRACKETS = 500
_ITEMS, _ITEM, _TOOL, _NOTES = 20, 500, 100, 2000

_FIELDS = ("task_clarity", "blockers", "tools_used", "self_assessment", "notes")
_KEYS = (*_FIELDS, "caloron_feedback", "task_id", "agent_role", "tokens_consumed")
_KEY = re.compile(rf"(?im)(?:^|(?<=[{{,]))[\s>*-]*[\"'`*]*\b({'|'.join(_KEYS)})[\"'`*]*[ \t]*[:=]")
_LINE = re.compile(rf"[\s>*-]*[\"'`*]*({'|'.join(_FIELDS)})[\"'`*]*\s*[:=]\s*(.*)", re.IGNORECASE)
#: Lines that begin or end a block.
_BORDER = re.compile(r"(?m)^[ \t>]*(?:`{3,}.*|~{3,}.*|-{3,}|CALORON_FEEDBACK_(?:START|END))[ \t]*$")
_NOTHING = frozenset(("", "none", "null", "~", "n/a", "na", "nothing", "no", "[]", "-", "{}"))
_WORDS: dict[Assessment, tuple[str, ...]] = {
    "failed": ("fail", "error", "not done", "not completed", "unable"),
    "blocked": ("block", "stuck"),
    "partial": ("partial", "incomplete", "mostly"),
    "completed": ("complete", "done", "success", "finished", "ok"),
}


def parse(answer: str) -> Feedback | None:
    """Return the last feedback in an answer, or None; of a broken one the readable part."""
    for block in _blocks(answer[-_LOOK_AT:].replace("\r\n", "\n")):
        fields = _structured(block) or _by_lines(block)
        if any(key in fields for key in _FIELDS):
            return Feedback(
                task_clarity=_clarity(_one(fields.get("task_clarity"))),
                blockers=_several(fields.get("blockers"), _ITEM),
                tools_used=_several(fields.get("tools_used"), _TOOL),
                self_assessment=_assessment(_one(fields.get("self_assessment"))),
                notes=_notes(fields.get("notes")),
            )
    return None


def _blocks(answer: str) -> Iterator[str]:
    """Yield the parts that may be a feedback, the last one first."""
    pieces = _BORDER.split(answer)
    for piece in reversed(pieces[-_MOST_BLOCKS:]):
        keys = list(_KEY.finditer(piece))
        names = {match[1].lower() for match in keys}
        if "caloron_feedback" in names or len(names & set(_FIELDS)) > 1:
            heads = [match for match in keys if match[1].lower() == "caloron_feedback"]
            first = (heads or keys[:1])[-1]
            yield piece[_beginning(piece, first.start(1)) :][:_BLOCK]


def _beginning(piece: str, key: int) -> int:
    """Return where the block of a key begins: at its brace, or at its line."""
    brace = piece.rfind("{", 0, key)
    if brace >= 0 and not piece[brace + 1 : key].strip(" \t\r\n\"'"):
        return brace
    return piece.rfind("\n", 0, key) + 1


def _structured(block: str) -> dict[str, object]:
    """Parse the block as JSON or YAML; empty if it is neither."""
    for load in (_json, _yaml):
        loaded = _mapping(load(block))
        inner = _mapping(loaded.get("caloron_feedback"))
        if any(key in (inner or loaded) for key in _FIELDS):
            return inner or loaded
    return {}


def _json(block: str) -> object:
    try:
        return json.JSONDecoder().raw_decode(block)[0]
    except (ValueError, RecursionError):
        return None


def _yaml(block: str) -> object:
    import yaml

    if block.count("[") + block.count("{") > _BRACKETS:
        return None  # The library's time grows with the square of the depth.
    try:
        # The base loader makes texts of everything: no tag and no date can be wrong.
        return yaml.load(textwrap.dedent(block), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return None


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        return {}
    return {re.sub(r"[\s-]+", "_", str(k).strip().lower()): v for k, v in value.items()}


def _by_lines(block: str) -> dict[str, object]:
    """Read the lines of a broken block: each key with its line and the list under it."""
    fields: dict[str, list[str]] = {}
    key = ""
    for line in block.splitlines():
        match = _LINE.match(line)
        if match:
            key = match[1].lower()
            fields[key] = [match[2]] if match[2].strip() else []
        elif key and line[:1] in (" ", "\t", "-", "*") and line.strip():
            fields[key].append(line)
        else:
            key = ""
    return {key: "\n".join(lines) for key, lines in fields.items()}


def _one(value: object) -> str:
    """Return a single value as text, without quotes, commas and comments around it."""
    if isinstance(value, list):
        value = value[0] if value else ""
    if value is None or isinstance(value, dict | list):
        return ""
    text = re.sub(r"(^|\s)#.*", "", str(value)[:_NOTES])
    return text.strip().strip(",;").strip("\"'`* \t")


def _clarity(text: str) -> int:
    match = re.search(r"\d{1,4}(?:\.\d{1,4})?", text)
    if not match:
        return 0
    number = float(match[0]) / (10 if "%" in text else 1)
    return int(min(max(round(number), 1), 10))


def _assessment(text: str) -> Assessment:
    """Return its assessment of itself; without a known word it is not completed."""
    text = text.lower()
    for name in _WORDS:
        if text.startswith(name):
            return name
    matching = (name for name, words in _WORDS.items() if any(word in text for word in words))
    return next(matching, "partial")


def _several(value: object, longest: int) -> tuple[str, ...]:
    if isinstance(value, str):
        value = _items(value)
    elif isinstance(value, dict):
        value = [f"{k}: {_one(v)}" for k, v in list(value.items())[:_ITEMS]]
    elif not isinstance(value, list):
        value = [_one(value)]
    items = (_item(item)[:longest] for item in value[: 5 * _ITEMS])
    return tuple(item for item in items if item.lower() not in _NOTHING)[:_ITEMS]


def _items(text: str) -> list[str]:
    """Split a list that came as text: in brackets, one in a line, or a single one."""
    text = text[: _ITEMS * _ITEM].strip()
    if text.startswith("["):
        quoted = re.findall(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'", text)
        return [a or b for a, b in quoted] or text.strip("[], ").split(",")
    return [re.sub(r"^\s*[-*]\s+", "", line) for line in text.splitlines()]


def _item(value: object) -> str:
    if isinstance(value, dict):
        value = "; ".join(f"{k}: {_one(v)}" for k, v in list(value.items())[:_ITEMS])
    text = " ".join(str(value)[:_NOTES].split()) if isinstance(value, str | int | float) else ""
    return _unquoted(text)


def _notes(value: object) -> str:
    if isinstance(value, list):
        value = "\n".join(_item(item) for item in value[:_ITEMS])
    text = value if isinstance(value, str) else _one(value)
    text = _unquoted(text[: 2 * _NOTES])
    return "" if text.lower() in _NOTHING else text[:_NOTES]


def _unquoted(text: str) -> str:
    text = text.strip().rstrip(",").strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'`"
    return text[1:-1].strip() if quoted else text
