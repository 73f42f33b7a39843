"""What agents cost: what a sprint has spent, and what the next run may spend."""

from __future__ import annotations

import msgspec

#: A run that may spend less than this would end before it did anything.
_LEAST_USD = 0.05
#: For a run that was cut short before it told its cost: dollars for a million tokens.
_GUESS_IN, _GUESS_OUT = 15.0, 75.0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of an agent used."""

    usd: float = 0.0
    #: The run did not tell its cost; this is a guess on the safe side.
    estimated: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    turns: int = 0
    tools: dict[str, int] = msgspec.field(default_factory=dict)
    model: str = ""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs of a task or a sprint used together."""

    usd: float = 0.0
    #: The part of it that is only a guess.
    estimated_usd: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    runs: int = 0

    def plus(self, usage: Usage) -> Spent:
        return Spent(
            usd=self.usd + usage.usd,
            estimated_usd=self.estimated_usd + (usage.usd if usage.estimated else 0.0),
            tokens_in=self.tokens_in + usage.tokens_in,
            tokens_out=self.tokens_out + usage.tokens_out,
            runs=self.runs + 1,
        )


def guess_usd(tokens_in: int, tokens_out: int, cap: float) -> float:
    """What a run that told nothing may have cost; never more than it was allowed to."""
    return min(cap, (tokens_in * _GUESS_IN + tokens_out * _GUESS_OUT) / 1e6)


def allowance(budget: float, spent: float, reserved: float, run_cap: float) -> float:
    """What the next run may spend, with what the runs at work may still spend set aside.

    0 means that none may start: that would risk more than the budget.
    """
    left = min(run_cap, budget - spent - reserved)
    return left if left >= min(_LEAST_USD, run_cap, budget) else 0.0
