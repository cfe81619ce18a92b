"""`python -m nearfield` is the command line."""

import sys

from nearfield.cli.main import main

sys.exit(main())
