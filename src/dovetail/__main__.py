"""`python -m dovetail` is the same as `dovetail`."""

import sys

from .cli import main

sys.exit(main())
