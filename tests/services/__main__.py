"""`python -m tests.services`: all servers in the foreground, for a developer, until Ctrl-C.

With `--provide`, install what the machine lacks and may be installed, and start nothing.
"""

from __future__ import annotations

import signal
import sys

from tests.services.binaries import CHOICE, ServerMissing, provide
from tests.services.servers import KINDS, ServerFailed
from tests.services.shared import EXISTING, Shared


def main() -> int:
    """Start, tell, wait, stop."""
    if "--provide" in sys.argv[1:]:
        provide()
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shared = Shared.make()
    try:
        for kind in KINDS:
            # As the lines that make the tests use them.
            print(f"export {EXISTING}{kind.upper()}={shared.server(kind).url}", flush=True)
        print(f"# all in {shared.directory}; Ctrl-C stops them and removes what they hold", flush=True)
        while True:
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except (ServerMissing, ServerFailed) as error:
        print(f"{error}\n({CHOICE}=bundled uses the servers of the development requirements)", file=sys.stderr)
        return 1
    finally:
        shared.end()


if __name__ == "__main__":
    sys.exit(main())
