"""Models behind agent CLIs: the real Claude Code, and programs that imitate the other CLIs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from caloron.errors import ModelError, PreconditionFailed
from caloron.models.choose import chosen_model
from caloron.ports import Model, ModelAnswer
from caloron.stages.phases import architect_po
from tests.support.claude import claude
from tests.support.model_server import ModelServer, Rule, Turn, bash, unauthorized
from tests.support.sockets import greet, serving

_KEY = "sk-ant-planted-key-4711"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CODE_MAX_RETRIES", "0")
    monkeypatch.setenv("ANTHROPIC_API_KEY", _KEY)
    monkeypatch.setenv("CALORON_TEST_LEAK", "must-not-leave-4711")
    monkeypatch.delenv("CALORON_ALLOW_DANGEROUS_CLAUDE", raising=False)


Choose = Callable[..., Model]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Chooses the model of a provider, with more environment."""

    def choose(provider: str, **environment: str) -> Model:
        for name, value in {"CALORON_LLM_PROVIDER": provider, **environment}.items():
            monkeypatch.setenv(name, value)
        model = chosen_model().model
        assert model is not None
        return model

    return choose


def _claude(choose: Choose, server: ModelServer) -> Model:
    return choose("claude-cli", CALORON_CLAUDE=str(claude()), ANTHROPIC_BASE_URL=server.url)


def test_claude_code_answers_one_question_without_any_tool(choose: Choose) -> None:
    with ModelServer(Rule(("How many",), [["Forty-two."]])) as server:
        answer = _claude(choose, server).ask("How many?", seconds=60)
    assert answer.text == "Forty-two."
    assert answer.tokens_in >= server.tokens_in
    assert answer.cost_usd is not None
    (asked,) = server.requests
    assert not asked.body.get("tools")
    assert "must-not-leave" not in json.dumps(asked.body)


def test_a_model_cannot_run_tools_without_permission(
    choose: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the user's permission a tool call fails, and no command runs."""
    turns: list[Turn] = [
        [bash("echo did-run > /workspace/ran; cat /workspace/ran")],
        ["I am done."],
    ]
    with ModelServer(Rule(("Act",), turns)) as server:
        answer = _claude(choose, server).ask("Act.", seconds=60)
        assert answer.text == "I am done."
        answer_shown = server.requests[-1].text
        assert "did-run\n" not in answer_shown
        monkeypatch.setenv("CALORON_ALLOW_DANGEROUS_CLAUDE", "1")
        _claude(choose, server).ask("Act.", seconds=60)
    assert "did-run" in server.requests[-1].text.rpartition("cat /workspace/ran")[2]


def test_claude_code_repairs_its_answer_to_a_stage(choose: Choose) -> None:
    component = {"name": "Basket", "purpose": "holds", "interface": "add"}
    design = {"design_doc": "# Basket", "components": [component], "risks": []}
    with ModelServer(
        Rule(("could not be used: `design_doc` is empty",), [[json.dumps(design)]]),
        Rule(("You are the architect",), [[json.dumps(design | {"design_doc": ""})]]),
    ) as server:
        _claude(choose, server)
        design_written = architect_po({"goal": "Build a basket"})
    assert (design_written["components"], design_written["written_by"]) == ([component], "model")
    assert design_written["usage"]["provider"] == "claude-cli"
    assert design_written["usage"]["questions"] == len(server.requests) == 2


def test_a_refused_key_is_reported_without_its_value(choose: Choose) -> None:
    with ModelServer(Rule(("How",), [["x"]], faults=[unauthorized()] * 20)) as server:
        model = _claude(choose, server)
        with pytest.raises(ModelError, match="claude-cli failed") as refused:
            model.ask("How?", seconds=60)
    assert "key" in refused.value.hint
    assert _KEY not in str(refused.value)


def _program(folder: Path, name: str, script: str) -> str:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def _lines(*events: dict[str, object]) -> str:
    return "\n".join(f"echo '{json.dumps(event)}'" for event in events)


_FORMS = {
    "gemini-cli": (
        "CALORON_GEMINI", "GEMINI_API_KEY",
        _lines({"type": "init"}, {"type": "message", "role": "user", "content": "?"},
               {"type": "message", "role": "assistant", "content": "forty", "delta": True},
               {"type": "message", "role": "assistant", "content": "-two", "delta": True},
               {"type": "result", "status": "success",
                "stats": {"input_tokens": 5, "output_tokens": 2}}),
        _lines({"type": "result", "status": "error", "error": {"message": "no quota"}})
        + "\nexit 1",
    ),
    "codex-cli": (
        "CALORON_CODEX", "OPENAI_API_KEY",
        _lines({"type": "item.completed", "item": {"type": "reasoning", "text": "hm"}},
               {"type": "item.completed", "item": {"type": "agent_message", "text": "forty-two"}},
               {"type": "turn.completed", "usage": {"input_tokens": 5, "output_tokens": 2}}),
        _lines({"type": "turn.failed", "error": {"message": "no quota"}}) + "\nexit 1",
    ),
    "opencode": (
        "CALORON_OPENCODE", "OPENAI_API_KEY",
        _lines({"type": "text", "part": {"text": "forty-two"}},
               {"type": "step_finish",
                "part": {"reason": "stop", "tokens": {"input": 5, "output": 2}}}),
        _lines({"type": "error", "error": {"name": "X", "data": {"message": "no quota"}}}),
    ),
    "cursor-cli": ("CALORON_CURSOR", "CURSOR_API_KEY", "echo forty-two", "echo no quota; exit 1"),
}  # fmt: skip


@pytest.mark.parametrize("provider", _FORMS)
def test_the_answer_and_the_failure_of_each_program_are_read(
    choose: Choose, tmp_path: Path, provider: str
) -> None:
    variable, key, good, bad = _FORMS[provider]
    model = choose(provider, **{key: _KEY, variable: _program(tmp_path, "good", good)})
    answer = model.ask("How many?", seconds=60)
    assert answer.text == "forty-two"
    assert provider == "cursor-cli" or (answer.tokens_in, answer.tokens_out) == (5, 2)
    model = choose(provider, **{variable: _program(tmp_path, "bad", bad)})
    with pytest.raises(ModelError, match=f"{provider} failed: .*no quota|{provider} failed: it"):
        model.ask("How many?", seconds=60)


def _codex(choose: Choose, folder: Path, script: str) -> Model:
    program = _program(folder, "program", script)
    return choose("codex-cli", CALORON_CODEX=program, OPENAI_API_KEY=_KEY)


def test_a_program_sees_only_its_question_and_its_key(
    choose: Choose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = (
        'printf \'{"type":"item.completed","item":{"type":"agent_message","text":"%s"}}\\n\' '
        '"$(cat | tr -d "\\n"); $HOME; ${CALORON_TEST_LEAK:-none}; ${OPENAI_API_KEY#sk-ant-}; '
        '$(ls | wc -l)"\n'
    ) + _lines({"type": "turn.completed", "usage": {}})
    (tmp_path / "mine.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    answer = _codex(choose, tmp_path, script).ask("How many?", seconds=60)
    assert answer.text == "How many?; /home/agent; none; planted-key-4711; 0"


_KNOCKS = """python3 - <<'END'
import json, os, socket, urllib.error, urllib.request
def direct(port):
    try:
        return socket.create_connection(("127.0.0.1", port), 5).recv(5).decode() or "refused"
    except OSError:
        return "refused"
def proxied(target):
    try:
        return str(urllib.request.urlopen(f"http://{target}/", timeout=20).status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError:
        return "refused"
answers = [direct(@PORT@), direct(@OTHER@), proxied("elsewhere.invalid")]
item = {"type": "agent_message", "text": " ".join(answers)}
print(json.dumps({"type": "item.completed", "item": item}))
print(json.dumps({"type": "turn.completed", "usage": {}}))
print(json.dumps({"type": "message", "role": "assistant", "content": " ".join(answers)}))
print(json.dumps({"type": "result", "status": "success"}))
print(json.dumps({"type": "text", "part": {"text": " ".join(answers)}}))
print(json.dumps({"type": "step_finish", "part": {"reason": "stop"}}))
END
"""


@pytest.mark.parametrize("provider", _FORMS)
@pytest.mark.parametrize("own_address", [False, True], ids=["provider", "own address"])
def test_a_program_reaches_only_its_provider(
    choose: Choose, tmp_path: Path, provider: str, own_address: bool
) -> None:
    variable, key, *_ = _FORMS[provider]
    with serving(greet) as port, serving(greet) as other:
        own = {"CALORON_LLM_BASE_URL": f"http://127.0.0.1:{port}/v1"} if own_address else {}
        script = _KNOCKS.replace("@PORT@", str(port)).replace("@OTHER@", str(other))
        program = _program(tmp_path, "knocks", script)
        answer = choose(provider, **own, **{key: _KEY, variable: program}).ask("x", seconds=60)
    reached = own_address and provider != "cursor-cli"
    line = f"{'hello' if reached else 'refused'} refused 403"
    assert line in answer.text


def test_a_provider_whose_hosts_are_not_known_needs_an_address(
    choose: Choose, tmp_path: Path
) -> None:
    program = _program(tmp_path, "opencode", "true")
    model = choose("opencode", CALORON_OPENCODE=program, CALORON_LLM_MODEL="some/model")
    with pytest.raises(PreconditionFailed, match="'some'") as refused:
        model.ask("x", seconds=60)
    assert "CALORON_LLM_BASE_URL" in refused.value.hint


def test_a_program_that_hangs_is_ended(choose: Choose, tmp_path: Path) -> None:
    model = _codex(choose, tmp_path, "sleep 1000")
    with pytest.raises(ModelError, match="in time"):
        model.ask("x", seconds=1)
    with pytest.raises(ModelError, match="was cancelled"):
        model.ask("x", seconds=600, stopped=lambda: True)


def test_a_missing_program_or_key_is_reported(
    choose: Choose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(**environment: str) -> ModelAnswer:
        return choose("gemini-cli", **environment).ask("x", seconds=60)

    with pytest.raises(PreconditionFailed, match="not installed: nowhere"):
        ask(CALORON_GEMINI="nowhere", GEMINI_API_KEY=_KEY)
    monkeypatch.delenv("GEMINI_API_KEY")
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with pytest.raises(PreconditionFailed, match="Gemini CLI has no key"):
        ask(CALORON_GEMINI=_program(tmp_path, "gemini", "true"))


def test_a_question_leaves_no_files_behind(
    choose: Choose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    model = _codex(choose, tmp_path, "touch /workspace/x $HOME/y; false")
    with pytest.raises(ModelError):
        model.ask("x", seconds=60)
    assert not list(tmp_path.glob("caloron-model*"))
