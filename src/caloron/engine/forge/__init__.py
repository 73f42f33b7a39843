"""Effects on the forge: polling, executing, merging."""
