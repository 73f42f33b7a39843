"""The decision of a tick: pure rules over the state and the facts."""
