"""Make failures of the conformance suite tell the values they compared."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("perdure.testing.conformance")
