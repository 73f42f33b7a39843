"""A sprint in memory, for tests of forge adapters, stages and rules: no git, no process, no clock.

Nothing else in Caloron imports this package.
"""

from caloron.testing.agent import FakeAgent
from caloron.testing.driver import SprintDriver, new_state, planned
from caloron.testing.forge import InMemoryForge, Person

__all__ = ["FakeAgent", "InMemoryForge", "Person", "SprintDriver", "new_state", "planned"]
