"""Typed subscribers over real sockets: every way of reading, cursors, relays, type checkers."""

import contextlib
import datetime
import decimal
import enum
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import p2pmsg
from p2pmsg import codec
from p2pmsg.errors import InvalidValueError
from tests.integration.peers import ROOT, check_ledger


@dataclass
class Trade:
    symbol: str
    price: float


class Quote(TypedDict):
    bid: float


class Exact(codec.Struct):
    price: decimal.Decimal
    day: datetime.date


class Side(enum.Enum):
    BUY = "buy"


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    A = "a"


def trades(start, stop, bad=()):
    return [{"symbol": "A", "price": "x" if n in bad else n} for n in range(start, stop)]


def read(subscriber, count, way):
    """Read `count` messages; return (sequence, price), the price None where it does not fit."""
    found, iterator = [], iter(subscriber)
    while len(found) < count:
        try:
            if way == "receive_many":
                got: Any = subscriber.receive_many(timeout=60)
            else:
                got = [subscriber.receive(60) if way == "receive" else next(iterator)]
        except InvalidValueError as error:
            assert error.path == "$.price"
            found.append((error.item.sequence, None))
        else:
            assert all(type(message.value) is Trade for message in got)
            found += [(message.sequence, message.value.price) for message in got]
    return found


@pytest.mark.parametrize("way", ["receive", "receive_many", "iteration"])
def test_a_value_that_does_not_fit_comes_in_its_place(make_publisher, make_subscriber, way):
    publisher = make_publisher()
    subscriber = make_subscriber(publisher.endpoint, joins=publisher, type=Trade)
    bad = {0, 3, 250, 499, 503}
    publisher.publish("t", trades(0, 1, bad)[0])
    publisher.publish_many("t", trades(1, 500, bad))
    for value in trades(500, 510, bad):
        publisher.publish("t", value)

    assert read(subscriber, 510, way) == [(n, None if n in bad else n) for n in range(510)]
    stats = check_ledger(subscriber, lost=0, delivered=510)
    assert stats.values_invalid == len(bad)
    assert stats.bytes_held == 0


@pytest.mark.parametrize("how", ["skip", "callable"])
def test_invalid_values_are_skipped_or_given_to_a_callable(make_publisher, make_subscriber, how):
    said = []
    publisher = make_publisher(name="feed")
    subscriber = make_subscriber(
        publisher.endpoint, joins=publisher, type=Trade,
        on_invalid=said.append if how == "callable" else "skip",
    )  # fmt: skip
    publisher.publish_many("t", trades(0, 20, {0, 7, 8}), keys=[f"k{n}" for n in range(20)])
    publisher.publish("t", {"symbol": "A"})
    publisher.publish("t", {"symbol": "end", "price": 0})
    found = []
    while not found or found[-1].value.symbol != "end":
        found.append(subscriber.receive(60))

    assert [m.sequence for m in found] == [n for n in range(20) if n not in {0, 7, 8}] + [21]
    assert check_ledger(subscriber, lost=0, delivered=22).values_invalid == 4
    if how == "callable":
        assert [error.item.sequence for error in said] == [0, 7, 8, 20]
        assert (said[1].item.key, said[1].item.topic) == ("k7", "t")
        assert "message 7 of 't' from 'feed'" in str(said[1])
        assert "missing required field `price`" in str(said[3])


def test_types_by_topic(make_publisher, make_subscriber):
    publisher = make_publisher()
    subscriber = make_subscriber(
        publisher.endpoint, joins=publisher, types={"trades": Trade, "quotes*": Quote, "e": Exact}
    )
    exact = Exact(decimal.Decimal("1.50"), datetime.date(2026, 11, 23))
    values = {
        "trades": Trade("A", 1.0), "quotes.eu": {"bid": 2.0}, "other": {"symbol": 3}, "e": exact,
    }  # fmt: skip
    for _ in range(3):
        for topic, value in values.items():
            publisher.publish(topic, value)
    publisher.publish_many("e", [exact] * 5)

    messages = [subscriber.receive(60) for _ in range(8)]  # which topics come first is not certain
    while len(messages) < 17:
        messages += subscriber.receive_many(timeout=60)
    for message in messages:
        assert message.value == values[message.topic]
        assert type(message.value) is type(values[message.topic])
    counts = Counter(message.topic for message in messages)
    assert counts == {"trades": 3, "quotes.eu": 3, "other": 3, "e": 8}


@pytest.mark.parametrize("commit", ["explicit", "message"])
def test_an_invalid_message_is_committed_like_any_other(
    make_publisher, make_subscriber, tmp_path, commit
):
    publisher = make_publisher()
    options = {
        "type": Trade, "cursor": tmp_path / "cursor", "commit": commit, "start": "earliest",
    }  # fmt: skip
    subscriber = make_subscriber(publisher.endpoint, joins=publisher, **options)
    publisher.publish_many("t", trades(0, 10, {4}))
    assert read(subscriber, 4, "receive") == [(n, n) for n in range(4)]
    with pytest.raises(InvalidValueError):
        subscriber.receive(60)
    if commit == "explicit":
        subscriber.commit()
        subscriber.close()
    else:
        assert subscriber.receive(60).sequence == 5  # so 4 is committed, and 5 is in hand
        subscriber.close()
    again = make_subscriber(publisher.endpoint, **options)

    assert read(again, 5, "receive") == [(n, n) for n in range(5, 10)]


PARTS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=5), st.binary(max_size=5),
    st.decimals(allow_nan=False), st.dates(), st.datetimes(), st.times(), st.timedeltas(),
    st.uuids(),
    st.sampled_from([Side.BUY, Level.HIGH, Word.A, 1j, 2**64, {1.5: 2}, {datetime.date.max: 1}]),
)  # fmt: skip
VALUES = st.recursive(
    PARTS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text("ab", max_size=2), part),
    max_leaves=8,
)


def same(found, sent):
    """Whether a value arrived equal, and each part of it as the same type."""
    if type(found) is not type(sent) or found != sent:
        return False
    if isinstance(sent, dict):
        return same([*found], [*sent]) and same([*found.values()], [*sent.values()])
    return not isinstance(sent, list) or all(map(same, found, sent))


@pytest.fixture(scope="module")
def exact_ends():
    """Return what sends values and returns what arrived, by four ways."""
    with contextlib.ExitStack() as opened:
        publisher = opened.enter_context(p2pmsg.Publisher("tcp://127.0.0.1:0"))
        subscriber = opened.enter_context(p2pmsg.Subscriber(publisher.endpoint))
        publisher.wait_for_subscribers(1, timeout=60)
        pusher = opened.enter_context(p2pmsg.Pusher("tcp://127.0.0.1:0"))
        puller = opened.enter_context(p2pmsg.Puller(pusher.endpoint))
        responder = opened.enter_context(
            p2pmsg.Responder("tcp://127.0.0.1:0", {"echo": lambda value: value})
        )
        requester = opened.enter_context(p2pmsg.Requester(responder.endpoint))

        def publish(values):
            for value in values:
                publisher.publish("t", value)
            return [subscriber.receive(60).value for _ in values]

        def publish_many(values):
            publisher.publish_many("t", values)
            return [subscriber.receive(60).value for _ in values]

        def push(values):
            for value in values:
                pusher.push(value)
            found = []
            for _ in values:
                with puller.receive(60) as job:
                    found.append(job.value)
            return found

        def request(values):
            return [requester.request("echo", value, timeout=60) for value in values]

        yield {
            "publish": publish,
            "publish_many": publish_many,
            "push": push,
            "request": request,
        }


@pytest.mark.parametrize("way", ["publish", "publish_many", "push", "request"])
@given(values=st.lists(VALUES, min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_each_part_arrives_as_its_type_or_the_path_to_it_is_said(exact_ends, way, values):
    sent, named = [], []
    for value in values:  # one by one, so that those that are refused leave the others
        try:
            codec.prepare(value)
        except p2pmsg.MessageError as error:
            with pytest.raises(p2pmsg.MessageError) as caught:
                exact_ends[way]([value])
            named.append(caught.value.field)
            assert caught.value.field.replace("values[0]", "value") == error.field
        else:
            sent.append(value)
    if sent:
        assert same(exact_ends[way](sent), sent)


def test_a_hook_and_the_setting_of_exact_types(make_publisher, make_subscriber):
    hooked = make_publisher(enc_hook=lambda value: [value.real, value.imag])
    loose = make_publisher(exact_types=False)
    strict = make_publisher(exact_types=True)
    for publisher, first, value, expected in (
        (hooked, 1, {"z": 1j}, {"z": [0.0, 1.0]}),
        (loose, decimal.Decimal(1), decimal.Decimal("1.5"), "1.5"),
        (strict, 1, decimal.Decimal("1.5"), decimal.Decimal("1.5")),
    ):
        subscriber = make_subscriber(publisher.endpoint, joins=publisher)
        publisher.publish("t", first)
        for _ in range(20):
            publisher.publish("t", value, headers={"day": datetime.date(2026, 1, 1)})
        assert subscriber.receive(60).value in (first, str(first))
        for _ in range(20):
            message = subscriber.receive(60)
            assert message.value == expected
            assert type(message.value) is type(expected)
            assert message.headers == {"day": datetime.date(2026, 1, 1)}
    for wrong in ({"exact_types": 1}, {"enc_hook": "f"}):
        with pytest.raises(p2pmsg.ConfigError, match=next(iter(wrong))):
            make_publisher(**wrong)


SAMPLE = """
from collections import Counter
from dataclasses import dataclass
from typing import TypedDict
from p2pmsg import App, Job, Message, Puller, Requester, Subscriber, aio

@dataclass
class Trade:
    price: float

class Quote(TypedDict):
    bid: float

def handle(message: Message[Trade]) -> float:
    return message.value.price

def loose(message: Message) -> object:
    return message.value

def typed() -> None:
    for message in Subscriber("tcp://127.0.0.1:1", type=Trade):
        reveal_type(message.value)  # Trade
        handle(message)
        loose(message)
    batch = Subscriber("tcp://127.0.0.1:1", type=Trade).receive_many()
    reveal_type(batch.values)  # list[Trade]
    reveal_type(batch[0].value)  # Trade
    reveal_type(Subscriber("tcp://127.0.0.1:1", type=Quote).receive().value["bid"])  # float
    reveal_type(Subscriber("tcp://127.0.0.1:1", types={"t": Trade}).receive().value)  # Any
    reveal_type(Requester("tcp://127.0.0.1:1").request("t", type=Trade))  # Trade

def work(job: Job[Trade]) -> float:
    return job.value.price

def jobs() -> None:
    puller = Puller("tcp://127.0.0.1:1", type=Trade)
    for job in puller:
        with job:
            reveal_type(job.value)  # Trade
            work(job)
    puller.run(work)

async def in_asyncio() -> None:
    async for message in aio.Subscriber("tcp://127.0.0.1:1", type=Trade):
        reveal_type(message.value)  # Trade
    async with aio.Puller("tcp://127.0.0.1:1", type=Trade) as puller:
        work(await puller.receive())
    reveal_type(await aio.Requester("tcp://127.0.0.1:1").request("t", type=Trade))  # Trade

app = App()

@app.worker("tcp://127.0.0.1:1")
async def on_job(trade: Trade, job: Job[Trade]) -> None:
    reveal_type(job.value)  # Trade

def wrong() -> None:
    message = Subscriber("tcp://127.0.0.1:1", type=Quote).receive()
    handle(message)  # error
    work(Puller("tcp://127.0.0.1:1", type=Quote).receive())  # error
"""


@pytest.mark.long
def test_mypy_knows_the_type_of_a_value(tmp_path):
    pytest.importorskip("msgspec")  # type checkers read its types
    sample = tmp_path / "sample.py"
    sample.write_text(SAMPLE)
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", "--cache-dir",
         str(ROOT / ".mypy_cache"), str(sample)],
        capture_output=True, text=True, timeout=100, cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
    )  # fmt: skip
    said = {}
    for line in ended.stdout.splitlines():
        number = line.partition("sample.py:")[2].partition(":")[0]
        if number.isdigit() and ("error" in line or "Revealed type" in line):
            said[int(number)] = line.replace("sample.", "")
    wanted = [(n, line.partition("  # ")[2]) for n, line in enumerate(SAMPLE.splitlines(), 1)]
    assert {n for n, comment in wanted if comment} == set(said), ended.stdout + ended.stderr
    for n, comment in wanted:
        if comment:
            assert ("error" if comment == "error" else f'"{comment}"') in said[n]
