"""Durable storage: databases, queue, events, locks, files, log. Standard library only."""
