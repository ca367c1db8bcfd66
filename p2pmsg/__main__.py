"""`python -m p2pmsg`: the same as the command `p2pmsg`."""

import sys

from p2pmsg.cli import main

if __name__ == "__main__":
    sys.exit(main())
