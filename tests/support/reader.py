"""The world in which the blocks of the documentation run: what a page takes for granted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.documents import Block, blocks
from tests.support.home import does, task
from tests.support.newcomer import Newcomer

_MAKEFILE = "deps:\n\t@true\ncheck:\n\tpython3 -m unittest discover -q -s tests\n"
_PLAN = [task("change")]
_LOGIN = [task("login")]
#: An agent that is at work until it is stopped.
_SLOW = does("implement", sleep_s=600)

#: Names of the reader's own in the pages, and what stands for them here.
_STAND_INS = {
    "issue comment 7 ": "issue comment $(issue_of login) ",
    "issue close 7": "issue close $(issue_of login)",
    "issue reopen 7": "issue reopen $(issue_of login)",
    "pr diff 12": "pr diff $(pull_of login)",
    "pr review 12 ": "pr review $(pull_of login) ",
    "pr show 7": "pr show $(pull_of login)",
    "pr review 7 ": "pr review $(pull_of login) ",
    "pr merge 12": "pr merge $(pull_of login)",
    "issue edit 7 ": "issue edit $(issue_of login) ",
    "pr checkout 12": "pr checkout $(pull_of login)",
    "/mnt/backups/caloron-shop-20260101T120000Z.tar": "~/backups/*.tar",
    "/mnt/backups": "~/backups",
    "caloron show 3": "caloron show 1",
    "--from-issue 12": "--from-issue $(issue_of goal)",
    "caloron logs api": "caloron logs change",
    "tick --sprint shop-1": "tick",
    # The next attempt is quick.
    "caloron stop                             # or": "caloron stop && script working # or",
    # The sprint has ended when `attach` returns.
    "caloron stop            # save": "caloron stop || true # save",
}

_SPRINT = "caloron sprint 'Something small' --yes"
#: What has to be there before a block, by a line of the block.
_BEFORE = {
    "# or Ctrl-C; the agents' work is saved": """
        script slow
        caloron sprint "Something slow" --yes >/dev/null 2>&1 &
        until caloron why 2>/dev/null | grep -q "an agent is writing"; do sleep 0.2; done""",
    "# in the morning": _SPRINT,
    "caloron apply --dry-run": _SPRINT,
    "caloron discard --yes": "caloron sprint 'Something else' --plan-only",
    "caloron why ": _SPRINT,
    "caloron issue comment 7 resolved": "escalated failing",
    "caloron pr list --state open": "escalated unclear",
    "caloron sprint --from-issue 12": "caloron issue create --title 'Task goal' --body 'Count'",
    "caloron pr show 7": "escalated unclear",
    "caloron status --project blog": "caloron init blog --framework stub --verify none",
    "caloron config set checkout ~/src/shop": _SPRINT,
    "caloron state backup /mnt/backups": "mkdir ~/backups",
}

_PROFILE = """
caloron() {  # a dry run succeeds with exit code 9
    local code=0
    command caloron "$@" || code=$?
    case " $* " in *" --dry-run "*) [ "$code" = 9 ] ;; *) return "$code" ;; esac
}
field() { python3 -c "import json, sys; d = json.load(sys.stdin)['data']; print($1)"; }
issue_of() {
    command caloron issue list --state all --output json |
        field "max(i['number'] for i in d['issues'] if i['title'] == 'Task $1')"
}
pull_of() {
    command caloron pr list --state all --output json |
        field "max(p['number'] for p in d['pull_requests'] if 'Task $1' in p['title'])"
}
script() { cp ~/scripts/"$1.json" "$CALORON_STUB_FIXTURE"; }
escalated() {  # a sprint whose task `login` waits for a person
    command caloron config set framework stub
    script "$1"
    command caloron sprint "Add a login" --plan ~/scripts/login.json --yes || [ $? = 10 ]
    script working
}
"""


def reader(folder: Path, claude: Path) -> Newcomer:
    """Return a user with a project `shop` of the scripted agent, and files that pages name."""
    user = Newcomer(folder, claude)
    scripts = user.home / "scripts"
    scripts.mkdir()
    for name, first in _scripts().items():
        script = {"responses": [*first, *_working()], "default": "APPROVED"}
        (scripts / f"{name}.json").write_text(json.dumps(script))
    (scripts / "login.json").write_text(json.dumps(_LOGIN))
    fixture = user.home / "fixture.json"
    fixture.write_text((scripts / "working.json").read_text())
    user.environment |= {
        "PATH": f"{user.checkout / '.venv' / 'bin'}:{user.environment['PATH']}",
        "CALORON_STUB_FIXTURE": str(fixture),
        "EDITOR": "true",
    }
    (user.shop / "Makefile").write_text(_MAKEFILE)
    for name, content in _files().items():
        (user.shop / name).parent.mkdir(exist_ok=True)
        (user.shop / name).write_text(json.dumps(content))
    (user.shop / "goal.md").write_text("Count what happens\n")
    lines = (
        "git add Makefile && git commit -q -m 'A Makefile'",
        "caloron init shop --repo . --framework stub",
    )
    typed = user.types("\n".join(lines), user.shop, {})
    assert typed.code == 0, typed.screen
    return user


def _scripts() -> dict[str, list[dict[str, Any]]]:
    return {
        "working": [],
        "slow": [_SLOW],
        "failing": [does("implement", "login", exit_code=1, output="no such module")],
        "unclear": [does("review", "login", output="I cannot say")],
    }


def _working() -> list[dict[str, Any]]:
    count = "date +%s%N >$CALORON_TASK_ID.txt"
    return [
        does("po", output=json.dumps(_PLAN)),
        does("implement", run=count, output="done"),
        does("fix", run=count, output="done"),
    ]


def _files() -> dict[str, Any]:
    node = {"op": "Stage", "id": "to_text"}
    graph = {"description": "a number as text", "version": "0.1.0", "root": node}
    plan = {"op": "Const", "value": {"tasks": _PLAN}}
    return {
        "tasks.json": _PLAN,
        "plan.json": {"dag": _PLAN},
        "fixture.json": {"responses": _working(), "default": "APPROVED"},
        "graph.json": graph,
        "goal.json": {"n": 21},
        "mine.json": {"description": "a plan", "version": "0.1.0", "root": plan},
        "graphs/health.json": graph,
    }


def files_of_page(page: str) -> dict[str, str]:
    """The files that a page shows and its commands then name."""
    shown = {
        "double.json": '"name": "double_n"',
        "scheduler.json": '"jobs": [',
        "first.json": '"namespace": "caloron"',
        "tick.json": '"facts": [{',
    }
    documents = [block.text for block in blocks(page) if block.language == "json"]
    return {name: text for name, part in shown.items() for text in documents if part in text}


def script_of(page_blocks: list[Block]) -> str:
    """Return one shell script with all blocks of a page, and what they need."""
    parts = [_PROFILE]
    for block in page_blocks:
        parts += [needed for line, needed in _BEFORE.items() if line in block.text]
        text = block.text
        for shown, instead in _STAND_INS.items():
            text = text.replace(shown, instead)
        parts.append(text)
    return "\n".join(parts)
