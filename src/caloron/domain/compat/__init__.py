"""Formats of the older Caloron and of other tools, read and written."""
