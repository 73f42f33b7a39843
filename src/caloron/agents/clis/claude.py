"""Claude Code without a terminal.

The repository's own instructions count, its settings do not: hooks, MCP servers and key helpers of
a project would run arbitrary programs. Only the private configuration of the attempt is read, and
that imports the project's `CLAUDE.md` and `AGENTS.md`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from caloron.agents.clis import claude_events
from caloron.agents.clis.base import Cli, installation, lines
from caloron.agents.workspace.workspaces import clear, folder_in, read_regular
from caloron.errors import PreconditionFailed, UsageError
from caloron.ids import http_url
from caloron.ports import AgentCommand, AgentReport, AgentRequest, CliInfo, Permissions
from caloron.store import log
from caloron.store.files import write_atomic

_CONFIG = ".claude"
_PROJECT_DOCS = ("CLAUDE.md", ".claude/CLAUDE.md", "AGENTS.md")
_PERMISSIONS: dict[Permissions, tuple[str, ...]] = {
    "answer": ("--tools", ""),
    # Everything but edits needs a permission that no person can give: it is denied.
    "edit": ("--permission-mode", "acceptEdits"),
    "full": ("--dangerously-skip-permissions",),
}
_SESSION_LIMIT = 64 << 20
_LOGIN_LIMIT = 1 << 20
_NO_SERVERS = '{"mcpServers":{}}'
#: The CLI's own defaults try for three minutes, and wait five for an answer.
_PATIENCE = {"CLAUDE_CODE_MAX_RETRIES": "3", "API_TIMEOUT_MS": "300000"}
_QUIET = {
    # It may work without asking, also as root: the sandbox is ours.
    "IS_SANDBOX": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
}
INFO = CliInfo(
    name="claude-code",
    title="Claude Code",
    program="claude",
    program_env="CALORON_CLAUDE",
    install="npm install -g @anthropic-ai/claude-code",
    key_vars=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    env_prefixes=("ANTHROPIC_", "CLAUDE_", "API_TIMEOUT_MS"),
    hosts=("api.anthropic.com",),
    model_prefix="claude/",
    reports_cost=True,
    provider="claude-cli",
    full_access_env="CALORON_ALLOW_DANGEROUS_CLAUDE",
)
_NO_LOGIN = PreconditionFailed(
    "Claude Code has neither a key nor a login here",
    hint=f"set one of {', '.join(INFO.key_vars)}, or log in by starting `claude` once; for a token "
    "that lasts, `claude setup-token` makes one for CLAUDE_CODE_OAUTH_TOKEN",
)


class ClaudeCode(Cli):
    """The framework `claude-code`."""

    info = INFO

    def check(self) -> None:
        _program()
        _secrets()
        _hosts()

    def command(self, request: AgentRequest) -> AgentCommand:
        config = clear(request.home / _CONFIG)
        config.mkdir(mode=0o700, parents=True)
        imports = "".join(f"@{request.workspace / name}\n" for name in _PROJECT_DOCS)
        (config / "CLAUDE.md").write_text(imports, "utf-8")
        program, files = _program()
        return AgentCommand(
            argv=(*program, *_arguments(request)),
            env=_environment(request),
            secrets=_secrets(),
            stdin=request.prompt,
            read_only=files,
            hosts=_hosts(),
        )

    def read_report(self, run_dir: Path) -> AgentReport:
        log = run_dir / "output.log"
        reader = claude_events.EventReader()
        try:
            ended_at = log.stat().st_mtime
            reader.feed(lines(log))
        except FileNotFoundError:
            ended_at = time.time()
        return reader.report(ended_at)

    def save_session(
        self, home: Path, sessions: Path, session: str, clean: Callable[[bytes], bytes] = bytes
    ) -> bool:
        if not claude_events.SESSION.fullmatch(session):
            return False
        data = _conversation(home, f"{session}.jsonl")
        # A kill may have cut the last line.
        data = data[: data.rfind(b"\n") + 1]
        if not data:
            return False
        sessions.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(sessions / f"{session}.jsonl", clean(data))
        return True

    @staticmethod
    def format_line(line: str) -> str:
        return claude_events.format_line(line)


def _arguments(request: AgentRequest) -> list[str]:
    arguments = ["-p", "--output-format", "stream-json", "--verbose"]
    arguments += _PERMISSIONS[request.permissions]
    arguments += ["--setting-sources", "user"]
    arguments += ["--strict-mcp-config", "--mcp-config", _NO_SERVERS]
    arguments += _session(request)
    if request.model:
        arguments += ["--model", request.model]
    if request.budget_usd is not None:
        arguments += ["--max-budget-usd", f"{request.budget_usd:.4f}"]
    if request.instructions:
        clear(request.home / "instructions.md").write_text(request.instructions, "utf-8")
        inside = request.sandbox_home / "instructions.md"
        arguments += ["--append-system-prompt-file", str(inside)]
    return arguments


def _session(request: AgentRequest) -> list[str]:
    """Continue a conversation that was saved, or begin one."""
    if request.sessions is not None and claude_events.SESSION.fullmatch(request.session):
        saved = request.sessions / f"{request.session}.jsonl"
        if saved.is_file():
            # The CLI looks for it under the name of the folder that it is started in.
            project = re.sub(r"[^a-zA-Z0-9]", "-", str(request.workspace))
            conversations = request.home / _CONFIG / "projects" / project
            conversations.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(saved, conversations / saved.name)
            return ["--resume", request.session]
    return ["--session-id", str(uuid.uuid4())]


def _environment(request: AgentRequest) -> dict[str, str]:
    environment = {"CLAUDE_CONFIG_DIR": str(request.sandbox_home / _CONFIG)} | _QUIET
    environment |= {name: os.environ.get(name, value) for name, value in _PATIENCE.items()}
    if base := os.environ.get("ANTHROPIC_BASE_URL"):
        environment["ANTHROPIC_BASE_URL"] = base
    return environment


def _secrets() -> dict[str, str]:
    """Return the key that is set, or the access token of the user's own login.

    The token that renews a login stays outside: renewing it in a copy would end the user's login.
    """
    keys = {name: os.environ[name] for name in INFO.key_vars if os.environ.get(name)}
    if keys:
        return keys
    file = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / _CONFIG, ".credentials.json")
    try:
        with file.open("rb") as opened:
            login = json.loads(opened.read(_LOGIN_LIMIT))["claudeAiOauth"]
            token, expires_ms = str(login["accessToken"]), float(login.get("expiresAt") or "inf")
    except FileNotFoundError:
        raise _NO_LOGIN from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PreconditionFailed(
            f"the login of Claude Code in {file} cannot be read", hint=_NO_LOGIN.hint
        ) from error
    if expires_ms / 1000 < time.time():
        raise PreconditionFailed(
            f"the login of Claude Code in {file} has expired",
            hint="start `claude` once to renew it; for a token that lasts, `claude setup-token` "
            "makes one for CLAUDE_CODE_OAUTH_TOKEN",
        )
    return {"CLAUDE_CODE_OAUTH_TOKEN": token}


def _hosts() -> tuple[str, ...]:
    base = os.environ.get("ANTHROPIC_BASE_URL", "")
    if not base:
        return INFO.hosts
    url = http_url(base)
    if url is None:
        raise UsageError(
            f"ANTHROPIC_BASE_URL is {base!r}; expected an address such as https://host:port",
            hint="correct or unset it; nothing was started",
        )
    # With its port, because a gateway of one's own may have a private address.
    port = url.port or (443 if url.scheme == "https" else 80)
    host = "127.0.0.1" if url.hostname == "localhost" else url.hostname or ""
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}",)


def _program() -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return how to start Claude Code, and the files of it that must be readable inside."""
    # npm installs the program in a package of its own beside this one.
    program, files = installation(INFO, "@anthropic-ai/claude-code*")
    with Path(program[-1]).open("rb") as opened:
        is_script = opened.read(2) == b"#!"
    if is_script and len(program) == 1:
        raise PreconditionFailed(
            f"{program[0]} is a script that starts Claude Code, not Claude Code itself",
            hint="name the program that it starts in CALORON_CLAUDE",
        )
    return program, files


def _conversation(home: Path, name: str) -> bytes:
    """Read the file of a conversation in an agent's home; empty: it cannot be read."""
    try:
        with folder_in(home, _CONFIG, "projects") as projects:
            folders = [entry.name for entry in os.scandir(projects)]
    except FileNotFoundError:
        return b""
    except OSError as error:
        log.warning("cannot search for the conversation of an agent", error=error, home=home)
        return b""
    for folder in folders:
        try:
            with folder_in(home, _CONFIG, "projects", folder) as handle:
                return read_regular(handle, name, _SESSION_LIMIT)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("cannot read the conversation of an agent", error=error, home=home)
    return b""
