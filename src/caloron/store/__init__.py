"""The leaf that keeps things: connections, migrations, claims, events, files. Stdlib only."""
