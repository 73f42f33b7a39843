"""Agents of every kind and with every bad habit."""

from __future__ import annotations

import json

from tests.support.home import Home, does, task, writes


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
