"""The whole state of a project: what is kept where, whether it agrees, and copies of it."""
