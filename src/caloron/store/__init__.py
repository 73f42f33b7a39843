"""The leaf that keeps things: connection, migrations, claims, events, files. Standard library only."""
