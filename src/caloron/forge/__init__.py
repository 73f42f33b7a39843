"""The forge: where issues, pull requests, reviews and merges live."""
