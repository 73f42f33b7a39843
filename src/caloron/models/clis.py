"""How each agent CLI is asked one question without a terminal, and how its answer is read.

Claude Code is asked by the runner that agents have; these are the others. Each gets a private HOME
with nothing of the user's in it but the key, and nothing that a repository brings along.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from caloron.agents.network import hosts_in
from caloron.errors import PreconditionFailed
from caloron.ports import AgentCommand, AgentReport, AgentRequest

_LINE_LIMIT = 8 << 20
_SAID = 300
_GEMINI_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "general": {"maxAttempts": 2, "retryFetchErrors": False, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}
_OPENCODE_QUIET = {
    f"OPENCODE_DISABLE_{what}": "1"
    for what in (
        "AUTOUPDATE",
        "CLAUDE_CODE",
        "DEFAULT_PLUGINS",
        "LSP_DOWNLOAD",
        "MODELS_FETCH",
        "PROJECT_CONFIG",
    )
}
#: Where each provider is asked unless the user names another address.
_HOSTS = {
    "anthropic": "api.anthropic.com",
    "google": "generativelanguage.googleapis.com",
    "mistral": "api.mistral.ai",
    "openai": "api.openai.com",
}
_CURSOR_HOSTS = ("*.cursor.sh", "*.cursor.com")
#: An argument of a process is no longer than this.
_ARGUMENT_BYTES = 128 * 1024 - 1


class Cli(Protocol):
    """What a model behind a program needs: every agent's runner has it too."""

    def command(self, request: AgentRequest) -> AgentCommand: ...

    def report(self, run_dir: Path) -> AgentReport: ...


class GeminiCli:
    """Google's `gemini`."""

    keys = ("GEMINI_API_KEY", "GOOGLE_API_KEY")

    def __init__(self, base: str) -> None:
        self._base = base

    def command(self, request: AgentRequest) -> AgentCommand:
        program, files = installation("gemini", "CALORON_GEMINI")
        place = request.home / ".gemini"
        place.mkdir(parents=True)
        (place / "settings.json").write_text(json.dumps(_GEMINI_SETTINGS))
        env = {"GEMINI_CLI_NO_RELAUNCH": "true"}
        if self._base:
            env["GOOGLE_GEMINI_BASE_URL"] = self._base
        arguments = ("-m", request.model, "--skip-trust", "-o", "stream-json")
        return AgentCommand(
            argv=(*program, *arguments),
            env=env,
            secrets={"GEMINI_API_KEY": key_of(self.keys, "gemini")},
            stdin=request.prompt,
            read_only=files,
            hosts=_hosts(self._base, "google"),
        )

    def report(self, run_dir: Path) -> AgentReport:
        said: list[str] = []
        result: dict[str, Any] = {}
        for event in _events(run_dir):
            if event.get("type") == "message" and event.get("role") == "assistant":
                said.append(_text(event.get("content")))
            elif event.get("type") == "result":
                result = event
        if result.get("status") != "success":
            return _failed(run_dir, _object(result.get("error")).get("message"))
        stats = _object(result.get("stats"))
        return AgentReport(
            text="".join(said),
            tokens_in=_count(stats.get("input_tokens")),
            tokens_out=_count(stats.get("output_tokens")),
        )


class CodexCli:
    """OpenAI's `codex`, which may read nothing but its empty folder."""

    keys = ("OPENAI_API_KEY",)

    def __init__(self, base: str) -> None:
        self._base = base

    def command(self, request: AgentRequest) -> AgentCommand:
        program, files = installation("codex", "CALORON_CODEX")
        # The built-in provider tries a WebSocket first, and loops for ever where it is refused.
        provider = (
            f'model_providers.caloron={{name="caloron",base_url={json.dumps(self._base)},'
            'wire_api="responses",env_key="OPENAI_API_KEY",request_max_retries=2,'
            "stream_max_retries=1,stream_idle_timeout_ms=120000}"
        )
        settings = ("model_provider=caloron", provider, "analytics.enabled=false")
        arguments = ["exec", "--json", "--skip-git-repo-check", "--sandbox", "read-only"]
        arguments += ["-m", request.model, "--disable", "plugins"]
        for setting in (*settings, "project_doc_max_bytes=0"):
            arguments += ["-c", setting]
        return AgentCommand(
            argv=(*program, *arguments, "-"),
            secrets={"OPENAI_API_KEY": key_of(self.keys, "codex")},
            stdin=request.prompt,
            read_only=files,
            hosts=_hosts(self._base, "openai"),
        )

    def report(self, run_dir: Path) -> AgentReport:
        said, problem = "", ""
        usage: dict[str, Any] | None = None
        for event in _events(run_dir):
            item = _object(event.get("item"))
            match event.get("type"):
                case "item.completed" if item.get("type") == "agent_message":
                    said = _text(item.get("text"))
                case "turn.completed":
                    usage = _object(event.get("usage"))
                case "turn.failed":
                    problem = _text(_object(event.get("error")).get("message"))
        if usage is None:
            return _failed(run_dir, problem)
        return AgentReport(
            text=said,
            tokens_in=_count(usage.get("input_tokens")),
            tokens_out=_count(usage.get("output_tokens")),
        )


class OpenCode:
    """`opencode`, without any of its tools; a base address means an OpenAI-compatible endpoint."""

    keys = (
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "GEMINI_API_KEY",
        "GOOGLE_API_KEY",
        "MISTRAL_API_KEY",
    )

    def __init__(self, base: str) -> None:
        self._base = base

    def command(self, request: AgentRequest) -> AgentCommand:
        program, files = installation("opencode", "CALORON_OPENCODE")
        self._keep_from_installing(request.home)
        config: dict[str, Any] = {
            "model": request.model,
            "small_model": request.model,
            "tools": {"*": False},
            "permission": {"edit": "deny", "bash": "deny", "webfetch": "deny"},
            "share": "disabled",
            "autoupdate": False,
            "snapshot": False,
        }
        if self._base:
            model = request.model.partition("/")[2] or request.model
            options = {"baseURL": self._base, "apiKey": "{env:OPENAI_API_KEY}"}
            provider = {"npm": "@ai-sdk/openai-compatible", "options": options}
            config["provider"] = {"caloron": {**provider, "models": {model: {}}}}
            config["model"] = config["small_model"] = f"caloron/{model}"
        keys = {name: os.environ[name] for name in self.keys if os.environ.get(name)}
        return AgentCommand(
            argv=(*program, "run", "--format", "json", "--title", "question"),
            env=_OPENCODE_QUIET | {"OPENCODE_CONFIG_CONTENT": json.dumps(config)},
            secrets=keys,
            stdin=request.prompt,
            read_only=files,
            hosts=_hosts(self._base, request.model.partition("/")[0]),
        )

    def _keep_from_installing(self, home: Path) -> None:
        """Without these it fetches a package of its own in the background."""
        place = home / ".config" / "opencode"
        (place / "node_modules").mkdir(parents=True)
        lock = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
        (place / "package-lock.json").write_text(json.dumps(lock))

    def report(self, run_dir: Path) -> AgentReport:
        said: list[str] = []
        tokens_in = tokens_out = 0
        ended, problem = "", ""
        for event in _events(run_dir):
            part = _object(event.get("part"))
            match event.get("type"):
                case "text":
                    said.append(_text(part.get("text")))
                case "step_finish":
                    ended, tokens = _text(part.get("reason")), _object(part.get("tokens"))
                    tokens_in += _count(tokens.get("input"))
                    tokens_out += _count(tokens.get("output"))
                case "error":
                    error = _object(event.get("error"))
                    told = _object(error.get("data")).get("message")
                    problem = _text(told) or _text(error.get("name"))
        if problem or ended != "stop":
            return _failed(run_dir, problem)
        return AgentReport(text="".join(said), tokens_in=tokens_in, tokens_out=tokens_out)


class CursorCli:
    """`cursor-agent`, which takes its question as an argument and answers in plain text."""

    keys = ("CURSOR_API_KEY",)

    def command(self, request: AgentRequest) -> AgentCommand:
        program, files = installation("cursor-agent", "CALORON_CURSOR")
        if len(request.prompt.encode()) > _ARGUMENT_BYTES:
            raise PreconditionFailed(
                "the question is too long for cursor-agent, which takes it as an argument",
                hint="choose another provider (CALORON_LLM_PROVIDER)",
            )
        model = ("--model", request.model) if request.model else ()
        question = ("-p", request.prompt.replace("\0", ""))
        return AgentCommand(
            argv=(*program, "--output-format", "text", *model, *question),
            secrets={"CURSOR_API_KEY": key_of(self.keys, "cursor-agent")},
            read_only=files,
            hosts=_CURSOR_HOSTS,
        )

    def report(self, run_dir: Path) -> AgentReport:
        text = (run_dir / "output.log").read_text("utf-8", "replace").strip()
        return AgentReport(text=text) if text else _failed(run_dir, "")


def _hosts(base: str, provider: str) -> tuple[str, ...]:
    """The hosts that a program may reach: that of the user's address, else the provider's."""
    if base:
        return hosts_in((base,))
    if provider not in _HOSTS:
        raise PreconditionFailed(
            f"the hosts of the provider {provider!r} are not known, so it cannot be reached",
            hint="name its address in CALORON_LLM_BASE_URL",
        )
    return (_HOSTS[provider],)


def key_of(names: tuple[str, ...], who: str) -> str:
    """The first of these variables that is set."""
    found = next((os.environ[name] for name in names if os.environ.get(name)), "")
    if not found:
        raise PreconditionFailed(f"{who} has no key here", hint=f"set {' or '.join(names)}")
    return found


def installation(program: str, variable: str) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """How a program is started, and which files of it must be readable in a sandbox."""
    named = os.environ.get(variable) or program
    found = shutil.which(named)
    if found is None:
        raise PreconditionFailed(
            f"{named} is not installed here, or may not be run",
            hint=f"install it, or name its program in {variable}",
        )
    real = Path(found).resolve()
    # What npm installs lies in packages side by side.
    packages = next((up for up in real.parents if up.name == "node_modules"), None)
    files = (packages or real,)
    with real.open("rb") as opened:
        first = opened.readline(200)
    if not (first.startswith(b"#!") and b"node" in first):
        return (str(real),), files
    node = shutil.which("node")
    if node is None:
        raise PreconditionFailed(f"{named} needs `node`, which is not there", hint="install it")
    interpreter = Path(node).resolve()
    return (str(interpreter), str(real)), (*files, interpreter)


def _events(run_dir: Path) -> Iterator[dict[str, Any]]:
    """The lines of output that are JSON objects; everything else is chatter."""
    try:
        with (run_dir / "output.log").open("rb") as log:
            while line := log.readline(_LINE_LIMIT):
                if not line.startswith(b"{"):
                    continue
                try:
                    event = msgspec.json.decode(line)
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    continue
                if isinstance(event, dict):
                    yield event
    except FileNotFoundError:
        return


def _failed(run_dir: Path, told: object) -> AgentReport:
    """A failure in the program's own words, or in its last line."""
    said = _text(told)
    if not said:
        try:
            log = (run_dir / "output.log").read_text("utf-8", "replace")
        except FileNotFoundError:
            log = ""
        lines = [line for line in log.splitlines() if line.strip()]
        said = lines[-1] if lines else "it said nothing"
    return AgentReport(trouble="crash", detail=" ".join(said.split())[:_SAID])


def _object(told: object) -> dict[str, Any]:
    return told if isinstance(told, dict) else {}


def _text(told: object) -> str:
    return told if isinstance(told, str) else ""


def _count(told: object) -> int:
    return told if isinstance(told, int) and told > 0 else 0
