"""Redis URLs: what they say, what is refused, and that no password is ever shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidStoreUrl
from perdure.stores.open import open_store
from perdure.stores.redis.address import parse
from perdure.stores.redis.store import RedisStore
from perdure.stores.url import masked


def test_a_url_names_a_server_a_database_and_a_prefix() -> None:
    address = parse("redis://localhost")
    assert (address.host, address.port, address.db, address.prefix) == ("localhost", 6379, 0, "perdure:")
    address = parse("rediss://me:p%40ss@[::1]:7000/3?prefix={flows}:&pool=9&timeout=2.5&ssl_cert_reqs=none")
    assert (address.host, address.port, address.db, address.prefix) == ("::1", 7000, 3, "{flows}:")
    assert (address.username, address.password, address.tls) == ("me", "p@ss", True)
    assert (address.pool, address.timeout, address.tls_options) == (9, 2.5, {"ssl_cert_reqs": "none"})


def test_a_redis_url_opens_a_redis_store() -> None:
    assert isinstance(open_store("redis://localhost:6379/0"), RedisStore)
    assert isinstance(open_store("rediss://localhost"), RedisStore)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://", "names no server"),
        ("redis:///0", "names no server"),
        ("redis://host:port/0", "port"),
        ("redis://host:99999/0", "port"),
        ("redis://host/first", "'first' is not the number of a database"),
        ("redis://host/-1", "not the number of a database"),
        ("redis://host/0?db=3", "no option 'db'; its number follows the slash"),
        ("redis://host/0?ssl_ca_certs=x", "no option 'ssl_ca_certs'; TLS is spoken with 'rediss://'"),
        ("redis://host/0?polo=1", "no option 'polo'; did you mean 'pool'?"),
        ("redis://host/0?pool=1&pool=2", "its option 'pool' is given twice"),
        ("redis://host/0?migrate=true", "no option 'migrate'; this store has no schema"),
        ("redis://host/0#x", "a '#' has no meaning in it"),
        ("rediss://host/0?ssl_check_hostname=no", "ssl_check_hostname='no' must be true or false"),
        ("rediss://host/0?ssl_cert_reqs=maybe", "ssl_cert_reqs must be none or optional or required"),
        ("rediss://host/0?ssl_ca_certs=/no/such/file", "is not the path of a file"),
        ("redis://host/0?pool=0", "pool='0' must be an integer from 1 to 1000"),
        ("redis://host/0?pool=2.5", "must be an integer"),
        ("redis://host/0?timeout=soon", "timeout='soon' must be a number"),
        ("redis://host/0?prefix=", "the prefix '' is not one"),
        ("redis://host/0?prefix=a b", "the prefix 'a b' is not one"),
        ("redis://host/0?prefix={a}{b}", "at most one part in braces"),
        ("redis://host/0?prefix={}", "at most one part in braces"),
        ("redis://host/0?prefix=" + "x" * 101, "1 to 100 letters"),
    ],
)
def test_a_wrong_url_is_refused_with_what_to_write(url: str, reason: str) -> None:
    with pytest.raises(InvalidStoreUrl) as caught:
        open_store(url)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:s3cret@host:6379/0",
        "redis://:s3cret@host:6379/0",
        "redis://:s3cret@host:x/0",
        "redis://:s3cret@host/first",
        "redis://:s3cret@host/0?x=y",
        "redis://me:s3cret@",
        "redis://me:s3cret@@host/x",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    assert "s3cret" not in masked(url)
    try:
        shown = RedisStore(url).url + repr(parse(url))
    except InvalidStoreUrl as error:
        shown = str(error)
    assert "s3cret" not in shown


@given(st.text(max_size=30))
def test_a_prefix_is_harmless_or_refused(prefix: str) -> None:
    """Whatever passes has at most one hash tag and nothing that a pattern or a protocol could trip over."""
    from urllib.parse import quote

    try:
        address = parse(f"redis://host/0?prefix={quote(prefix, safe='')}")
    except InvalidStoreUrl:
        return
    assert address.prefix == prefix
    assert prefix.isascii()
    assert not set(prefix) & set(" *?[]\\\r\n\0\"'&~%")
    assert prefix.count("{") == prefix.count("}") <= 1
