"""`python -m takg` is `takg`."""

import sys

from takg.cli import main

if __name__ == "__main__":
    sys.exit(main())
