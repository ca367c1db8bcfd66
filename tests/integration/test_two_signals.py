"""A signal that comes while what another one has raised is handled: nothing stays half done."""

import pytest

import p2pmsg
from p2pmsg.errors import MessageError
from p2pmsg.publisher.batch import Batch
from p2pmsg.publisher.kept_batch import KeptBatch
from p2pmsg.sync.publisher import Publisher
from tests.integration.peers import take

REFUSED = {
    "a part of the value": {"value": [1, "begun", object()]},
    "a header": {"value": "whole", "key": "wrong", "headers": {"a": object()}},
}


@pytest.fixture(params=[False, True], ids=["in memory", "with a log"])
def publisher(request, make_publisher, tmp_path):
    log = p2pmsg.LogConfig(tmp_path / "log") if request.param else None
    return make_publisher(config=p2pmsg.PublisherConfig(linger=60.0), log=log)


def gather(publisher):
    """Publish until a batch is gathered, from which the next ones do not leave by themselves."""
    count, batch = 0, None
    while batch is None or publisher._batches.get("t") is not batch:
        publisher.publish("t", count)
        count += 1
        if (batch := publisher._batches.get("t")) is not None:
            batch.opened_ns = 2**62
    return count


def interrupt_once(monkeypatch, owner, name):
    """Let a signal come as the method is called: before any of it is done."""
    struck = []

    def strike(self, *arguments):
        if not struck:
            struck.append(name)
            raise KeyboardInterrupt
        return real(self, *arguments)

    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, strike)
    return struck


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("way", ["short", "under the lock"])
def test_what_comes_after_them_is_whole(publisher, make_subscriber, monkeypatch, way, refused):
    subscriber = make_subscriber(publisher.endpoint, joins=publisher)
    count = gather(publisher)
    kind = type(publisher._batches["t"])
    assert kind is (Batch if publisher.stats().log is None else KeptBatch)
    with monkeypatch.context() as patched:
        if way == "short":
            struck = interrupt_once(patched, Publisher, "_repair")
        else:
            struck = interrupt_once(patched, kind, "repair")
            patched.setattr(publisher._batches, "batch", None)
            patched.setattr(publisher._batches, "topic", None)
            publisher._batches["t"].limit = 0  # it is full as far as the short way knows
        with pytest.raises((KeyboardInterrupt, MessageError)):
            publisher.publish("t", **refused)
        assert struck
    publisher.publish("t", "next")
    publisher.publish("t", "last", key="right")
    publisher.flush()
    messages = take(subscriber, count + 2)
    assert [message.value for message in messages] == [*range(count), "next", "last"]
    assert [message.key for message in messages] == [None] * (count + 1) + ["right"]
