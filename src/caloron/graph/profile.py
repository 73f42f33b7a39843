"""The two ways to treat a graph: `strict`, for our own, and `noether`, exactly as 0.8.2 does."""

from __future__ import annotations

import msgspec


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Which rules hold; each field is one place where the two ways part."""

    name: str
    #: Unknown and doubled fields, and integers beyond 64 bits, are errors when text is read.
    refuses_doubtful_text: bool
    #: A reference may also be a signature id or an alias, and a deprecated stage is followed.
    resolves_widely: bool
    #: The capability to start processes has a word by which it can be granted.
    can_grant_processes: bool
    #: Each use of a stage has type variables of its own, instead of one set for the graph.
    renames_variables: bool
    #: Types are followed forward from the input: Branch arms and constants are checked too.
    follows_values: bool
    #: A Retry around a stage also takes back earlier warnings about uses of it without one.
    retry_takes_back_warnings: bool
    #: Values are held to the declared types while running: input, and every stage's ends.
    checks_values: bool
    #: A bare value given to a stage with `config` becomes its one field that is left.
    wraps_by_field: bool
    #: Retry waits `delay_ms` between attempts.
    waits_between_attempts: bool
    #: What cannot succeed (no money left, nobody to run it) is not tried again.
    gives_up_hopeless: bool
    #: A failed branch stops its siblings.
    cancels_siblings: bool
    #: Pure means nothing but Pure and Fallible; else it is enough that Pure is among the effects.
    pure_means_only_pure: bool
    #: What a branch did before it failed is in the trace, and what those after it did.
    traces_failed_branches: bool
    #: Calls of other machines are in the trace.
    traces_remote_calls: bool
    #: Calls that a stage makes of other stages are in the trace.
    traces_inner_calls: bool
    #: What calls cost is counted also without a budget.
    counts_spending: bool
    #: A run without a cache remembers its own pure results, and forgets them at its end.
    memoizes: bool
    #: The cache also serves branches of Parallel and bindings of Let.
    caches_everywhere: bool


STRICT = Profile(
    name="strict",
    refuses_doubtful_text=True,
    resolves_widely=True,
    can_grant_processes=True,
    renames_variables=True,
    follows_values=True,
    retry_takes_back_warnings=False,
    checks_values=True,
    wraps_by_field=True,
    waits_between_attempts=True,
    gives_up_hopeless=True,
    cancels_siblings=True,
    pure_means_only_pure=True,
    traces_failed_branches=True,
    traces_remote_calls=True,
    traces_inner_calls=True,
    counts_spending=True,
    memoizes=False,
    caches_everywhere=True,
)

NOETHER = Profile(
    name="noether",
    refuses_doubtful_text=False,
    resolves_widely=False,
    can_grant_processes=False,
    renames_variables=False,
    follows_values=False,
    retry_takes_back_warnings=True,
    checks_values=False,
    wraps_by_field=False,
    waits_between_attempts=False,
    gives_up_hopeless=False,
    cancels_siblings=False,
    pure_means_only_pure=False,
    traces_failed_branches=False,
    traces_remote_calls=False,
    traces_inner_calls=False,
    counts_spending=False,
    memoizes=True,
    caches_everywhere=False,
)

PROFILES = {profile.name: profile for profile in (STRICT, NOETHER)}
