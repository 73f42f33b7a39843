"""What the ledger stores and what the rooms exchange: sprint, task, facts, effects, snapshots."""
