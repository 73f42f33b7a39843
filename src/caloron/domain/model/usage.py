"""The cost of agents: how much a sprint has spent, and how much the next run may spend."""

from __future__ import annotations

import msgspec

#: A run that may spend less than this would end before it has done anything.
_LEAST_USD = 0.05
#: For a run that was interrupted before it reported its cost: dollars for a million tokens.
_GUESS_IN, _GUESS_OUT = 15.0, 75.0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one run of an agent."""

    usd: float = 0.0
    #: The run did not report its cost; this is a high guess.
    estimated: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    turns: int = 0
    tools: dict[str, int] = msgspec.field(default_factory=dict)
    model: str = ""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of all runs of a task or a sprint together."""

    usd: float = 0.0
    #: The part that is only a guess.
    estimated_usd: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    runs: int = 0

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    def plus(self, usage: Usage) -> Spent:
        return Spent(
            usd=self.usd + usage.usd,
            estimated_usd=self.estimated_usd + (usage.usd if usage.estimated else 0.0),
            tokens_in=self.tokens_in + usage.tokens_in,
            tokens_out=self.tokens_out + usage.tokens_out,
            runs=self.runs + 1,
        )


def guess_usd(tokens_in: int, tokens_out: int, cap: float) -> float:
    """Guess the cost of a run that reported none; never more than it was allowed to spend."""
    return min(cap, (tokens_in * _GUESS_IN + tokens_out * _GUESS_OUT) / 1e6)


def allowance(budget: float, spent: float, reserved: float, run_cap: float) -> float:
    """Return how much the next run may spend; `reserved` is for the runs that are at work.

    0 means that no run may start, because it would risk more than the budget.
    """
    left = min(run_cap, budget - spent - reserved)
    return left if left >= min(_LEAST_USD, run_cap, budget) else 0.0
