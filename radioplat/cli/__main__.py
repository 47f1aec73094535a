"""``python -m radioplat.cli``: the same as the command ``radioplat``."""

import sys

from radioplat.cli.main import main

sys.exit(main())
