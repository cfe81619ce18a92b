"""`python -m nearfield` is the command line."""

import sys

from nearfield.cli import main

sys.exit(main())
