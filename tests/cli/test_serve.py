"""`perdure serve`: where it listens, and for whom."""

from __future__ import annotations

import pytest

from perdure.blocking import Engine
from tests.cli.conftest import Cli


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "shop.example", "127.0.0.1.evil.test"])
def test_an_address_that_others_reach_is_refused_without_a_token(cli: Cli, host: str) -> None:
    with Engine("sqlite:///flows.db", []):
        pass
    ended = cli("serve", "--host", host, "--port", "0", "--store", "sqlite:///flows.db")
    assert (ended.code, "make a token first: perdure token new" in ended.err) == (2, True), ended.err
