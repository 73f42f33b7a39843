"""Chooses the model that stages ask, as the environment configures it; it never guesses."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from caloron.errors import CaloronError, ModelError, PreconditionFailed, UsageError
from caloron.ids import http_url
from caloron.ports import CliInfo, Model, ModelAnswer
from caloron.store.redact import Redactor, secrets_in

PROVIDER = "CALORON_LLM_PROVIDER"
MODEL = "CALORON_LLM_MODEL"
BASE = "CALORON_LLM_BASE_URL"
TIMEOUT = "CALORON_LLM_TIMEOUT"
FIXTURE = "CALORON_LLM_FIXTURE"
UNSANDBOXED = "CALORON_LLM_UNSANDBOXED"
#: Any of these excludes agent CLIs; the last three are the names that related tools use.
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


class _Endpoint(NamedTuple):
    """An HTTP endpoint: its address, its keys and its default model."""

    base_variable: str
    base: str
    keys: tuple[str, ...]
    model: str


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


class ModelChoice(NamedTuple):
    """The model to ask, or the reason why there is none."""

    model: Model | None
    reason: str


def chosen_model() -> ModelChoice:
    """Return the model that is configured; one that cannot be used is an error."""
    provider = os.environ.get(PROVIDER, "").strip()
    if not provider:
        return ModelChoice(None, f"no model is configured ({PROVIDER})")
    clis = _clis()
    providers = (*clis, *_ENDPOINTS, "stub", AUTO)
    if provider not in providers:
        raise UsageError(
            f"{PROVIDER} is {provider!r}, which is no provider",
            hint=f"known: {', '.join(providers)}",
        )
    if provider == AUTO:
        provider = _available(clis)
        if not provider:
            reason = f"{PROVIDER} is auto, and there is neither a program nor a key"
            return ModelChoice(None, reason)
    if provider in clis and _skips_clis():
        raise UsageError(
            f"{PROVIDER} is {provider}, and {SKIP_CLI[0]} excludes programs",
            hint="unset one of the two",
        )
    return ModelChoice(_RedactingModel(_model(provider, clis)), "")


def _clis() -> dict[str, CliInfo]:
    """Return the agent CLIs that can be asked, by their names as providers."""
    from caloron.agents.clis.registry import NAMES, info

    return {cli.provider: cli for cli in map(info, NAMES) if cli.provider}


def ask_seconds() -> float:
    """Return how long one question may take."""
    setting = os.environ.get(TIMEOUT, "").strip()
    if not setting:
        return _SECONDS
    try:
        seconds = float(setting)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise UsageError(
            f"{TIMEOUT} is {setting!r}", hint=f"a number of seconds above 0, at most {_LONGEST:g}"
        )
    return seconds


def _available(clis: dict[str, CliInfo]) -> str:
    """Return the first provider that can be asked here: an installed program, else a key."""
    from caloron.agents.clis.registry import is_installed

    programs = () if _skips_clis() else (name for name, cli in clis.items() if is_installed(cli))
    keyed = (name for name, end in _ENDPOINTS.items() if any(map(os.environ.get, end.keys)))
    return next(chain(programs, keyed), "")


def _skips_clis() -> bool:
    return any(_is_yes(name) for name in SKIP_CLI)


def _is_yes(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in _YES


def _model(provider: str, clis: dict[str, CliInfo]) -> Model:
    if provider == "stub":
        from caloron.models.scripted import ScriptedModel

        fixture = os.environ.get(FIXTURE, "")
        if not fixture:
            raise UsageError("the scripted model has no fixture", hint=f"set {FIXTURE} to a file")
        return ScriptedModel(Path(fixture))
    if provider not in clis:
        return _endpoint(provider, _ENDPOINTS[provider])
    from caloron.agents.clis.registry import answering_cli
    from caloron.agents.sandbox.bubblewrap import Bubblewrap, NoSandbox
    from caloron.models.cli_model import CliModel

    info = clis[provider]
    return CliModel(
        info.provider,
        answering_cli(info.name, _base_url(info.base_url_env, info.base_url)),
        NoSandbox() if _is_yes(UNSANDBOXED) else Bubblewrap(),
        model=os.environ.get(MODEL, "").strip() or info.default_model,
        permissions="full" if _is_yes(info.full_access_env) else "answer",
    )


def _endpoint(provider: str, known: _Endpoint) -> Model:
    # The HTTP client is slow to import.
    from caloron.models.endpoints import endpoint

    base = _base_url(known.base_variable, known.base)
    model = os.environ.get(MODEL, "").strip() or known.model
    key_name = next((name for name in known.keys if os.environ.get(name, "").strip()), "")
    if not key_name and base == known.base:
        raise PreconditionFailed(
            f"{provider} has no key here", hint=f"set {' or '.join(known.keys)}"
        )
    key = os.environ[key_name].strip() if key_name else ""
    if not key.isascii() or not key.isprintable():
        raise UsageError(
            f"{key_name} holds characters that no key has", hint=f"set {key_name} again"
        )
    return endpoint(provider, base, model, key_name, key)


def _base_url(variable: str, default: str) -> str:
    """Return the address to ask: our own variable, that of the provider, or the default."""
    named = BASE if os.environ.get(BASE, "").strip() else variable
    base = os.environ.get(named, "").strip().rstrip("/") or default
    if not base:
        return ""
    url = http_url(base)
    if url is None or url.username is not None or url.query or url.fragment:
        raise UsageError(
            f"{named} is not an address that a model can be asked at",
            hint="give it as https://host or http://127.0.0.1:8080/v1, without a name or a key",
        )
    return base


class _RedactingModel:
    """Removes every secret of this environment from questions, answers and messages."""

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
            # Raised here, without the original as its context: that one was not redacted.
            raise problem
        if len(answer.text) > _LONGEST_ANSWER:
            raise ModelError(
                f"the answer of {self.name} has {len(answer.text)} characters",
                hint=f"at most {_LONGEST_ANSWER} are taken; ask for less",
            )
        return replace(answer, text=clean(answer.text), model=clean(answer.model))
