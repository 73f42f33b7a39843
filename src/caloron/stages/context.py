"""What effectful stages may reach: the ledger, the clock and the limits; nothing else."""

from __future__ import annotations

import msgspec

from caloron.domain.supervise import Limits
from caloron.ledger.ledger import Ledger
from caloron.ports import Clock


class TickContext(msgspec.Struct, frozen=True, kw_only=True):
    ledger: Ledger
    clock: Clock
    limits: Limits
    #: The loop itself was away for longer than a lease: nobody is judged by that gap.
    grace: bool = False
