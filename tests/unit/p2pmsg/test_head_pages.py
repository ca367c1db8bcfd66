"""An echo of many streams comes in pages, and counts only when all of them came."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.control import Head, HeadPages, Heads, pages_of

PROBE = 7


def heads(count, length=200):
    streams = [Head(f"{n}".ljust(length, "x"), 0, 2**40 + n, 1) for n in range(count)]
    return Heads("feed", streams, floor=3)


def test_no_page_is_larger_than_256_kib_and_all_of_them_make_the_whole():
    many = heads(10_000)
    pages = pages_of(many)
    assert len(pages) == 10
    assert all(len(msgspec.msgpack.encode(page)) <= 256 * 1024 for page in pages)
    book = HeadPages(65_536)
    *first, last = pages
    assert [book.take(PROBE, page) for page in first] == [None] * 9
    assert book.take(PROBE, last) == many


def test_more_streams_than_a_subscriber_takes_are_forgotten():
    book = HeadPages(2000)
    assert all(book.take(PROBE, page) is None for page in pages_of(heads(5000)))


def test_pages_without_end_are_not_kept():
    book = HeadPages(65_536)
    first, *others = pages_of(heads(5000))
    for probe in range(1000):
        assert book.take(probe, first) is None
    kept = [probe for probe in range(1000) if any(book.take(probe, page) for page in others)]
    assert 0 < len(kept) <= 64
    assert kept[-1] == 999


@given(st.permutations([(probe, n) for probe in (1, 2) for n in range(3)]))
def test_only_pages_in_their_order_make_a_whole(order):
    pages = pages_of(heads(3000))
    assert len(pages) == 3
    book, seen = HeadPages(65_536), {1: [], 2: []}
    for probe, n in order:
        in_turn = seen[probe] == [*range(n)]
        seen[probe] = [0] if n == 0 else [*seen[probe], n] if in_turn else []
        whole = book.take(probe, pages[n])
        assert (whole is not None) == (seen[probe] == [0, 1, 2])
