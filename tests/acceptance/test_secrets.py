"""A key of the user's reaches only agents it is meant for, and is written down nowhere."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.acceptance.searching import sources_of_secret
from tests.support.claude import claude
from tests.support.home import Answer, Home, does, task, writes
from tests.support.model_server import ModelServer, Rule, bash, write

_NAME = "ANTHROPIC_API_KEY"
_KEY = "sk-ant-api03-" + "Zq7Lw0Tn3Xc9Vb5Rm1" * 4


def test_an_agent_gets_only_the_keys_in_the_settings(home: Home) -> None:
    home.environment |= {_NAME: _KEY, "AWS_SECRET_ACCESS_KEY": _KEY}
    home.script(writes("a", run=f"env; cat /proc/*/environ; echo; echo 'key: '${_NAME}"))
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    # The agent would have printed it, and redaction would have left its mark.
    assert home.printed("key: ") == [""]
    output = home.caloron("logs", "a").data["attempts"][0]["output"]
    assert "redacted" not in output
    assert sources_of_secret(home, _KEY, answer) == []


def test_a_key_that_an_agent_prints_is_written_to_no_file(home: Home) -> None:
    home.environment[_NAME] = _KEY
    home.set(pass_env=[_NAME])
    print_key = (
        f'echo "key: ${_NAME}"; printf %s "${_NAME}" >&2; printf %s "${_NAME}" | base64 -w0; echo;'
        f' printf \'{{"detail": "%s"}}\' ${_NAME} > $CALORON_REPORT;'
        f' echo "notes: ${_NAME}"; echo "self_assessment: ${_NAME}"; echo "${_NAME}" > ~/kept;'
        f' echo "x" > a.txt; git add a.txt'
    )
    home.script(
        does("implement", "a", attempt=1, run=f"{print_key}; git reset -q --hard; exit 1"),
        does("implement", "a", run=print_key),
        does("review", round=1, run=f'echo "CHANGES_NEEDED: say ${_NAME}"'),
        does("fix", run=f"{print_key}; echo y > a.txt"),
        does("review", run=f"echo ${_NAME}; echo APPROVED"),
    )
    answer = home.sprint(task("a", agent_prompt=f"use the key {_KEY} for it", title="A"))
    assert answer.code == 0, answer
    # The agent really got the key, and really printed it.
    assert home.printed("key: ") == [f"[redacted {_NAME}]"] * 3
    logs = home.caloron("logs", "a")
    assert sources_of_secret(home, _KEY, answer, logs, home.caloron("issue", "show", "1")) == []


def test_a_key_in_a_goal_or_a_plan_is_not_kept(home: Home) -> None:
    home.environment[_NAME] = _KEY
    home.script(writes("a"))
    plan = home.plan(task("a", agent_prompt=f"log in with {_KEY}", acceptance=[_KEY]))
    answer = home.caloron("sprint", f"use {_KEY}", "--plan", str(plan), "--yes", "--debug")
    assert answer.code == 0, answer
    assert sources_of_secret(home, _KEY, answer) == []


def test_commits_with_a_key_in_their_tree_or_history_are_refused_and_named(home: Home) -> None:
    home.environment[_NAME] = _KEY
    home.set(pass_env=[_NAME])
    once = f"echo ${_NAME} > k; git add k; git commit -q -m k; git rm -q k; git commit -q -m no"
    home.script(writes("a", run=f"echo ${_NAME} > key.txt"), writes("b", run=once))
    answer = home.sprint(task("a"), task("b"))
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Escalated", "b": "Escalated"}
    assert all(f"hold the value of {_NAME}" in row["why"] for row in answer.tasks.values())
    assert home.pulls() == []
    assert sources_of_secret(home, _KEY, answer) == []


def test_a_stopped_agents_work_with_a_key_in_it_is_not_saved(home: Home) -> None:
    home.environment[_NAME] = _KEY
    home.set(pass_env=[_NAME])
    writing = home.gate("writing")
    home.script(writes("a", run=f"echo ${_NAME} > key.txt; {writing.line}"))
    running = home.start_sprint(task("a"))
    writing.wait_for_agent()
    answer = running.interrupt()
    assert answer.code == 11, answer
    home.script(writes("a"))
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}
    assert sources_of_secret(home, _KEY, answer) == []


#: A value that only its name marks as a secret.
_WORD_NAME = "SHOP_PASSWORD"
_WORD = "correct7horse!battery&staple"


@pytest.fixture
def shop(home: Home) -> Home:
    """A home whose agents get a password."""
    home.environment[_WORD_NAME] = _WORD
    return home.set(pass_env=[_WORD_NAME])


def _views(home: Home) -> list[Answer]:
    """Return all answers of commands that show work to a person."""
    numbers = [str(i["number"]) for i in home.issues()]
    asked = [("status",), ("why",), ("config", "show"), ("doctor",)]
    asked += [("logs", "a")]
    asked += [("issue", "show", number) for number in numbers]
    asked += [("pr", "show", str(p["number"])) for p in home.pulls()]
    return [home.caloron(*words, json=form) for words in asked for form in (True, False)]


def test_a_password_split_over_reviews_and_feedback_is_written_to_no_file(
    shop: Home,
) -> None:
    value = f"${_WORD_NAME}"
    pieces = (
        f'word="{value}"; printf "in pieces: ${{word%horse*}}"; sleep 0.2;'
        ' echo "${word#*correct7}";'
        f' head -c 65530 /dev/zero | tr "\\0" x; echo " {value}"; echo "a {value}" | base64;'
        f" printf %s '{value}' | tr a-z A-Z > /dev/null; echo \"{value}\" >&2;"
        f' printf "CALORON_FEEDBACK_START\\nnotes: {value}\\nblockers: [{value}]\\n'
        f'self_assessment: {value}\\nCALORON_FEEDBACK_END\\n"'
    )
    shop.script(
        writes("a", run=pieces),
        does(
            "review", round=1, run=f'echo "{value} is known"; echo "CHANGES_NEEDED: hide {value}"'
        ),
        does("fix", run=f"echo more > more.txt; {pieces}"),
        does("review", run=f'echo "still {value}"; echo APPROVED'),
    )
    answer = shop.sprint(task("a"))
    assert answer.code == 0, answer
    assert sources_of_secret(shop, _WORD, answer, *_views(shop)) == []


#: Ways to put a password into a commit.
_LEAKS = {
    "name-of-a-file": f'echo x > "${_WORD_NAME}"',
    "folder": f'mkdir "${_WORD_NAME}"; echo x > "${_WORD_NAME}/f"',
    "message": f'git add .; git commit -q -m "${_WORD_NAME}"',
    "base64": f'printf "${_WORD_NAME}" | base64 > coded.txt',
    "binary": f'printf "\\0\\1${_WORD_NAME}\\0" > binary.bin',
    "link": f'ln -s "/${_WORD_NAME}" link',
    "hidden-root": f"git config log.showRoot false; git checkout -q --orphan o;"
    f' echo "${_WORD_NAME}" > k; git add .; git commit -q -m k',
    "hidden-file": "git config core.bigFileThreshold 1;"
    f" echo '* -diff binary' > .git/info/attributes; echo \"${_WORD_NAME}\" > k",
    "side-branch": f'git checkout -q -b side; echo "${_WORD_NAME}" > k; git add k;'
    " git commit -q -m k; git checkout -q -; git merge -q --no-ff -s ours side -m m",
    "author": f'git add .; GIT_AUTHOR_NAME="${_WORD_NAME}" git commit -q -m x',
    "committer": f'git add .; GIT_COMMITTER_NAME="${_WORD_NAME}" git commit -q -m x',
    "message-in-utf16": "git config i18n.logOutputEncoding UTF-16; git add .;"
    f' git commit -q -m "${_WORD_NAME}"',
}


def test_a_password_in_any_part_of_a_commit_is_refused(shop: Home) -> None:
    shop.script(*(writes(name, run=line) for name, line in _LEAKS.items()), writes("honest"))
    answer = shop.sprint(*(task(name) for name in _LEAKS), task("honest"))
    assert answer.code == 10, answer
    assert answer.statuses == dict.fromkeys(_LEAKS, "Escalated") | {"honest": "Done"}
    for name in _LEAKS:
        assert f"hold the value of {_WORD_NAME}" in answer.tasks[name]["why"], name
    assert sources_of_secret(shop, _WORD, answer) == []


def test_a_password_is_on_no_command_line_and_in_no_environment_but_the_agents(
    shop: Home,
) -> None:
    gate = shop.gate("seen")
    shop.script(writes("a", run=gate.line))
    running = shop.start_sprint(task("a", agent_prompt=f"use {_WORD}"))
    gate.wait_for_agent()
    lines, environments = [], []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            lines += [process.name] if _WORD.encode() in (process / "cmdline").read_bytes() else []
            has_password = _WORD.encode() in (process / "environ").read_bytes()
            environments += [(process / "cmdline").read_bytes()] if has_password else []
    gate.open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert lines == []
    # Only the user's own command and the processes inside the sandbox have it.
    assert not [line for line in environments if b"shim.py" in line or b"proxy.py" in line]
    assert sources_of_secret(shop, _WORD, answer) == []


def test_the_key_of_the_model_is_stored_nowhere_even_if_the_agent_prints_it(
    bare_home: Home,
) -> None:
    """Claude Code's own tools see its environment, and its conversation is kept for later."""
    show = f"echo ${_NAME}; printf ${_NAME} | base64 -w0; env; cat /proc/self/environ"
    rules = [
        Rule(("Carry out the task below",), [[bash(show)], [write("/workspace/a.txt", "a\n")],
                                             [f"The key is {_KEY}."]]),
        Rule(("You are the reviewer", "second"), [["APPROVED"]]),
        Rule(("You are the reviewer",), [[bash(show)], [f"{_KEY}\nCHANGES_NEEDED: say {_KEY}"]]),
        Rule(("was not accepted",), [[bash(show)], [write("/workspace/a.txt", "second\n")],
                                     [f"It was {_KEY}."]]),
    ]  # fmt: skip
    with ModelServer(*rules) as model:
        bare_home.environment |= {
            "CALORON_CLAUDE": str(claude()),
            "ANTHROPIC_BASE_URL": model.url,
            _NAME: _KEY,
        }
        home = bare_home.init("demo", "--framework", "claude-code", verify="none")
        answer = home.sprint(task("a"))
        asked = [a.text for a in model.requests]
    assert answer.code == 0, answer
    # The tool really showed it to the model, so it was in the conversation.
    assert any(_KEY in text for text in asked)
    assert sources_of_secret(home, _KEY, answer, *_views(home)) == []


#: Builds a signed commit, whose signature git passes to a program, and a commit to replace it.
_SWAP = r"""
git add -A; git commit -q -m clean
sign='gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----'
git cat-file commit HEAD | sed "/^committer/a $sign" > /tmp/signed
git update-ref HEAD "$(git hash-object -t commit -w /tmp/signed)"
echo "$SHOP_PASSWORD" > leak.txt; mkdir .caloron; echo x > .caloron/planted; git add -f .
evil=$(GIT_AUTHOR_NAME='Linus Torvalds' GIT_COMMITTER_NAME='Linus Torvalds' \
    git commit-tree -p HEAD^ -m 'trust me' "$(git write-tree)")
git rm -q -r --cached leak.txt .caloron; rm -r leak.txt .caloron
cat > .git/swap <<END
#!/bin/sh
case \$(tr '\0' ' ' < /proc/\$PPID/cmdline) in
*' {when} '*) git --git-dir=/workspace/.git update-ref HEAD $evil;;
esac
cat
END
chmod +x .git/swap
git config log.showSignature true; git config gpg.program /workspace/.git/swap
git config filter.x.clean /workspace/.git/swap; echo '*.md filter=x' > .git/info/attributes
echo more >> README.md
"""


def test_files_that_an_agent_swaps_after_the_checks_do_not_reach_main(shop: Home) -> None:
    """The agent's program runs in the engine's git while it reads the history or adds files."""
    moments = {"log": "log", "raw": "log --pretty=raw", "add": "add"}
    swaps = (writes(name, run=_SWAP.replace("{when}", when)) for name, when in moments.items())
    shop.script(*swaps)
    answer = shop.sprint(*(task(name) for name in moments))
    assert b"Linus" not in shop.git("log", "--format=%an %cn%n%B", "main")
    assert set(shop.files()) <= {f"{name}.txt" for name in moments}
    assert sources_of_secret(shop, _WORD, answer) == []
