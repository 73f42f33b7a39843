"""`python -m caloron.cli`: the same as the `caloron` script."""

import sys

from caloron.cli.main import main

sys.exit(main())
