"""`python -m perdure`, where the `perdure` command is not on the path."""

import sys

from perdure.cli.main import command

if __name__ == "__main__":
    sys.exit(command())
