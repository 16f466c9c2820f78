"""A codec's `decode` is given what its `encode` returned, wherever a value of its type is."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from perdure import Engine, TypeCodec, set_state, step, wait_signal, workflow
from perdure.kernel.values.codec import Codec
from tests.engine.harness import AT_ONCE, PATIENCE


class Image:
    """Something that is stored as bytes."""

    def __init__(self, pixels: bytes) -> None:
        assert type(pixels) is bytes, f"given {pixels!r}"
        self.pixels = pixels

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and other.pixels == self.pixels

    def __hash__(self) -> int:
        return hash(self.pixels)


class Box:
    """Something that is stored as whatever it holds."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and type(other.held) is type(self.held) and other.held == self.held


IMAGE = TypeCodec(Image, encode=lambda image: image.pixels, decode=Image)
BOX = TypeCodec(Box, encode=lambda box: box.held, decode=Box)
PIXELS = bytes(range(256))

HELD: list[Any] = [
    b"",
    PIXELS,
    bytearray(b"ab"),
    dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    dt.datetime(2026, 1, 2),  # noqa: DTZ001
    dt.date(2026, 1, 2),
    dt.time(3, 4, 5, 6),
    dt.timedelta(days=1, microseconds=5),
    Decimal("1.50"),
    UUID(int=5),
    {1, 2},
    {"a", "b"},
    frozenset({b"x", b"y"}),
    {1: "a", "1": "b"},
    {b"k": [b"v"]},
    {"$perdure": "bytes", "value": "YQ=="},
    {"$perdure": 5},
    [b"a", {"b": [b"c", {"d": dt.date(2026, 1, 2)}]}],
    {"a": None, "b": [1, 2.5, True, "text"]},
    None,
    "YQ==",
    [],
    {},
]


@pytest.mark.parametrize("held", HELD, ids=range(len(HELD)))
def test_whatever_a_codec_returns_comes_back_to_it(held: Any) -> None:
    codec = Codec([BOX])
    for value, annotation in [
        (Box(held), Box),
        ([Box(held)], list[Box]),
        ({"a": Box(held)}, dict[str, Box]),
        ((Box(held), 1), tuple[Box, int]),
    ]:
        assert codec.decode(codec.encode(value, "it"), annotation, "it") == value
        assert codec.decode(codec.encode_inputs(value, "it"), annotation, "it") == value


def test_equal_values_have_equal_inputs_in_whatever_order_they_were_made() -> None:
    codec = Codec([BOX])
    one, two = Box({"a", "b", "c", "d"}), Box({"d", "c", "b", "a"})
    assert codec.encode_inputs([one], "it") == codec.encode_inputs([two], "it")


def test_what_was_stored_before_is_given_as_it_is() -> None:
    assert Codec([BOX]).decode(b'"YQ=="', Box, "it") == Box("YQ==")


@dataclass
class Page:
    title: str
    image: Image
    more: list[Image]
    named: dict[str, Image | None]


PAGE = Page("t", Image(PIXELS), [Image(b"1")], {"a": Image(b"2"), "b": None})


@step
async def invert(image: Image) -> Image:
    return Image(bytes(255 - pixel for pixel in image.pixels))


@step
def pages(page: Page, *more: Image, cover: Image | None = None) -> list[Page | None]:
    return [page, None, Page("u", cover or page.image, list(more), {})]


@workflow
async def inner(image: Image) -> Image:
    return await invert(image)


@workflow
async def outer(page: Page, cover: Image | None = None) -> list[Image | None]:
    set_state("cover", page.image)
    found = await pages(page, Image(b"3"), cover=cover)
    assert found[0] == page
    last = found[2]
    assert last is not None
    assert last.more == [Image(b"3")]
    signalled = await wait_signal("image", type=Image)
    return [await invert(page.image), await inner(last.image), signalled, None]


async def test_bytes_come_back_as_bytes_wherever_a_codec_returns_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    inverted = Image(bytes(255 - pixel for pixel in PIXELS))
    expected = [inverted, Image(b"\x00"), Image(b"s"), None]
    options: dict[str, Any] = {"codecs": [IMAGE], "recovery": AT_ONCE}
    async with Engine(url, [outer, inner], **options) as engine:
        handle = await engine.start(outer(PAGE, cover=Image(b"\xff")), id="it")
    # The rest of it in another process, from the journal.
    async with Engine(url, [outer, inner], **options) as engine:
        await engine.signal("it", "image", Image(b"s"))
        assert await engine.handle("it", outer).result(PATIENCE) == expected
        assert (await engine.run(inner(Image(PIXELS)))).output == inverted
    assert handle.id == "it"
