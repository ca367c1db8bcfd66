"""Jobs decoded into types, in threads and in asyncio; those that do not fit become dead letters."""

import asyncio
import logging
from dataclasses import dataclass
from decimal import Decimal

import pytest

import p2pmsg
from p2pmsg import aio
from p2pmsg.errors import ConfigError, InvalidValueError

WAIT_S = 60


@dataclass
class Order:
    symbol: str
    count: int
    price: Decimal | float = 1.0


GOOD = [Order("A", 1), Order("B", 2, Decimal("1.10"))]
BAD = {"symbol": "C", "count": "many"}


def take(puller, count):
    found = []
    for _ in range(count):
        with puller.receive(timeout=WAIT_S) as job:
            found.append(job.value)
    return found


def wait_for_dead_letter(pusher):
    pusher.join(timeout=WAIT_S)
    (letter,) = pusher.dead_letters()
    assert letter.value == BAD
    assert letter.reason.endswith("at $.count")
    assert pusher.stats().balanced


def test_values_come_as_their_type_and_others_are_dead_letters(make_pusher, make_puller, caplog):
    pusher = make_pusher()
    puller = make_puller(pusher.endpoint, type=Order)
    with caplog.at_level(logging.WARNING, "p2pmsg"):
        for value in (GOOD[0], BAD, GOOD[1]):
            pusher.push(value)
        assert take(puller, 2) == GOOD
    wait_for_dead_letter(pusher)
    assert [puller.stats().invalid, puller.stats().discarded] == [1, 1]
    assert "does not fit its type" in caplog.text


def test_iterating_goes_on_after_one_that_does_not_fit(make_pusher, make_puller):
    pusher = make_pusher()
    puller = make_puller(pusher.endpoint, type=int, prefetch=64)
    for number in range(199):
        pusher.push("bad" if number % 7 == 3 else number)
    wanted = [number for number in range(199) if number % 7 != 3]
    found = []
    for job in puller:
        with job:
            found.append(job.value)
        if len(found) == len(wanted):
            break
    assert found == wanted
    pusher.join(timeout=WAIT_S)
    assert len(pusher.dead_letters()) == 199 - len(wanted)
    assert pusher.stats().balanced


def test_raise_names_the_job_and_the_next_call_goes_on(make_pusher, make_puller):
    pusher = make_pusher()
    puller = make_puller(pusher.endpoint, type=Order, on_invalid="raise")
    for value in (BAD, GOOD[0]):
        pusher.push(value, key="k")
    with pytest.raises(InvalidValueError, match=r"job 0 .* at \$\.count") as caught:
        puller.receive(timeout=WAIT_S)
    assert caught.value.item.value == BAD
    assert caught.value.item.state == "discarded"
    assert take(puller, 1) == GOOD[:1]
    wait_for_dead_letter(pusher)


def test_a_callable_gets_it_and_run_goes_on(make_pusher, make_puller):
    pusher, called, done = make_pusher(), [], []
    puller = make_puller(pusher.endpoint, type=Order, on_invalid=called.append)
    for value in (GOOD[0], BAD, GOOD[1]):
        pusher.push(value)
    puller.run(lambda job: done.append(job.value), count=2, signals=False)
    assert done == GOOD
    assert [error.path for error in called] == ["$.count"]
    wait_for_dead_letter(pusher)


@pytest.mark.parametrize("kind", [p2pmsg.Puller, aio.Puller])
@pytest.mark.parametrize(
    ("options", "field"), [({"type": 5}, "type"), ({"type": int, "on_invalid": 5}, "on_invalid")]
)
def test_wrong_arguments_are_refused(kind, options, field):
    with pytest.raises(ConfigError, match=field):
        kind("tcp://127.0.0.1:1", **options)


NUMBERS = ["x", *range(5), "y", "z", *range(6, 250), "w", 250]
"""Jobs for a puller of int, of several frames."""
ENDS = [(number, value) for number, value in enumerate(NUMBERS) if type(value) is int]


@pytest.fixture
def by_batch():
    with p2pmsg.Pusher("tcp://127.0.0.1:0", acknowledge="batch") as pusher:
        for start in range(0, len(NUMBERS), 40):
            pusher.push_many(NUMBERS[start : start + 40])
        yield pusher
        pusher.join(timeout=WAIT_S)
        assert pusher.stats().done == len(NUMBERS)


@pytest.mark.parametrize("how", ["iteration", "receive", "callable"])
def test_by_the_batch_what_does_not_fit_is_reported_in_its_place(by_batch, how):
    found, errors = [], []
    options = {"on_invalid": errors.append} if how == "callable" else {}
    with p2pmsg.Puller(by_batch.endpoint, acknowledge="batch", type=int, **options) as puller:
        while len(found) < len(ENDS):
            try:
                job = next(puller) if how == "iteration" else puller.receive(timeout=WAIT_S)
            except InvalidValueError as error:
                errors.append(error)
            else:
                found.append((job.sequence, job.value))
        assert found == ENDS
        assert [(error.item.sequence, error.item.value) for error in errors] == [
            (number, value) for number, value in enumerate(NUMBERS) if type(value) is str
        ]
        assert {error.path for error in errors} == {"$"}
        assert (puller.stats().received, puller.stats().invalid) == (len(ENDS), len(errors))
        puller.commit()


def test_by_the_batch_what_does_not_fit_may_be_skipped_with_a_warning(by_batch, caplog):
    async def work():
        async with aio.Puller(
            by_batch.endpoint, acknowledge="batch", type=int, on_invalid="skip"
        ) as puller:
            found = [(await puller.receive(WAIT_S)).value for _ in ENDS]
            puller.commit()
            return found, puller.stats().invalid

    with caplog.at_level(logging.WARNING, "p2pmsg"):
        found, invalid = asyncio.run(work())
    assert (found, invalid) == ([value for _, value in ENDS], 4)
    assert caplog.text.count("does not fit its type") == 4


def test_what_does_not_fit_goes_to_others_with_the_share_of_a_puller_that_left():
    with p2pmsg.Pusher("tcp://127.0.0.1:0", acknowledge="batch") as pusher:
        pusher.push_many([1, "x", 2])
        with p2pmsg.Puller(pusher.endpoint, acknowledge="batch", type=int) as first:
            assert first.receive(timeout=WAIT_S).value == 1
        with p2pmsg.Puller(pusher.endpoint, acknowledge="batch", type=int) as puller:
            assert puller.receive(timeout=WAIT_S).value == 1
            with pytest.raises(InvalidValueError):
                puller.receive(timeout=WAIT_S)
            assert puller.receive(timeout=WAIT_S).value == 2
            puller.commit()
            pusher.join(timeout=WAIT_S)
