"""What stands around the code of a stage, so that it reads JSON and answers JSON."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Language(msgspec.Struct, frozen=True):
    """A language in which stages are written."""

    name: str
    program: str
    suffix: str
    wrap: Callable[[str], str]


_PYTHON_TAIL = """

def __answer():
    import json
    import sys

    given = json.loads(sys.stdin.read())
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            pass
    if given is None:
        given = {}
    stage = globals().get("execute")
    if not callable(stage):
        sys.stderr.write("the code has no function `execute`")
        sys.exit(1)
    try:
        answer = json.dumps(stage(given))
    except Exception as error:
        sys.stderr.write(str(error))
        sys.exit(1)
    print(answer)


__answer()
"""

_JAVASCRIPT = """const __parts = [];
process.stdin.on("data", (part) => __parts.push(part));
process.stdin.on("end", () => {
  let __answer;
  try {
    const __given = JSON.parse(Buffer.concat(__parts).toString("utf8"));
    %s
    __answer = JSON.stringify(execute(__given));
    if (__answer === undefined) throw new Error("execute gave no JSON value");
  } catch (error) {
    process.stderr.write(String(error && error.message ? error.message : error));
    process.exit(1);
  }
  process.stdout.write(__answer);
});
"""

_BASH = """set -euo pipefail
INPUT="$(cat)"
%s
execute "$INPUT"
"""


def _python(code: str) -> str:
    """Imports from the future must come first, wherever the author put them."""
    lines = code.split("\n")
    future = [line for line in lines if line.startswith("from __future__ import")]
    rest = [line for line in lines if not line.startswith("from __future__ import")]
    return "\n".join([*future, *rest]) + _PYTHON_TAIL


_LANGUAGES = {
    "python": Language("python", "python3", ".py", _python),
    "javascript": Language("javascript", "node", ".js", lambda code: _JAVASCRIPT % code),
    "bash": Language("bash", "bash", ".sh", lambda code: _BASH % code),
}
_NAMES = {"": "python", "python3": "python", "js": "javascript", "sh": "bash"}


def language_of(name: str | None) -> Language | None:
    """The language of that name; None for one that cannot be run."""
    plain = (name or "").lower()
    return _LANGUAGES.get(_NAMES.get(plain, plain))
