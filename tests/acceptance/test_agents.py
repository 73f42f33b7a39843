"""Agents of every kind and with every bad habit."""

from __future__ import annotations

import json

from tests.support.home import Home, does, task, writes

_MEGABYTE = 1 << 20


def _flood(megabytes: int) -> str:
    return f"head -c {megabytes * _MEGABYTE} /dev/zero | tr '\\0' 'x'; echo"


def test_100_megabytes_are_kept_short_and_invalid_utf8_still_has_a_last_line(home: Home) -> None:
    home.set(output_cap_mb=4)
    home.script(
        writes("flood", run=_flood(100)),
        does("review", "flood", run=_flood(100), output="APPROVED"),
        writes("bytes", run=r"printf '\377\376\000broken\n'"),
        does("review", "bytes", run=r"printf '\377\376 looks \200 fine\n'", output="APPROVED"),
        does("implement", "fails", run=r"printf 'bad \377 end\n'; exit 4"),
    )
    answer = home.sprint(task("flood"), task("bytes"), task("fails"))
    assert answer.statuses == {"flood": "Done", "bytes": "Done", "fails": "Escalated"}, answer
    assert home.files() == {"flood.txt": b"flood\n", "bytes.txt": b"bytes\n"}
    assert max(log.stat().st_size for log in home.run_files("output.log*")) < 5 * _MEGABYTE
    assert "exit code 4: bad \ufffd end" in answer.tasks["fails"]["why"]


def test_hooks_children_ignored_files_and_a_history_of_an_agent_reach_nothing(home: Home) -> None:
    """Only the tree that the agent left comes to main, and nothing of it runs or lives on."""
    trap = home.root / "trapped"
    # Code that runs outside leaves a file there; code that runs inside changes the commit.
    spring = f"touch {trap}; touch /workspace/trapped; git add -f /workspace/trapped"
    plant = (
        f"for h in pre-commit post-commit commit-msg post-checkout pre-push; do"
        f" mkdir -p .git/hooks; printf '#!/bin/sh\\n{spring}\\n' > .git/hooks/$h;"
        f" chmod +x .git/hooks/$h; done;"
        f" git config core.fsmonitor '{spring}'; git config diff.external '{spring}'"
    )
    orphan = "git add -A; git commit -q -m one; git checkout -q --orphan new; git commit -q -m all"
    amend = "git add -A; git commit -q --amend -m amended"
    wanted = {".gitignore": "build/\n", "a.c": "int a;"}
    child = f"setsid sh -c 'sleep 600; :' {home.root}/left-behind & echo started"
    home.script(
        writes("hooks", run=plant),
        writes("child", run=child),
        writes("ignored", wanted | {"build/out.o": "x", ".caloron/note": "x"}),
        writes("history", run=orphan),
        does("review", "history", round=1, output="CHANGES_NEEDED: again"),
        does("fix", "history", files={"b.txt": "b"}, run=amend),
    )
    names = ("hooks", "child", "ignored", "history")
    answer = home.sprint(*(task(name) for name in names))
    assert answer.code == 0, answer
    own = {f"{name}.txt" for name in names if name != "ignored"}
    assert home.files().keys() == own | wanted.keys() | {"b.txt"}
    assert not trap.exists()
    assert home.processes() == []


def test_binaries_deletions_renames_links_modes_and_strange_names_reach_main_as_they_are(
    home: Home,
) -> None:
    home.script(
        writes("first", {"old.txt": "to be renamed\n" * 5, "gone.txt": "x", "dir/deep/f": "y"}),
        does(
            "implement",
            "second",
            files={
                "blob.bin": {"base64": "AAH/gH8="},
                "gone.txt": None,
                "dir": None,
                "größe/日本 語.txt": "ü\n",
                "-rf": "a name that looks like an option\n",
                'quo"te\ttab.txt': "q",
            },
            run="git mv old.txt new.txt; printf '#!/bin/sh\\n' > run.sh; chmod +x run.sh;"
            " ln -s new.txt link",
        ),
    )
    answer = home.sprint(task("first"), task("second", "first"))
    assert answer.code == 0, answer
    assert home.files() == {
        "new.txt": b"to be renamed\n" * 5,
        "blob.bin": b"\x00\x01\xff\x80\x7f",
        "größe/日本 語.txt": "ü\n".encode(),
        "-rf": b"a name that looks like an option\n",
        'quo"te\ttab.txt': b"q",
        "run.sh": b"#!/bin/sh\n",
        "link": b"new.txt",
    }
    modes = {
        line.split("\t", 1)[1]: line.split()[0]
        for line in home.git("ls-tree", "-r", "main").decode().splitlines()
    }
    assert (modes["run.sh"], modes["link"]) == ("100755", "120000")


def test_an_agent_that_deletes_everything_makes_a_change_like_any_other(home: Home) -> None:
    home.script(writes("a"), does("implement", "b", run="git rm -q -r ."))
    answer = home.sprint(task("a"), task("b", "a"))
    assert answer.code == 0, answer
    assert home.git("ls-tree", "-r", "main") == b""


def test_any_program_can_be_the_agent(home: Home) -> None:
    agent = home.root / "my agent.sh"
    plan = json.dumps([task("a", agent_prompt="write the word banana")])
    agent.write_text(
        "#!/bin/sh\n"
        'prompt=$(cat "$2")\n'
        'case "$CALORON_ROLE" in\n'
        f"po) echo '{plan}' ;;\n"
        'implement) [ "$1" = --ask ] && echo "$prompt" | grep -om1 banana > "$3/a.txt" ;;\n'
        "review) echo 'I have read it.'; echo APPROVED ;;\n"
        "esac\n"
    )
    agent.chmod(0o755)
    line = f"'{agent}' --ask {{prompt_file}} {{workspace}}"
    assert home.caloron("config", "set", "framework", "command").code == 0
    assert home.caloron("config", "set", "command", line).code == 0
    answer = home.sprint()
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"banana\n"}


def test_a_task_may_have_a_program_of_its_own_which_gets_the_prompt_on_standard_input(
    home: Home,
) -> None:
    home.set(command=["sh", "-c", "cat > $CALORON_TASK_ID.txt; echo APPROVED"])
    home.script(writes("a"))
    prompt = "b $HOME `and` {brace}"
    answer = home.sprint(task("a"), task("b", framework="command", agent_prompt=prompt))
    assert answer.code == 0, answer
    assert home.files()["a.txt"] == b"a\n"
    assert prompt.encode() in home.files()["b.txt"]


def test_a_program_that_is_not_there_is_named_before_anything_is_begun(home: Home) -> None:
    home.set(framework="command", command=["/no/such/agent", "{prompt}"])
    answer = home.sprint(task("a"))
    assert answer.code == 8, answer
    assert "/no/such/agent" in answer.error["message"]
    assert "config set command" in answer.error["hint"]
    assert home.issues() == []
    assert home.events("sprint_created") == []


def test_the_stateless_fixtures_of_the_first_caloron_work_unchanged(home: Home) -> None:
    """Only `match`, `output` and `default`: every change is empty, and the reviewer agrees."""
    plan = json.dumps([{k: v for k, v in task("a").items() if k != "kind"}])
    home.fixture.write_text(
        json.dumps(
            {
                "responses": [
                    {"match": "product owner", "output": plan},
                    {"match": "reviewer", "output": "APPROVED"},
                ],
                "default": "Done.",
            }
        )
    )
    answer = home.sprint()
    assert answer.code == 0, answer
    assert answer.statuses == {"a": "Done"}
    assert answer.tasks["a"]["reason"] == "nothing to do"


def test_an_agent_gets_the_variables_that_the_user_names_and_no_others(home: Home) -> None:
    home.script(writes("a", run='echo "${#MODEL_KEY},${OTHER_KEY-not there}" > keys.txt'))
    assert home.caloron("config", "set", "pass_env", "MODEL_KEY").code == 0
    plan = home.plan(task("a"))
    command = ("sprint", "a goal", "--plan", str(plan), "--yes")
    answer = home.caloron(*command, MODEL_KEY="0123456789", OTHER_KEY="k2")
    assert answer.code == 0, answer
    assert home.files()["keys.txt"] == b"10,not there\n"
