"""Caloron: a goal goes in, reviewed and tested code comes out merged on your own forge."""

__version__ = "0.4.0"
