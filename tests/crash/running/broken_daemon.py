"""The daemon with one of its rules broken: `python broken_daemon.py CONTROL serve ...`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from aerobee.cli.main import main
from tests.crash.controls import CONTROLS

if __name__ == "__main__":
    CONTROLS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
