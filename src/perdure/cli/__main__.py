"""`python -m perdure.cli`, where the `perdure` command is not on the path."""

import sys

from perdure.cli.main import command

sys.exit(command())
