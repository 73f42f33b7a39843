"""The stages of the catalogue, and the compositions that wire them."""
