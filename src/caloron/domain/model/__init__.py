"""The data that the ledger stores and the rooms exchange: sprint, task, facts, effects."""
