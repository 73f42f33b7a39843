"""Git, run as a program with a clean environment; and our own clean copy of a project."""
