"""Draws recorded screens of a terminal as one moving SVG: `picture.py HOME FRAMES FILE`.

Every screen is as tmux saw it, but for the path of the recording's own home, which is `~`.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

_WIDTH = 96
_STEP_S, _END_S = 1.0, 6.0
#: Seconds that pass are no news.
_TIME = re.compile(r"\b\d+:\d\d\b")
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_MATRIX = re.compile(r'(<g class="f\d+-matrix">.*?</g>)', re.DOTALL)


def screens(home: str, folder: Path) -> list[str]:
    """The recorded screens that show something new, in order."""
    found: list[str] = []
    for file in sorted(folder.iterdir()):
        screen = file.read_text("utf-8").replace(home, "~").rstrip()
        if not found or _still(screen) != _still(found[-1]):
            found.append(screen)
        else:
            found[-1] = screen
    return found


def _still(screen: str) -> str:
    plain = Text.from_ansi(screen).plain
    return _TIME.sub("", "\n".join(line.rstrip() for line in plain.splitlines()))


def drawn(screen: str, height: int, name: str) -> str:
    """One screen as an SVG of its own."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=_WIDTH, file=nowhere, force_terminal=True)
        text = Text.from_ansi(screen)
        text.append("\n" * (height - len(text.plain.splitlines())))
        console.print(text, end="")
        return console.export_svg(title="", unique_id=name)


def together(svgs: list[str]) -> str:
    """The screens on top of each other, each shown when its time has come."""
    total = _STEP_S * (len(svgs) - 1) + _END_S
    rules, groups = [], []
    for number, svg in enumerate(svgs):
        rules += [_shown(number, len(svgs), total), _STYLE.findall(svg)[0]]
        groups.append(f'<g class="s{number}">{_MATRIX.findall(svg)[0]}</g>')
    # Whoever wants no movement sees the end.
    rules.append("@media (prefers-reduced-motion:reduce){g{animation:none !important}}")
    # The picture must not fetch fonts from anywhere.
    style = re.sub(r"@font-face \{.*?\}", "", "".join(rules), flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->|<defs>.*?</defs>", "", svgs[-1], flags=re.DOTALL)
    svg = _STYLE.sub(lambda _: f"<style>{style}</style>", svg)
    svg = _MATRIX.sub(lambda _: "".join(groups), svg)
    svg = re.sub(r' clip-path="[^"]*"', "", svg)
    return re.sub(r"\n\s*", "\n", svg)


def _shown(number: int, count: int, total: float) -> str:
    """When one screen is seen: from its beginning to that of the next.

    The end is what comes first, for everybody who looks only once.
    """
    begin, end = (100 * _STEP_S * n / total for n in (number, number + 1))
    is_last = number == count - 1
    before = f"0%,{begin - 0.01:.2f}%{{opacity:0}}" if number else ""
    after = "" if is_last else f"{end:.2f}%,100%{{opacity:0}}"
    until = 100 if is_last else end - 0.01
    times = f"{total:g}s {_END_S - total:g}s infinite"
    return (
        f"@keyframes k{number}{{{before}{begin:.2f}%,{until:.2f}%{{opacity:1}}{after}}}"
        f".s{number}{{opacity:{int(is_last)};animation:k{number} {times}}}"
    )


if __name__ == "__main__":
    recorded = screens(sys.argv[1], Path(sys.argv[2]))
    rows = max(len(Text.from_ansi(screen).plain.splitlines()) for screen in recorded)
    svgs = [drawn(screen, rows, f"f{n}") for n, screen in enumerate(recorded)]
    Path(sys.argv[3]).write_text(together(svgs), "utf-8")
    print(f"{sys.argv[3]}: {len(svgs)} screens of {rows} rows")
