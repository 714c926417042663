"""`python -m deploy`."""

import sys

from deploy.command import main

if __name__ == "__main__":
    sys.exit(main())
