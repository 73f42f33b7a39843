"""The 85 stages that come with Noether: all can be referred to, most can be run."""

from caloron.graph.stdlib.signatures import standard_stages
from caloron.graph.stdlib.standard import StandardLibrary

__all__ = ["StandardLibrary", "standard_stages"]
