"""Cycles: each wake of an agent has a number, and is told the outcome of the one before it.

```python
from caloron.cycles import cycle

with cycle("allegro") as c:
    prompt = c.report.text()
    c.act("opened PR 12", artefact="PR 12")
    c.plan("answer the review of PR 12")
```
"""

from caloron.cycles.cycles import Cycle, Cycles, StopRequested, cycle
from caloron.cycles.report import Report
from caloron.cycles.state import CycleState
from caloron.cycles.storage import Location, location_of

__all__ = [
    "Cycle", "CycleState", "Cycles", "Location", "Report", "StopRequested", "cycle", "location_of",
]  # fmt: skip
