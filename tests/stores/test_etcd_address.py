"""Addresses of etcd: what they say, what they refuse, and that no password is shown."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import InvalidStoreUrl
from perdure.stores.etcd.address import Address, read_address

TLS = Path(__file__).parent / "tls"
text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def test_an_address_names_members_a_prefix_and_how_to_be_let_in() -> None:
    url = "etcd://us%40er:p%2Fw@h1:1,[::1],h3:3/flows/eu?ca=ca.pem&cert=c.pem&key=k.pem&timeout=0.5"
    assert read_address(url) == Address(
        ("h1:1", "[::1]:2379", "h3:3"), "flows/eu", "us@er", "p/w", True, "ca.pem", "c.pem", "k.pem", 0.5
    )


def test_what_is_not_said_has_a_default() -> None:
    assert read_address("etcd://host") == Address(("host:2379",), "perdure")
    assert read_address("etcds://host/").tls


@given(user=text, password=text, prefix=text.map(lambda t: t.strip("/") or "p"))
def test_what_is_quoted_comes_back_and_no_password_is_shown(user: str, password: str, prefix: str) -> None:
    address = read_address(f"etcd://{quote(user, safe='')}:{quote(password, safe='')}@h:1/{quote(prefix, safe='')}")
    assert (address.user, address.password, address.prefix) == (user, password, prefix)
    assert address.url == f"etcd://{quote(user, safe='')}:***@h:1/{quote(prefix)}"
    assert read_address(address.url).prefix == prefix
    assert "password" not in repr(address)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("etcd://", "it names no host; write etcd://host:2379/prefix"),
        ("etcd:///prefix", "it names no host"),
        ("etcd://a,,b", "it names no host"),
        ("etcd://a b", "it names no host"),
        ("etcd://a:port", "'a:port' is not a host and port"),
        ("etcd://a:99999", "'a:99999' is not a host and port"),
        ("etcd://[::1", "write etcd://host:2379/prefix"),
        ("http://a:2379", "an address such as etcd://host:2379/prefix"),
        ("etcd://a?cart=x", "the unknown parameter 'cart'; did you mean 'cert'?"),
        ("etcd://a?prefix=x", "the unknown parameter 'prefix'"),
        ("etcd://a?ca=", "give 'ca' once, with a value"),
        ("etcd://a?ca=x&ca=y", "give 'ca' once, with a value"),
        ("etcd://a?key=x", "key= belongs to a certificate: give cert= too"),
        ("etcd://a?timeout=soon", "timeout='soon' must be a number of seconds above 0"),
        ("etcd://a?timeout=0", "must be a number of seconds above 0"),
        ("etcd://a?timeout=inf", "must be a number of seconds above 0"),
        ("etcd://:secret@a", "there is a password and no user"),
        ("etcd://u:secret#1@a", "in a password write it as %23"),
        ("etcd://u:secret@a:port", "'a:port' is not a host and port"),
    ],
)
def test_an_address_that_cannot_be_meant_says_why(url: str, said: str) -> None:
    with pytest.raises(InvalidStoreUrl) as caught:
        read_address(url)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_files_of_tls_are_looked_at_before_anything_is_connected(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("nothing of the kind")
    for query, said in (
        (f"ca={tmp_path}/none.pem", "does not exist; give the path of a PEM file"),
        (f"ca={junk}", "has no certificate in PEM"),
        (f"cert={junk}", "are not a certificate and its key in PEM"),
        (f"cert={TLS}/client.pem&key={TLS}/server-key.pem", "are not a certificate and its key in PEM"),
    ):
        with pytest.raises(InvalidStoreUrl, match=said):
            read_address(f"etcd://h?{query}").context()
    assert read_address(f"etcd://h?ca={TLS}/ca.pem&cert={TLS}/client.pem&key={TLS}/client-key.pem").context()
    assert read_address("etcd://h").context() is None
