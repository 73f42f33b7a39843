"""Runs of agents and verifications: prepare, start, collect."""
