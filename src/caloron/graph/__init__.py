"""Typed composition graphs: read, identify, check, run, cache and trace them."""
