"""An agent's home that survives it: its errands, its diary, its cycles, and what they add up to."""
