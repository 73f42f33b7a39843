"""A hook of the site's build: what Markdown for GitHub needs and MkDocs shows literally."""

from __future__ import annotations

import re
from typing import Any

_CODE = re.compile(r"`[^`\n]+`")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """In a table, a `|` in code is written `\\|`; MkDocs would show the backslash."""
    lines = (
        _CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line
        for line in markdown.split("\n")
    )
    return "\n".join(lines)
