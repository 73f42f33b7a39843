"""Small sums over numbers that people type."""
