"""Measures Caloron against a bare loop or a rival in the same run; it never gates on seconds."""
