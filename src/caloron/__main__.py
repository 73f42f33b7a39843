"""Makes `python -m caloron` the same as the `caloron` script."""

from caloron.cli.start import run

run()
