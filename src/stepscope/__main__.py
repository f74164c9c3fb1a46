"""Run the command line as `python -m stepscope`."""

from __future__ import annotations

import sys

from stepscope.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
