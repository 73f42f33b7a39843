"""Agents are confined unless the user says otherwise aloud; main is verified before they begin."""

from __future__ import annotations

import json
import os
import time

import pytest
import yaml

from tests.acceptance.checkouts import from_repository
from tests.support.home import Home, does, task, writes
from tests.support.sockets import greet, serving


def test_agents_see_their_workspace_and_shared_folders_and_nothing_else_of_the_users(
    home: Home,
) -> None:
    mine, library = home.root / "mine.txt", home.root / "library"
    mine.write_text("a user's own\n")
    library.mkdir()
    (library / "book.txt").write_text("words\n")
    home.set(read_only=[str(library)])
    line = (
        f"pwd; echo sandboxed: $CALORON_SANDBOXED; cat {mine} && echo 'saw a file';"
        f" touch {home.root}/planted && echo 'left a file';"
        f" cat {home.project()}/config.yml {home.project()}/ledger.sqlite && echo 'saw ours';"
        f" cat {library}/book.txt > a.txt; echo x > {library}/book.txt; :"
    )
    home.script(writes("a", run=line))
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert answer.data["sandboxed"] is True
    assert "no sandbox" not in answer.stderr
    attempts = home.caloron("logs", "a").data["attempts"]
    assert attempts[0]["output"].startswith("/workspace\nsandboxed: 1\nDone.\n")
    assert not (home.root / "planted").exists()
    assert home.files() == {"a.txt": b"words\n"}
    assert (library / "book.txt").read_text() == "words\n"


def test_a_sprint_without_a_sandbox_prints_a_warning_and_records_it(home: Home) -> None:
    home.script(writes("a", run=f"touch {home.root}/planted; echo sandboxed: $CALORON_SANDBOXED"))
    answer = home.sprint(task("a"), options=("--unsandboxed",))
    assert answer.code == 0, answer
    assert "no sandbox" in answer.stderr
    assert answer.data["sandboxed"] is False
    assert home.printed("sandboxed: ") == ["0"]
    assert (home.root / "planted").exists()
    again = home.caloron("resume")
    assert again.data["sandboxed"] is False


def test_a_red_main_stops_the_sprint_before_any_agent_is_asked(bare_home: Home) -> None:
    home = from_repository(bare_home, {"old.txt": "old\n"})
    home.set(verify="echo no good file; test -f good.txt")
    home.script(does("po", output=json.dumps([task("a")])), writes("a", {"good.txt": "good\n"}))
    answer = home.sprint()
    assert answer.code == 8, answer
    assert answer.error["code"] == "PRECONDITION_FAILED"
    assert "main is red" in answer.error["message"]
    assert "no good file" in answer.error["message"]
    assert "--allow-red" in answer.error["hint"]
    assert (home.attempts("verify"), home.attempts("po"), home.issues()) == (2, 0, [])

    assert home.caloron("resume").code == 8
    answer = home.caloron("resume", "--allow-red")
    assert answer.code == 0, answer
    assert "main is RED" in answer.stderr
    # The task made it green, and from then on a red result is no longer taken.
    assert answer.data["baseline"] == "green"
    assert home.files()["good.txt"] == b"good\n"


def test_a_main_that_is_green_again_needs_no_permission(bare_home: Home) -> None:
    """While main stays red, results are merged only if the user allows that."""
    home = from_repository(bare_home, {"old.txt": "old\n"})
    home.set(verify="test ! -e old.txt || grep -q new old.txt")
    home.script(writes("a"), writes("b"))
    assert home.sprint(task("a")).code == 8
    (home.root / "source" / "old.txt").write_text("new\n")
    commit = ("git", "commit", "-q", "-a", "-m", "put right")
    home.run_outside(*commit, cwd=home.root / "source")
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert answer.data["baseline"] == "green"
    home.set(verify="exit 3")
    answer = home.sprint(task("b"), options=("--allow-red",))
    assert (answer.code, answer.data["baseline"]) == (0, "red"), answer
    assert home.files()["b.txt"] == b"b\n"


def test_a_project_without_tests_gets_a_warning_that_nothing_is_verified(bare_home: Home) -> None:
    home = from_repository(bare_home, {"notes.txt": "notes\n"})
    home.script(writes("a"))
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert "NOTHING IS VERIFIED" in answer.stderr
    assert "config set verify" in answer.stderr
    assert answer.data["baseline"] == "unverified"
    assert answer.data["verify"] == ""


_CALC = "def twice(n):\n    return 2 * n\n"
_TEST_CALC = (
    "import unittest\n\nfrom calc import twice\n\n\n"
    "class TwiceTest(unittest.TestCase):\n"
    "    def test_twice(self):\n        self.assertEqual(twice(4), 8)\n"
)


def test_the_tests_of_a_python_project_are_detected_and_decide(bare_home: Home) -> None:
    home = from_repository(bare_home, {"calc.py": _CALC, "test_calc.py": _TEST_CALC})
    broken = _CALC.replace("2 * n", "3 * n")
    home.script(
        writes("a", {"calc.py": broken}),
        does("fix", match="12 != 8", files={"calc.py": f"{_CALC}# again\n"}),
    )
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert "unittest" in answer.data["verify"]
    assert answer.data["baseline"] == "green"
    assert home.files()["calc.py"] == f"{_CALC}# again\n".encode()
    reasons = [move["reason"] for move in home.events("task_moved")]
    assert [r for r in reasons if "verification of the merged result failed" in r]


def test_tests_that_the_first_task_of_an_empty_project_writes_are_run_at_once(home: Home) -> None:
    home.script(writes("a", {"calc.py": _CALC, "test_calc.py": _TEST_CALC}))
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert (answer.data["baseline"], home.attempts("verify", "a")) == ("none", 1)
    assert home.attempts("verify", "baseline") == 0
    assert "unittest" in answer.data["verify"]
    assert "NOTHING IS VERIFIED" not in answer.stderr


def test_a_repository_with_submodules_is_refused_at_the_start(bare_home: Home) -> None:
    files = {".gitmodules": '[submodule "lib"]\n\tpath = lib\n\turl = ../lib\n'}
    link = f"git update-index --add --cacheinfo 160000,{'1' * 40},lib"
    home = from_repository(bare_home, files, more=link)
    home.script(writes("a"))
    answer = home.sprint(task("a"))
    assert answer.code == 8, answer
    assert "submodules (lib)" in answer.error["message"]
    assert answer.error["hint"]
    assert home.events("sprint_created") == []


def test_commits_name_their_agent_whose_words_are_yaml_on_its_issue(home: Home) -> None:
    """The prompt of the agent is printed on request."""
    output = (
        "All done.\nCALORON_FEEDBACK_START\ntask_clarity: 8\n"
        'blockers: ["no docs: anywhere"]\ntools_used: [sed]\nself_assessment: completed\n'
        'notes: it is "fine": really # yes\nCALORON_FEEDBACK_END\n'
    )
    line = "git add a.txt && git commit -q -m mine && echo more > more.txt"
    home.script(writes("a", run=line, output=output), writes("b"))
    answer = home.sprint(task("a", agent_prompt="paint the shed blue"))
    assert answer.code == 0, answer
    assert "paint the shed blue" not in answer.stderr

    form = "%an <%ae>|%cn <%ce>|%(trailers:key=Agent,valueonly,separator=;)"
    log = home.git("log", "--no-merges", f"--format={form}", "main", "--", "a.txt", "more.txt")
    ada = "Ada <ada@example.invalid>"
    assert log.decode().splitlines() == [f"{ada}|{ada}|caloron-agent-a"] * 2

    comments = home.comments(answer.tasks["a"]["issue_number"])
    (comment,) = [c for c in comments if "caloron_feedback:" in c]
    feedback = yaml.safe_load(comment.split("---")[1])["caloron_feedback"]
    assert "really" in feedback.pop("notes")
    expected = {
        "task_id": "a",
        "task_clarity": 8,
        "blockers": ["no docs: anywhere"],
        "tools_used": ["sed"],
        "self_assessment": "completed",
    }
    assert feedback | expected == feedback

    answer = home.sprint(task("b", agent_prompt="paint the shed green"), options=("--debug",))
    assert answer.code == 0, answer
    assert "paint the shed green" in answer.stderr


def test_each_role_reaches_what_its_network_policy_allows(home: Home) -> None:
    with serving(greet) as allowed, serving(greet) as other:
        program = home.root / "gates" / "hears.py"
        program.write_text(
            "import socket, sys\n"
            "def hears(port):\n"
            "    try:\n"
            "        with socket.create_connection(('127.0.0.1', port), 5) as there:\n"
            "            return there.recv(5) == b'hello'\n"
            "    except OSError:\n"
            "        return False\n"
            "print('heard:', sys.argv[1], *(hears(int(p)) for p in sys.argv[2:]), flush=True)\n"
        )
        line = f"python3 {program} $CALORON_ROLE {allowed} {other}"
        home.set(
            allow_hosts=[f"127.0.0.1:{allowed}"],
            network_roles=["implement=full", "review=none"],
        )
        home.script(
            does("po", run=line, output=json.dumps([task("a")])),
            writes("a", run=line),
            does("review", run=line, output="APPROVED"),
        )
        answer = home.sprint()
    assert answer.code == 0, answer
    assert home.printed("heard: ") == [
        "po True False",
        "implement True True",
        "review False False",
    ]


_SETUP_PROBE = """
import os, socket, sys, urllib.error, urllib.request
def connect_to(name, family, address):
    with socket.socket(family) as client:
        try:
            client.connect(address)
            print('probe:', name, 'reached' if client.recv(5) else 'refused', flush=True)
        except OSError:
            print('probe:', name, 'refused', flush=True)
connect_to('abstract', socket.AF_UNIX, '\\0' + sys.argv[1])
connect_to('loopback', socket.AF_INET, ('127.0.0.1', int(sys.argv[2])))
connect_to('offered', socket.AF_INET, ('127.0.0.1', int(sys.argv[3])))
os.environ['no_proxy'] = ''
for target in (f'127.0.0.1:{sys.argv[2]}', f'[::ffff:127.0.0.1]:{sys.argv[2]}'):
    try:
        urllib.request.urlopen(f'http://{target}/', timeout=20)
        print('probe: proxied reached')
    except urllib.error.HTTPError as error:
        print('probe: proxied', error.code)
    except OSError:
        print('probe: proxied not at all')
"""


def test_setup_reaches_only_the_allowed_sockets_of_this_machine(home: Home) -> None:
    """A service that knows its user by the credentials of a socket takes setup for that user."""
    probe = home.root / "probe.py"
    probe.write_text(_SETUP_PROBE)
    name = f"caloron-test-{os.getpid()}-{time.monotonic_ns()}"
    with serving(greet) as offered, serving(greet) as other, serving(greet, abstract=name):
        home.set(
            setup=f"python3 {probe} {name} {other} {offered}",
            read_only=[str(probe)],
            allow_hosts=[f"127.0.0.1:{offered}"],
        )
        home.script(writes("a"))
        answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    logs = [log.read_text() for log in home.run_files("setup.log")]
    probes = {line for text in logs for line in text.splitlines() if line.startswith("probe: ")}
    assert probes == {
        "probe: abstract refused",
        "probe: loopback refused",
        "probe: offered reached",
        "probe: proxied 403",
    }


@pytest.mark.parametrize("entry", ["dance=full", "po=some", "po"])
def test_an_unknown_network_policy_is_refused(home: Home, entry: str) -> None:
    home.script(writes("a"))
    home.set(network_roles=[entry])
    answer = home.sprint(task("a"))
    assert answer.code == 2, answer
    assert entry in answer.error["message"]
    assert home.issues() == []
