"""The rules of a sprint, pure: no clock, no file, no environment variable."""
