"""docs/flow.schema.json, the format of flows for editors: written from the source. `make api` writes it."""

from __future__ import annotations

import sys

import msgspec

from perdure.flow import flow_schema
from tests.docs.markdown import ROOT

DOCUMENT = ROOT / "docs" / "flow.schema.json"


def document() -> str:
    """The schema, as it is committed."""
    return msgspec.json.format(msgspec.json.encode(flow_schema()), indent=1).decode() + "\n"


def main() -> int:
    DOCUMENT.write_text(document(), encoding="utf-8")
    sys.stdout.write("docs/flow.schema.json written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
