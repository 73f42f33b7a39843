"""A model that answers from a file: for tests, and to try a graph without paying for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from caloron.errors import ModelError, UsageError
from caloron.ports import ModelAnswer


class _Response(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: All of these words must be in the prompt.
    match: str | list[str] = ""
    #: The answer: text, or JSON that is written as text.
    output: Any = None
    #: The message of the failure instead of an answer.
    error: str = ""


class _Fixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    responses: list[_Response] = []
    default: str | None = None


class ScriptedModel:
    """Answers with the first response whose words are in the prompt."""

    name = "stub"

    def __init__(self, fixture: Path) -> None:
        try:
            self._fixture = msgspec.json.decode(fixture.read_bytes(), type=_Fixture)
        except OSError as error:
            raise UsageError(
                f"the model's fixture {fixture} cannot be read: {error.strerror}",
                hint="name a JSON file in CALORON_LLM_FIXTURE",
            ) from error
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"the model's fixture {fixture}: {error}",
                hint='it is {"responses": [{"match": …, "output": …}], "default": …}',
            ) from error

    def ask(
        self, prompt: str, *, seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> ModelAnswer:
        for response in self._fixture.responses:
            words = [response.match] if isinstance(response.match, str) else response.match
            if all(word in prompt for word in words):
                return self._respond(response, prompt)
        if self._fixture.default is None:
            raise ModelError(
                "the scripted model has no answer to this", hint="give its fixture a default"
            )
        return _answer(self._fixture.default, prompt)

    def _respond(self, response: _Response, prompt: str) -> ModelAnswer:
        if response.error:
            raise ModelError(response.error)
        output = response.output
        text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
        return _answer(text, prompt)


def _answer(text: str, prompt: str) -> ModelAnswer:
    """Return an answer whose tokens are its words, so that usage can be compared."""
    return ModelAnswer(
        text=text, model="stub", tokens_in=len(prompt.split()), tokens_out=len(text.split())
    )
