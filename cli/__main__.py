"""`python -m aerobee.cli`: the same as `aerobee`, for where the script is not on the PATH."""

import sys

from aerobee.cli.main import main

sys.exit(main())
