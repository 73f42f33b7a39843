"""Cycles: each wake of an agent has a number, and knows what the one before it did.

```python
from caloron.agentstate.cycles import cycle

with cycle("allegro") as c:
    prompt = c.report.text()
    c.act("opened PR 12", artefact="PR 12")
    c.plan("answer the review of PR 12")
```
"""

from caloron.agentstate.cycles.context import Cycle, cycle
from caloron.agentstate.cycles.places import Places, places_of
from caloron.agentstate.cycles.report import Report
from caloron.agentstate.cycles.state import CycleState
from caloron.agentstate.cycles.wake import Cycles, StopRequested

__all__ = [
    "Cycle", "CycleState", "Cycles", "Places", "Report", "StopRequested", "cycle", "places_of",
]  # fmt: skip
