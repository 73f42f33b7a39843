"""Which model is asked: what the environment says, checked, and never guessed in silence."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from caloron.errors import CaloronError, ModelError, PreconditionFailed, UsageError
from caloron.ports import Model, ModelAnswer
from caloron.store.redact import Redactor, secrets_in

PROVIDER = "CALORON_LLM_PROVIDER"
MODEL = "CALORON_LLM_MODEL"
BASE = "CALORON_LLM_BASE_URL"
TIMEOUT = "CALORON_LLM_TIMEOUT"
FIXTURE = "CALORON_LLM_FIXTURE"
UNSANDBOXED = "CALORON_LLM_UNSANDBOXED"
DANGEROUS = "CALORON_ALLOW_DANGEROUS_CLAUDE"
#: Any of these keeps programs out of it; the others are what neighbours call the same.
SKIP_CLI = (
    "CALORON_LLM_SKIP_CLI",
    "LLM_HERE_SKIP_CLI",
    "NOETHER_LLM_SKIP_CLI",
    "AGENTSPEC_LLM_SKIP_CLI",
)
AUTO = "auto"

_SECONDS, _LONGEST = 120.0, 3600.0
_LONGEST_ANSWER = 1 << 20
_YES = ("1", "true", "yes", "on")


class _Program(NamedTuple):
    """An agent CLI: how it is called, and what it needs."""

    program: str
    variable: str
    base_variable: str = ""
    base: str = ""
    model: str = ""


class _Endpoint(NamedTuple):
    """An HTTP endpoint: where it is, whose key it wants, and which model it is asked for."""

    base_variable: str
    base: str
    keys: tuple[str, ...]
    model: str


_PROGRAMS = {
    "claude-cli": _Program("claude", "CALORON_CLAUDE"),
    "gemini-cli": _Program(
        "gemini", "CALORON_GEMINI", "GOOGLE_GEMINI_BASE_URL", "", "gemini-2.5-flash"
    ),
    "cursor-cli": _Program("cursor-agent", "CALORON_CURSOR"),
    "opencode": _Program("opencode", "CALORON_OPENCODE", "", "", "anthropic/claude-sonnet-4-5"),
    "codex-cli": _Program(
        "codex", "CALORON_CODEX", "OPENAI_BASE_URL", "https://api.openai.com/v1", "gpt-5.5"
    ),
}
_ENDPOINTS = {
    "anthropic-api": _Endpoint(
        "ANTHROPIC_BASE_URL",
        "https://api.anthropic.com",
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        "claude-sonnet-4-5",
    ),
    "openai-api": _Endpoint(
        "OPENAI_BASE_URL", "https://api.openai.com/v1", ("OPENAI_API_KEY",), "gpt-5.5"
    ),
    "gemini-api": _Endpoint(
        "GOOGLE_GEMINI_BASE_URL",
        "https://generativelanguage.googleapis.com",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "gemini-2.5-flash",
    ),
    "mistral-api": _Endpoint(
        "MISTRAL_BASE_URL",
        "https://api.mistral.ai/v1",
        ("MISTRAL_API_KEY",),
        "mistral-large-latest",
    ),
}
PROVIDERS = (*_PROGRAMS, *_ENDPOINTS, "stub", AUTO)


class Chosen(NamedTuple):
    """The model to ask, or why there is none."""

    model: Model | None
    reason: str


def chosen_model() -> Chosen:
    """What the environment asks for; a wish that cannot be met is an error, never another path."""
    provider = os.environ.get(PROVIDER, "").strip()
    if not provider:
        return Chosen(None, f"no model is configured ({PROVIDER})")
    if provider not in PROVIDERS:
        raise UsageError(
            f"{PROVIDER} is {provider!r}, which is no provider",
            hint=f"known: {', '.join(PROVIDERS)}",
        )
    if provider == AUTO:
        provider = _found()
        if not provider:
            return Chosen(None, f"{PROVIDER} is auto, and neither a program nor a key was found")
    if provider in _PROGRAMS and _skips_programs():
        raise UsageError(
            f"{PROVIDER} is {provider}, and {SKIP_CLI[0]} keeps programs out of it",
            hint="unset one of the two",
        )
    return Chosen(_Guarded(_made(provider)), "")


def ask_seconds() -> float:
    """How long one question may take."""
    told = os.environ.get(TIMEOUT, "").strip()
    if not told:
        return _SECONDS
    try:
        seconds = float(told)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise UsageError(
            f"{TIMEOUT} is {told!r}", hint=f"a number of seconds above 0, at most {_LONGEST:g}"
        )
    return seconds


def _found() -> str:
    """The first provider that could be asked here: programs, then keys."""
    programs = {} if _skips_programs() else _PROGRAMS
    for name, one in programs.items():
        if shutil.which(os.environ.get(one.variable) or one.program):
            return name
    keyed = (n for n, one in _ENDPOINTS.items() if any(os.environ.get(key) for key in one.keys))
    return next(keyed, "")


def _skips_programs() -> bool:
    return any(_is_yes(name) for name in SKIP_CLI)


def _is_yes(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in _YES


def _made(provider: str) -> Model:
    if provider == "stub":
        from caloron.models.scripted import ScriptedModel

        fixture = os.environ.get(FIXTURE, "")
        if not fixture:
            raise UsageError("the scripted model has no fixture", hint=f"set {FIXTURE} to a file")
        return ScriptedModel(Path(fixture))
    if provider in _PROGRAMS:
        return _program(provider, _PROGRAMS[provider])
    return _endpoint(provider, _ENDPOINTS[provider])


def _program(provider: str, one: _Program) -> Model:
    from caloron.agents.claude_code import ClaudeCodeRunner
    from caloron.models import clis
    from caloron.models.programs import ProgramModel

    base = _base(one.base_variable, one.base)
    makers: dict[str, Callable[[], clis.Cli]] = {
        "claude-cli": ClaudeCodeRunner,
        "gemini-cli": lambda: clis.GeminiCli(base),
        "cursor-cli": clis.CursorCli,
        "opencode": lambda: clis.OpenCode(base),
        "codex-cli": lambda: clis.CodexCli(base),
    }
    return ProgramModel(
        provider,
        makers[provider](),
        model=os.environ.get(MODEL, "").strip() or one.model,
        may_act=provider == "claude-cli" and _is_yes(DANGEROUS),
        unsandboxed=_is_yes(UNSANDBOXED),
    )


def _endpoint(provider: str, one: _Endpoint) -> Model:
    from caloron.models.endpoints import AnthropicEndpoint, GeminiEndpoint, OpenAiEndpoint

    base = _base(one.base_variable, one.base)
    model = os.environ.get(MODEL, "").strip() or one.model
    key = next((name for name in one.keys if os.environ.get(name, "").strip()), "")
    if not key and base == one.base:
        raise PreconditionFailed(f"{provider} has no key here", hint=f"set {' or '.join(one.keys)}")
    # A server of one's own may ask for none.
    value = os.environ[key].strip() if key else ""
    if not value.isascii() or not value.isprintable():
        raise UsageError(f"{key} holds characters that no key has", hint=f"set {key} again")
    if provider == "anthropic-api":
        header = {"ANTHROPIC_API_KEY": ("x-api-key", value)}
        name, told = header.get(key, ("authorization", f"Bearer {value}"))
        return AnthropicEndpoint(provider, base, model, {name: told} if value else {})
    if provider == "gemini-api":
        return GeminiEndpoint(provider, base, model, {"x-goog-api-key": value} if value else {})
    headers = {"authorization": f"Bearer {value}"} if value else {}
    return OpenAiEndpoint(provider, base, model, headers)


def _base(variable: str, usual: str) -> str:
    """The address to ask: ours, the provider's own variable, or where everybody finds it."""
    named = BASE if os.environ.get(BASE, "").strip() else variable
    base = os.environ.get(named, "").strip().rstrip("/") or usual
    if not base:
        return ""
    parts = urlsplit(base)
    good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    if not good or parts.query or parts.fragment:
        raise UsageError(
            f"{named} is not an address that a model can be asked at",
            hint="give it as https://host or http://127.0.0.1:8080/v1, without a name or a key",
        )
    return base


class _Guarded:
    """Keeps every secret of this environment out of questions, answers and messages."""

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self._model = model
        self._redactor = Redactor(secrets_in(os.environ))

    def ask(
        self, prompt: str, *, seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> ModelAnswer:
        clean = self._redactor.text
        problem: CaloronError | None = None
        try:
            answer = self._model.ask(clean(prompt), seconds=seconds, stopped=stopped)
        except CaloronError as error:
            kind = type(error) if isinstance(error, ModelError | UsageError) else PreconditionFailed
            problem = kind(clean(str(error)), hint=clean(error.hint))
        if problem is not None:
            # Raised out here without the one that it stands for: that one was not looked through.
            raise problem
        if len(answer.text) > _LONGEST_ANSWER:
            raise ModelError(
                f"the answer of {self.name} has {len(answer.text)} characters",
                hint=f"at most {_LONGEST_ANSWER} are taken; ask for less",
            )
        return ModelAnswer(
            text=clean(answer.text),
            model=clean(answer.model),
            tokens_in=answer.tokens_in,
            tokens_out=answer.tokens_out,
            cost_usd=answer.cost_usd,
        )
