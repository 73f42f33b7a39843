"""The 85 stages that come with Noether: all can be referred to, most can be run."""

from caloron.graph.stdlib.library import StandardLibrary, standard_stages

__all__ = ["StandardLibrary", "standard_stages"]
