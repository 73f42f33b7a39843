"""Backup, restore and verification of a project."""
