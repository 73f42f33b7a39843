"""Models that answer questions: behind HTTP endpoints, behind agent CLIs, or scripted."""
