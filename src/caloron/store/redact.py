"""Replaces secrets in text: known values, and texts with the form of a key.

A plain search finds known values and the first letters of each kind of key; a regular expression is
used only there, so ordinary text is cheap.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator, Mapping

_SHORTEST = 8
_SHORTEST_LINE = 16
#: The most a stream buffers, besides a longer known value or an unfinished private key.
_WINDOW = 4096
_KEY_BLOCK = 16_384
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SPACES = (b" ", b"\t", b'"', b",")

#: A match, the part of it that is replaced, and the replacement: start, end, from, to, mark.
_Find = tuple[int, int, int, int, bytes]
#: A form of a secret, and its replacement.
_Mark = tuple[bytes, bytes]


class Redactor:
    """Replaces secrets in text; a mapping gives known values by name, and the name is shown."""

    def __init__(self, values: Iterable[str] | Mapping[str, str] = ()) -> None:
        named = values.items() if isinstance(values, Mapping) else (("", v) for v in values)
        self._marks = _marks_of(named)

    @property
    def longest(self) -> int:
        """Return the length of the longest known form."""
        return max((len(form) for form, _ in self._all_marks()), default=0)

    @property
    def longest_over_lines(self) -> int:
        """Return the length of the longest known form with several lines."""
        return max((len(form) for form, _ in self._all_marks() if b"\n" in form), default=0)

    def text(self, text: str) -> str:
        """Return the text with every secret replaced."""
        data = text.encode("utf-8", "surrogatepass")
        clean = self.data(data)
        return text if clean is data else clean.decode("utf-8", "surrogatepass")

    def data(self, data: bytes) -> bytes:
        finds = self.finds(data)
        return _replace(data, finds) if finds else data

    def finds(self, data: bytes) -> list[_Find]:
        """Return the matches in order."""
        return sorted((*self._known(data), *_by_form(data)))

    def _known(self, data: bytes) -> Iterator[_Find]:
        for form, mark in self._all_marks():
            at = data.find(form)
            while at >= 0:
                end = at + len(form)
                yield at, end, at, end, mark
                at = data.find(form, end)

    def _all_marks(self) -> list[_Mark]:
        return [*self._marks, *_learned_marks] if _learned_marks else self._marks


#: Secrets that this process has read since it started, by name, and their forms.
_learned: dict[str, str] = {}
_learned_marks: list[_Mark] = []


def learn(name: str, value: str) -> None:
    """Redact a value from now on, also in redactors that exist already.

    The code that reads a secret calls this: a redactor may be older than the secret.
    """
    if _learned.get(name) != value:
        _learned[name] = value
        # An earlier value of the same name stays secret.
        known = {form for form, _ in _learned_marks}
        fresh = [mark for mark in _marks_of([(name, value)]) if mark[0] not in known]
        _learned_marks.extend(fresh)


def learned_secrets() -> dict[str, str]:
    """Return the learned values, for another process that redacts."""
    return dict(_learned)


def _marks_of(named: Iterable[tuple[str, str]]) -> list[_Mark]:
    """Return each form of each value with its replacement, the longest first."""
    marks: dict[bytes, bytes] = {}
    for name, value in named:
        mark = f"[redacted {name}]" if name else "[redacted]"
        for form in forms_of(value):
            marks.setdefault(form, mark.encode())
    return sorted(marks.items(), key=lambda item: -len(item[0]))


class RedactingStream:
    """Redacts a stream in constant memory, however it is cut into pieces."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._window = max(_WINDOW, redactor.longest)
        self._buffer = b""

    def feed(self, data: bytes) -> bytes:
        """Return the part that may be written; the rest could be the start of a secret."""
        buffer = self._buffer + data
        if len(buffer) <= self._window and b"\n" not in data and b"\r" not in data:
            self._buffer = buffer
            return b""
        finds = self._redactor.finds(buffer)
        cut = self._cut(buffer, finds)
        self._buffer = buffer[cut:]
        return _replace(buffer[:cut], [find for find in finds if find[1] <= cut])

    def finish(self) -> bytes:
        """Return the rest at the end of the stream."""
        buffer, self._buffer = self._buffer, b""
        return self._redactor.data(buffer)

    def _cut(self, buffer: bytes, finds: list[_Find]) -> int:
        """Return where to cut so that no secret is cut and little stays in the buffer."""
        line = max(buffer.rfind(b"\n"), buffer.rfind(b"\r")) + 1
        cut = max(line, _word_end(buffer, len(buffer) - self._window))
        if self._redactor.longest_over_lines:
            cut = min(cut, max(len(buffer) - self._redactor.longest_over_lines, 0))
        block = _open_key_block(buffer)
        if 0 <= block < cut and len(buffer) - block < _KEY_BLOCK:
            cut = block
        # A later match may overlap an earlier one, so the earliest is applied last.
        for start, end, *_ in reversed(finds):
            if start < cut < end:
                cut = start
        return cut


def secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables whose names and values look like secrets, and passwords in URLs."""
    secrets: dict[str, str] = {}
    for name, value in environment.items():
        password = _url_password(value)
        if len(password) >= _SHORTEST:
            secrets[name] = password
        elif _names_a_secret(name) and _may_be_secret(value):
            secrets[name] = value.strip()
    return secrets


def own_redactor(environment: Mapping[str, str]) -> Redactor:
    """Return a redactor for the secrets in a process's own environment."""
    # We name this variable, so its value is a secret whatever it looks like.
    token = environment.get("CALORON_SHELL_TOKEN", "")
    return Redactor(secrets_in(environment) | ({"CALORON_SHELL_TOKEN": token} if token else {}))


def _names_a_secret(name: str) -> bool:
    """True if a variable of this name contains a secret, not the place of one."""
    upper = name.upper()
    if re.search(r"_(SOCK|SOCKET|FILE|PATH|DIR|HOME|URL|URI|HOST|PORT|NAME|INFO|PID|TYPE)$", upper):
        return False
    words = r"(^|_)(KEY|AUTH|PAT|PASS|PWD)(_|\d*$)|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE"
    if re.search(rf"{words}|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY", upper):
        return not upper.startswith(("XDG_", "GPG_AGENT")) and upper not in ("PWD", "OLDPWD")
    return False


def _may_be_secret(value: str) -> bool:
    """False for a path, a number, a switch or a plain word."""
    value = value.strip()
    if len(value) < _SHORTEST or re.match(r"[~.]{0,2}/|[a-z][a-z0-9+.-]*://", value):
        return False
    return not re.fullmatch(r"[\d.,:\s-]+|[A-Za-z]+([ _-][A-Za-z]+)*", value) or (
        len(value) >= 2 * _SHORTEST and " " not in value and not re.search(r"[_-]", value)
    )


def forms_of(value: str) -> set[bytes]:
    """Return a value as it is printed, quoted or encoded, and each long line of it."""
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
    """Return a value in base64, if `shift` bytes modulo 3 precede it."""
    coded = binascii.b2a_base64(b"\0" * shift + plain, newline=False).rstrip(b"=")
    # The first and last letters also contain bits of the neighbouring bytes.
    whole = (shift + len(plain)) * 8 // 6
    inner = coded[(0, 2, 3)[shift] : whole]
    if len(inner) >= _SHORTEST:
        yield inner
        yield inner.replace(b"+", b"-").replace(b"/", b"_")


def _url_quoted(plain: bytes, safe: bytes, space: bytes) -> bytes:
    """Quote as in a URL; `urllib` is too large for a process beside every agent."""
    kept = _UNRESERVED | frozenset(safe)
    letters = (bytes((byte,)) if byte in kept else b"%%%02X" % byte for byte in plain)
    return b"".join(letters).replace(b"%20", space)


def _by_form(data: bytes) -> Iterator[_Find]:
    lowered = data.lower()
    for kind in _KINDS:
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
    """Replace each match once; where several overlap, by the mark of the first."""
    pieces: list[bytes] = []
    at = 0
    for _, _, start, end, mark in sorted(finds, key=lambda find: (find[2], -find[3])):
        if start >= at:
            pieces += (data[at:start], mark)
        at = max(at, end)
    return b"".join((*pieces, data[at:]))


def _word_end(data: bytes, limit: int) -> int:
    """Return the end of the last word before `limit`, or `limit` if none is near."""
    if limit <= 0:
        return 0
    return max(data.rfind(c, max(limit - 256, 0), limit) for c in _SPACES) + 1 or limit


# The forms of keys, tokens and private keys.

#: Not preceded by a letter, except by that of an escaped line break.
_ALONE = rb"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))"


class _Kind:
    """One kind of secret: words to search for, and an expression that must match there."""

    __slots__ = ("_compiled", "_pattern", "any_case", "hints", "needs")

    def __init__(
        self, hints: tuple[bytes, ...], pattern: bytes, needs: bytes, *, any_case: bool = False
    ) -> None:
        self.hints = hints
        #: A character that is in every hint: the fastest search.
        self.needs = needs
        self.any_case = any_case
        self._pattern = pattern
        self._compiled: re.Pattern[bytes] | None = None

    def match(self, data: bytes, at: int) -> re.Match[bytes] | None:
        """Return the match at a position, with the secret part as group 1."""
        # Compiled on first use: most processes never need most kinds.
        if self._compiled is None:
            self._compiled = re.compile(self._pattern, re.IGNORECASE if self.any_case else 0)
        return self._compiled.match(data, at)


def _token(hints: tuple[bytes, ...], pattern: bytes, needs: bytes) -> _Kind:
    """Return the kind of a token with a fixed prefix."""
    return _Kind(hints, _ALONE + b"(" + pattern + b")(?![A-Za-z0-9])", needs)


_ARMOUR = rb"-----BEGIN [A-Z0-9 ]{0,40}+(?<=PRIVATE KEY)(?: BLOCK)?-----"
_BETWEEN = rb"(?:\s|\\{1,3}[nrt]|[\"',|>#+-](?!----))"
_HEADER = rb"(?:Proc-Type|DEK-Info|Comment|Version|Hash|Charset):[^\n\\]{0,100}"
#: A line of the key, and not the name of the next JSON field.
_LINE = rb"[A-Za-z0-9+/]{16,1024}+={0,2}+(?!\\{0,3}[\"'][ \t]*:)"
_BODY = rb"(?:" + _BETWEEN + rb"{1,40}+(?:" + _HEADER + rb"|" + _LINE + rb"))"
_REST = rb"(?:" + _BETWEEN + rb"{0,40}[A-Za-z0-9+/=]{0,15})"
_END = rb"-----END [A-Z0-9 ]{0,40}-----"

_PRIVATE_KEY = rb"(" + _ARMOUR + _BODY + rb"{1,400}+(?:" + _REST + rb"{0,2}" + _END + rb")?)"
_UNFINISHED = _ARMOUR + _BODY + rb"{0,400}+" + _REST + rb"{0,2}" + rb"-{0,5}[A-Z0-9 -]{0,50}\Z"

_NAMED = (
    # The rest of the name, the assignment, and a quote before the value.
    rb"[A-Za-z0-9_-]{0,40}+\\{0,3}+[\"'`]?+[ \t]{0,8}+(?::=|=>|[:=])[ \t]{0,8}+\\{0,3}+[\"'`]?+"
)
_RANDOM = (
    # Hexadecimal; or at least 20 characters with capitals, small letters and two digits.
    rb"((?!sha\d{1,3}-)(?:[0-9a-f]{32,128}+|"
    rb"(?=[a-z0-9+/_~-]{0,60}[A-Z])(?=[A-Z0-9+/_~-]{0,60}[a-z])(?=(?:[A-Za-z+/_~-]{0,40}\d){2})"
    rb"[A-Za-z0-9+/_~-]{20,200}+={0,2}))(?![A-Za-z0-9_(\[.@/])"
)

#: Names of secrets, from the hint on.
_NAMES = rb"(?:token|secret|passw|credential|apikey|api-key|accesskey|(?<=api|ess|ate|ret)_key)"

_KINDS = (
    _token(
        (b"sk-",),
        rb"sk-(?:ant-[A-Za-z0-9_-]{8,1024}+"
        rb"|(?:[a-z0-9]{2,10}-){0,3}[A-Za-z0-9_]{20}[A-Za-z0-9_-]{0,1024}+)",
        b"-",
    ),
    _token((b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"), rb"gh[pousr]_[A-Za-z0-9]{20,255}+", b"_"),
    _token((b"github_pat_",), rb"github_pat_[A-Za-z0-9_]{20,255}+", b"_"),
    _token((b"glpat-",), rb"glpat-[A-Za-z0-9_-]{16,255}+", b"-"),
    _token((b"xox",), rb"xox[abeoprs]-[A-Za-z0-9-]{10,255}+", b"x"),
    _token((b"AKIA", b"ASIA"), rb"A[KS]IA[A-Z0-9]{16}", b"I"),
    _token((b"AIza",), rb"AIza[A-Za-z0-9_-]{35}", b"z"),
    _token((b"npm_",), rb"npm_[A-Za-z0-9]{36}", b"_"),
    _token((b"hf_",), rb"hf_[A-Za-z0-9]{30,64}+", b"_"),
    _token((b"eyJ",), rb"eyJ[\w-]{8,1024}+\.[\w-]{8,2048}+\.[\w-]{8,1024}+", b"J"),
    _Kind((b"-----BEGIN ",), _PRIVATE_KEY, b"-"),
    _Kind(
        (b"://",),
        rb"://(?:[^\s/:@\"'<>\[\]]{0,128}+:(?![${])|(?=[A-Za-z0-9_-]{20,255}+@))"
        rb"([^\s/@\"'<>\[\]]{1,255}+)@",
        b"@",
    ),
    _Kind(
        (b"authorization",),
        rb"authorization\\{0,3}+[\"']?+[ \t]{0,8}+[:=][ \t]{0,8}+\\{0,3}+[\"']?+"
        rb"(?:bearer|basic|token)[ \t]{1,8}([A-Za-z0-9._~+/-]{8,1024}+={0,2})",
        b"z",
        any_case=True,
    ),
    _Kind(
        (b"bearer ",),
        rb"bearer[ \t]{1,8}((?=[A-Za-z._~+/-]{0,60}\d)[A-Za-z0-9._~+/-]{20,1024}+={0,2})",
        b" ",
        any_case=True,
    ),
    _Kind(
        (
            b"token",
            b"secret",
            b"passw",
            b"credential",
            b"apikey",
            b"api-key",
            b"accesskey",
            b"_key",
        ),
        _NAMES + _NAMED + rb"(?-i:" + _RANDOM + rb")",
        b"",
        any_case=True,
    ),
    _Kind(
        (b"secret_access_key", b"secretaccesskey"),
        rb"secret_?access_?key" + _NAMED + rb"([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])",
        b"y",
        any_case=True,
    ),
)


def _open_key_block(data: bytes) -> int:
    """Return the start of a private key that is not finished at the end of the data, or -1."""
    at = data.rfind(b"-----BEGIN ")
    return at if at >= 0 and re.compile(_UNFINISHED).match(data, at) else -1


def _url_password(value: str) -> str:
    """Return the password in a URL, or an empty string."""
    match = re.search(r"://[^\s/:@]*:([^\s/@]+)@", value)
    return match[1] if match else ""
