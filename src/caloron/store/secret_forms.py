"""What keys, tokens and private keys look like, one kind after the other."""

from __future__ import annotations

import re

__all__ = ["KINDS", "Kind", "open_key_block", "url_password"]

#: No letter before it, unless that letter is the end of an escaped line break.
_ALONE = rb"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))"


class Kind:
    """One kind of secret: words to look for, and an expression that must match from there."""

    __slots__ = ("_compiled", "_pattern", "any_case", "hints", "needs")

    def __init__(
        self, hints: tuple[bytes, ...], pattern: bytes, needs: bytes, *, any_case: bool = False
    ) -> None:
        self.hints = hints
        #: A character that is in every one of them: the quickest thing to look for.
        self.needs = needs
        self.any_case = any_case
        self._pattern = pattern
        self._compiled: re.Pattern[bytes] | None = None

    def match(self, data: bytes, at: int) -> re.Match[bytes] | None:
        """What is there, its secret part as group 1."""
        # Compiled where the first word of this kind turns up: most processes never need most.
        if self._compiled is None:
            self._compiled = re.compile(self._pattern, re.IGNORECASE if self.any_case else 0)
        return self._compiled.match(data, at)


def _token(hints: tuple[bytes, ...], pattern: bytes, needs: bytes) -> Kind:
    """A token that is known by its first letters."""
    return Kind(hints, _ALONE + b"(" + pattern + b")(?![A-Za-z0-9])", needs)


_ARMOUR = rb"-----BEGIN [A-Z0-9 ]{0,40}+(?<=PRIVATE KEY)(?: BLOCK)?-----"
_BETWEEN = rb"(?:\s|\\{1,3}[nrt]|[\"',|>#+-](?!----))"
_HEADER = rb"(?:Proc-Type|DEK-Info|Comment|Version|Hash|Charset):[^\n\\]{0,100}"
#: A line of the key; not the name of the next field, where the key was cut off.
_LINE = rb"[A-Za-z0-9+/]{16,1024}+={0,2}+(?!\\{0,3}[\"'][ \t]*:)"
_BODY = rb"(?:" + _BETWEEN + rb"{1,40}+(?:" + _HEADER + rb"|" + _LINE + rb"))"
_REST = rb"(?:" + _BETWEEN + rb"{0,40}[A-Za-z0-9+/=]{0,15})"
_END = rb"-----END [A-Z0-9 ]{0,40}-----"

_PRIVATE_KEY = rb"(" + _ARMOUR + _BODY + rb"{1,400}+(?:" + _REST + rb"{0,2}" + _END + rb")?)"
_UNFINISHED = _ARMOUR + _BODY + rb"{0,400}+" + _REST + rb"{0,2}" + rb"-{0,5}[A-Z0-9 -]{0,50}\Z"

_NAMED = (
    # The rest of the name, how the value is given, and what may stand before it.
    rb"[A-Za-z0-9_-]{0,40}+\\{0,3}+[\"'`]?+[ \t]{0,8}+(?::=|=>|[:=])[ \t]{0,8}+\\{0,3}+[\"'`]?+"
)
_RANDOM = (
    # Hexadecimal, or capitals, small letters and two digits among at least 20.
    rb"((?!sha\d{1,3}-)(?:[0-9a-f]{32,128}+|"
    rb"(?=[a-z0-9+/_~-]{0,60}[A-Z])(?=[A-Z0-9+/_~-]{0,60}[a-z])(?=(?:[A-Za-z+/_~-]{0,40}\d){2})"
    rb"[A-Za-z0-9+/_~-]{20,200}+={0,2}))(?![A-Za-z0-9_(\[.@/])"
)

#: The names of secrets, seen from the word that is looked for.
_NAMES = rb"(?:token|secret|passw|credential|apikey|api-key|accesskey|(?<=api|ess|ate|ret)_key)"

KINDS = (
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
    Kind((b"-----BEGIN ",), _PRIVATE_KEY, b"-"),
    Kind(
        (b"://",),
        rb"://(?:[^\s/:@\"'<>\[\]]{0,128}+:(?![${])|(?=[A-Za-z0-9_-]{20,255}+@))"
        rb"([^\s/@\"'<>\[\]]{1,255}+)@",
        b"@",
    ),
    Kind(
        (b"authorization",),
        rb"authorization\\{0,3}+[\"']?+[ \t]{0,8}+[:=][ \t]{0,8}+\\{0,3}+[\"']?+"
        rb"(?:bearer|basic|token)[ \t]{1,8}([A-Za-z0-9._~+/-]{8,1024}+={0,2})",
        b"z",
        any_case=True,
    ),
    Kind(
        (b"bearer ",),
        rb"bearer[ \t]{1,8}((?=[A-Za-z._~+/-]{0,60}\d)[A-Za-z0-9._~+/-]{20,1024}+={0,2})",
        b" ",
        any_case=True,
    ),
    Kind(
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
    Kind(
        (b"secret_access_key", b"secretaccesskey"),
        rb"secret_?access_?key" + _NAMED + rb"([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])",
        b"y",
        any_case=True,
    ),
)


def open_key_block(data: bytes) -> int:
    """Where a private key begins that goes on to the end of the data, or -1."""
    at = data.rfind(b"-----BEGIN ")
    return at if at >= 0 and re.compile(_UNFINISHED).match(data, at) else -1


def url_password(value: str) -> str:
    """The password inside a URL, or an empty string."""
    match = re.search(r"://[^\s/:@]*:([^\s/@]+)@", value)
    return match[1] if match else ""
