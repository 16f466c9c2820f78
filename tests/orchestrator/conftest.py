"""What tests of orchestrators share."""

from __future__ import annotations

from tests.client.conftest import any_store, any_url

__all__ = ["any_store", "any_url"]
