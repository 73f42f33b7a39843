"""`caloron schedule` on the command line, with a file in the format of Noether's scheduler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caloron.schedule.scheduler import RunStore
from tests.support.http_server import HttpServer, Reply, Request
from tests.support.wait import wait_for

#: A schedule that does not become due while a test runs.
RARELY = "0 0 1 1 *"
UPPER = {"op": "Stage", "id": "text_upper"}


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Path:
    created = tmp_path / "cron"
    created.mkdir()
    _write(created / "up.json", {"description": "d", "version": "0.1.0", "root": UPPER})
    return created


def _write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), "utf-8")
    return path


def _config(folder: Path, *jobs: dict[str, Any], **more: Any) -> str:
    good = {"name": "up", "cron": RARELY, "graph": "up.json", "input": "hi"}
    return str(_write(folder / "scheduler.json", {"jobs": [good | job for job in jobs]} | more))


def _make_due(home: Path, config: str, *names: str) -> None:
    runs = RunStore(home / "schedule", Path(config))
    for name in names:
        runs.register(name, RARELY, 1_700_000_000)
    runs.close()


@pytest.fixture
def hooked() -> Iterator[tuple[str, list[Any]]]:
    """A webhook, and the list of the requests that it got."""
    envelope: list[Any] = []

    def answer(request: Request) -> Reply:
        envelope.append(request.json)
        return Reply(status=204)

    with HttpServer(answer) as server:
        yield server.url, envelope


def test_a_due_job_runs_once_and_is_reported_to_its_webhook(
    run: Any, home: Path, folder: Path, hooked: tuple[str, list[Any]]
) -> None:
    url, envelope = hooked
    _write(folder / "bad.json", {"description": "d", "version": "0.1.0", "root": {
        "op": "Sequential", "stages": [UPPER, {"op": "Stage", "id": "parse_json"}]}})  # fmt: skip
    config = _config(folder, {"webhook": url}, {"name": "bad", "graph": "bad.json", "webhook": url})
    code, answer = run("schedule", "run", "--config", config, "--once")
    assert (code, answer["data"]["runs"]) == (0, [])
    _make_due(home, config, "up", "bad")
    code, answer = run("schedule", "run", "--config", config, "--once")
    assert (code, answer["error"]["message"]) == (12, "1 run failed: bad")
    composition = run.data("graph", "id", str(folder / "up.json"))["composition_id"]
    bodies = sorted(envelope, key=lambda body: body["job"])
    assert bodies[1] == {"ok": True, "job": "up", "composition_id": composition, "output": "HI"}
    assert (bodies[0]["ok"], bodies[0]["output"]) == (False, None)
    assert "JSON" in bodies[0]["error"]
    code, answer = run("schedule", "run", "--config", config, "--once")
    assert (code, answer["data"]["runs"], len(envelope)) == (0, [], 2)
    rows = run.data("schedule", "list", "--config", config)["jobs"]
    assert [(row["job"], row["ok"]) for row in rows] == [("up", True), ("bad", False)]


def test_an_unreachable_webhook_does_not_fail_the_run(
    run: Any, home: Path, folder: Path, capsys: Any
) -> None:
    config = _config(folder, {"webhook": "http://127.0.0.1:9/x"})
    run("schedule", "run", "--config", config, "--once")
    _make_due(home, config, "up")
    assert run("schedule", "run", "--config", config, "--once")[0] == 0


@pytest.mark.parametrize(
    ("job", "reply"),
    [
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "0 0 30 2"}, "found 4"),
        ({"graph": "nowhere.json"}, "no file 'nowhere.json'"),
        ({"webhook": "ftp://x"}, "no address"),
        ({"input": 7}, "expected Text"),
        ({"name": ""}, "`name`"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_a_bad_job_is_reported_before_any_run(
    run: Any, home: Path, folder: Path, job: dict[str, Any], reply: str
) -> None:
    config = _config(folder, {"name": "good"}, job)
    for words in (("run", "--once"), ("check",)):
        run.refused(2, reply, "schedule", *words, "--config", config)
    assert list((home / "traces").glob("*")) == []


def test_all_errors_of_a_job_are_reported_together(run: Any, folder: Path) -> None:
    bad = {"cron": "61 * * * *", "graph": "nowhere.json", "webhook": "ftp://x", "timeout_s": 0}
    message = run("schedule", "check", "--config", _config(folder, bad))[1]["error"]["message"]
    for reply in ("Bad minute", "no file 'nowhere.json'", "no address", "timeout_s"):
        assert reply in message
    assert message.count("jobs[0] (up)") == 4


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"jobs": 1}', '{"jobs": [{}]}', '{"jobs": []}', '{"jobs": [NaN]}'],
)
def test_an_invalid_schedule_file_is_refused(run: Any, folder: Path, text: str) -> None:
    (folder / "scheduler.json").write_text(text)
    run.refused(2, "", "schedule", "run", "--config", str(folder / "scheduler.json"))


def test_duplicate_names_and_a_registry_are_refused(run: Any, folder: Path) -> None:
    config = _config(folder, {}, {}, registry_url="https://registry.example")
    message = run("schedule", "check", "--config", config)[1]["error"]["message"]
    assert "two jobs are called 'up'" in message
    assert "registry_url is not supported" in message
    assert run("schedule", "check", "--config", str(folder / "none.json"))[0] == 3


def test_a_job_can_name_a_composition(run: Any, folder: Path) -> None:
    inputs = {"shell_url": "http://x", "repo": "."}
    inputs |= {"sprint_id": "s", "task_id": "t", "agent_id": "a"}
    config = _config(folder, {"graph": "spawn_agent", "input": inputs})
    assert run("schedule", "check", "--config", config)[0] == 0


def test_stages_of_a_noether_store_are_known(run: Any, home: Path, folder: Path) -> None:
    spec = {"name": "shout", "input": "Text", "output": "Text", "effects": ["Pure"],
            "implementation": "def execute(value):\n    return value + '!'\n"}  # fmt: skip
    assert run("stage", "add", str(_write(folder / "shout.json", spec)))[0] == 0
    (file,) = (home / "stages").glob("*.json")
    stored = json.loads(file.read_bytes())
    file.unlink()
    _write(folder / "store.json", {"stages": [stored]})
    graph = {"description": "d", "version": "0.1.0", "root": {"op": "Stage", "id": "shout"}}
    _write(folder / "shout-graph.json", graph)
    job = {"graph": "shout-graph.json"}
    assert run("schedule", "check", "--config", _config(folder, job))[0] == 2
    config = _config(folder, job, store_path="store.json")
    assert run("schedule", "check", "--config", config)[0] == 0
    _make_due(home, config, "up")
    assert run("schedule", "run", "--config", config, "--once")[0] == 0


def test_a_second_scheduler_of_a_file_is_refused_with_the_first_process(
    run: Any, home: Path, folder: Path
) -> None:
    config = _config(folder, {"cron": "* * * * * *"})
    first = subprocess.Popen(
        [sys.executable, "-m", "caloron.cli", "schedule", "run", "--config", config],
        env=os.environ | {"CALORON_HOME": str(home)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert first.stderr is not None
        first.stderr.readline()
        assert "up-" in first.stderr.readline()
        run.refused(5, f"process {first.pid}", "schedule", "run", "--config", config, "--once")
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=60)
    assert first.returncode == 0


@pytest.mark.parametrize("durable", [False, True])
def test_the_next_scheduler_repeats_the_run_of_a_killed_scheduler(
    run: Any, home: Path, folder: Path, durable: bool
) -> None:
    """With `durable` the run continues after its first call, and does not repeat it."""
    asked: list[str] = []
    let_go = threading.Event()

    def answer(request: Request) -> Reply:
        asked.append(request.path)
        if request.path == "/second":
            let_go.wait(60)
        return Reply({"ok": True, "data": {"output": "x"}})

    server = HttpServer(answer)
    text = {"kind": "Text"}
    calls = [{"op": "RemoteStage", "url": f"{server.url}/{name}", "input": text, "output": text}
             for name in ("first", "second")]  # fmt: skip
    _write(folder / "two.json", {"description": "d", "version": "0.1.0",
                                "root": {"op": "Sequential", "stages": calls}})  # fmt: skip
    config = _config(folder, {"graph": "two.json", "durable": durable})
    run("schedule", "run", "--config", config, "--once")
    _make_due(home, config, "up")
    argv = [sys.executable, "-m", "caloron.cli", "schedule", "run", "--config", config, "--once"]
    env = os.environ | {"CALORON_HOME": str(home)}
    killed = subprocess.Popen(argv, env=env)
    wait_for(lambda: "/second" in asked)
    killed.kill()
    killed.wait()
    let_go.set()
    done = subprocess.run([*argv, "--output", "json"], env=env, check=True, capture_output=True)
    server.close()
    (row,) = json.loads(done.stdout)["data"]["runs"]
    assert (row["job"], row["ok"]) == ("up", True)
    assert asked.count("/first") == (1 if durable else 2)
    assert asked.count("/second") == 2
    assert run.data("schedule", "run", "--config", config, "--once")["runs"] == []
