"""The shell: an HTTP server by which other programs start agents, and the harness of an agent."""
