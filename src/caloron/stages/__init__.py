"""The catalogue: one small function per step, each with declared input and output."""
