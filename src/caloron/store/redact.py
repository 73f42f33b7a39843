"""Takes secrets out of what is written down: known values, and what has the form of a key.

Everything is found by a plain search first (a known value, or the few letters every key of a kind
begins with), and only there a regular expression looks closer: ordinary text costs little.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator, Mapping

from caloron.store.secret_forms import KINDS, open_key_block, url_password

__all__ = ["RedactingStream", "Redactor", "forms_of", "learn", "learned_secrets", "secrets_in"]

_SHORTEST = 8
_SHORTEST_LINE = 16
#: What a stream keeps back at most, besides a longer known value or a private key in the making.
_WINDOW = 4096
_KEY_BLOCK = 16_384
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SPACES = (b" ", b"\t", b'"', b",")

#: What a find covers, what of it is replaced, and by what: start, end, from, to, mark.
_Find = tuple[int, int, int, int, bytes]
#: A form of a secret, and what stands in its place.
_Mark = tuple[bytes, bytes]


class Redactor:
    """Replaces secrets in text; a mapping gives known values by name, and the name is shown."""

    def __init__(self, values: Iterable[str] | Mapping[str, str] = ()) -> None:
        named = values.items() if isinstance(values, Mapping) else (("", v) for v in values)
        self._marks = _marks_of(named)

    @property
    def longest(self) -> int:
        """The length of the longest known form."""
        return max((len(form) for form, _ in self._all_marks()), default=0)

    @property
    def longest_over_lines(self) -> int:
        """The length of the longest known form that goes over several lines."""
        return max((len(form) for form, _ in self._all_marks() if b"\n" in form), default=0)

    def text(self, text: str) -> str:
        """The same text with every secret replaced."""
        data = text.encode("utf-8", "surrogatepass")
        clean = self.data(data)
        return text if clean is data else clean.decode("utf-8", "surrogatepass")

    def data(self, data: bytes) -> bytes:
        """The same bytes with every secret replaced."""
        finds = self.finds(data)
        return _replace(data, finds) if finds else data

    def finds(self, data: bytes) -> list[_Find]:
        """What would be replaced, in order."""
        return sorted((*self._known(data), *_by_form(data)))

    def _known(self, data: bytes) -> Iterator[_Find]:
        for form, mark in self._all_marks():
            at = data.find(form)
            while at >= 0:
                end = at + len(form)
                yield at, end, at, end, mark
                at = data.find(form, end)

    def _all_marks(self) -> list[_Mark]:
        return [*self._marks, *_learned.marks] if _learned.marks else self._marks


class _Learned:
    """Secrets that this process has read since it started."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.marks: list[_Mark] = []


_learned = _Learned()


def learn(name: str, value: str) -> None:
    """Hide a value in everything that is redacted from now on, by redactors that exist, too.

    The code that reads a secret calls this: a redactor may be older than the secret.
    """
    if _learned.values.get(name) != value:
        _learned.values = _learned.values | {name: value}
        # An earlier value of the same name stays secret.
        known = {form for form, _ in _learned.marks}
        fresh = [mark for mark in _marks_of([(name, value)]) if mark[0] not in known]
        _learned.marks = [*_learned.marks, *fresh]


def learned_secrets() -> dict[str, str]:
    """The values that were learned, for another process that redacts."""
    return dict(_learned.values)


def _marks_of(named: Iterable[tuple[str, str]]) -> list[_Mark]:
    """Each form of each value with its replacement, the longest first."""
    marks: dict[bytes, bytes] = {}
    for name, value in named:
        mark = f"[redacted {name}]" if name else "[redacted]"
        for form in forms_of(value):
            marks.setdefault(form, mark.encode())
    return sorted(marks.items(), key=lambda item: -len(item[0]))


class RedactingStream:
    """Redacts output as it comes, in constant memory, wherever it is cut into pieces."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._window = max(_WINDOW, redactor.longest)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be written now; the rest could be the beginning of a secret."""
        held = self._held + data
        if len(held) <= self._window and b"\n" not in data and b"\r" not in data:
            self._held = held
            return b""
        finds = self._redactor.finds(held)
        cut = self._cut(held, finds)
        self._held = held[cut:]
        return _replace(held[:cut], [find for find in finds if find[1] <= cut])

    def finish(self) -> bytes:
        """What was kept back, at the end of the output."""
        held, self._held = self._held, b""
        return self._redactor.data(held)

    def _cut(self, held: bytes, finds: list[_Find]) -> int:
        """Where to cut so that no secret is cut, and little is kept."""
        line = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
        cut = max(line, _word_end(held, len(held) - self._window))
        if self._redactor.longest_over_lines:
            cut = min(cut, max(len(held) - self._redactor.longest_over_lines, 0))
        block = open_key_block(held)
        if 0 <= block < cut and len(held) - block < _KEY_BLOCK:
            cut = block
        # A later find may reach back over an earlier one, so the earliest has the last word.
        for start, end, *_ in reversed(finds):
            if start < cut < end:
                cut = start
        return cut


def secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names and values look like secrets, and passwords inside URLs."""
    found: dict[str, str] = {}
    for name, value in environment.items():
        password = url_password(value)
        if len(password) >= _SHORTEST:
            found[name] = password
        elif _names_a_secret(name) and _may_be_secret(value):
            found[name] = value.strip()
    return found


def _names_a_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret, rather than where to find one."""
    upper = name.upper()
    if re.search(r"_(SOCK|SOCKET|FILE|PATH|DIR|HOME|URL|URI|HOST|PORT|NAME|INFO|PID|TYPE)$", upper):
        return False
    words = r"(^|_)(KEY|AUTH|PAT|PASS|PWD)(_|\d*$)|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE"
    if re.search(rf"{words}|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY", upper):
        return not upper.startswith(("XDG_", "GPG_AGENT")) and upper not in ("PWD", "OLDPWD")
    return False


def _may_be_secret(value: str) -> bool:
    """Whether a value is worth hiding: not a path, a number, a switch or a plain word."""
    value = value.strip()
    if len(value) < _SHORTEST or re.match(r"[~.]{0,2}/|[a-z][a-z0-9+.-]*://", value):
        return False
    return not re.fullmatch(r"[\d.,:\s-]+|[A-Za-z]+([ _-][A-Za-z]+)*", value) or (
        len(value) >= 2 * _SHORTEST and " " not in value and not re.search(r"[_-]", value)
    )


def forms_of(value: str) -> set[bytes]:
    """How a value looks when it is printed, quoted, encoded, or one line of it is shown."""
    value = value.strip()
    plain = value.encode("utf-8", "surrogatepass")
    if len(plain) < _SHORTEST or plain == b"redacted":
        return set()
    from json import dumps

    escaped = dumps(value)[1:-1]
    texts = {escaped, dumps(value, ensure_ascii=False)[1:-1], dumps(escaped)[1:-1]}
    forms = {plain, *(text.encode("utf-8", "surrogatepass") for text in texts)}
    forms |= {_url_quoted(plain, safe, space) for safe in (b"", b"/") for space in (b"%20", b"+")}
    forms |= {form for shift in range(3) for form in _base64(plain, shift)}
    lines = plain.split(b"\n") if b"\n" in plain else []
    return forms | {
        line for s in lines if len(line := s.strip()) >= _SHORTEST_LINE and line[:5] != b"-----"
    }


def _base64(plain: bytes, shift: int) -> Iterator[bytes]:
    """The letters that a value becomes in base64 when so many bytes modulo 3 stand before it."""
    coded = binascii.b2a_base64(b"\0" * shift + plain, newline=False).rstrip(b"=")
    # The first and last letters also hold bits of what stands beside it.
    whole = (shift + len(plain)) * 8 // 6
    inner = coded[(0, 2, 3)[shift] : whole]
    if len(inner) >= _SHORTEST:
        yield inner
        yield inner.replace(b"+", b"-").replace(b"/", b"_")


def _url_quoted(plain: bytes, safe: bytes, space: bytes) -> bytes:
    """As in a URL; the library that does this is too large for a process beside every agent."""
    kept = _UNRESERVED | frozenset(safe)
    letters = (bytes((byte,)) if byte in kept else b"%%%02X" % byte for byte in plain)
    return b"".join(letters).replace(b"%20", space)


def _by_form(data: bytes) -> Iterator[_Find]:
    lowered = data.lower()
    for kind in KINDS:
        place = lowered if kind.any_case else data
        if kind.needs not in place:
            continue
        for hint in kind.hints:
            at = place.find(hint)
            while at >= 0:
                match = kind.match(data, at)
                if match is None:
                    at = place.find(hint, at + 1)
                    continue
                yield match.start(), match.end(), match.start(1), match.end(1), b"[redacted]"
                at = place.find(hint, max(match.end(), at + 1))


def _replace(data: bytes, finds: list[_Find]) -> bytes:
    """The data with each find replaced once, where several overlap by the first one's mark."""
    pieces: list[bytes] = []
    at = 0
    for _, _, start, end, mark in sorted(finds, key=lambda find: (find[2], -find[3])):
        if start >= at:
            pieces += (data[at:start], mark)
        at = max(at, end)
    return b"".join((*pieces, data[at:]))


def _word_end(data: bytes, limit: int) -> int:
    """The end of the last word before a place, or the place if there is none near it."""
    if limit <= 0:
        return 0
    return max(data.rfind(c, max(limit - 256, 0), limit) for c in _SPACES) + 1 or limit
