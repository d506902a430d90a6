"""`python -m naviscope_ingest` is the command line."""

import sys

from naviscope_ingest.cli import main

if __name__ == "__main__":
    sys.exit(main())
