"""A client whose sendings are cut short."""

import pytest

import p2pmsg
from p2pmsg import metrics
from p2pmsg.peers.publisher import PublisherPeer
from tests.unit.p2pmsg.interrupts import interrupt_at


class Sendings:
    """What publishers publish; raises when it is asked to, before or after that."""

    def __init__(self, monkeypatch):
        self.taken, self.raises, self.after = [], None, False
        publish = PublisherPeer.publish

        def strike(publisher, topic, value, *others, bounded):
            if self.raises is not None and not self.after:
                raise self.raises
            sequence = publish(publisher, topic, value, *others, bounded=bounded)
            self.taken.append(dict(value.get("c", {})))
            if self.raises is not None:
                raise self.raises
            return sequence

        monkeypatch.setattr(PublisherPeer, "publish", strike)


@pytest.fixture
def sink(monkeypatch):
    return Sendings(monkeypatch)


@pytest.fixture
def client():
    with metrics.Client("tcp://127.0.0.1:0", interval=60.0, close_timeout=0) as made:
        yield made


@pytest.mark.parametrize("after", [False, True])
def test_what_ctrl_c_keeps_from_being_sent_is_sent_with_the_next_flush_and_once(
    sink, client, after
):
    client.increment("a")
    sink.raises, sink.after = KeyboardInterrupt(), after
    with pytest.raises(KeyboardInterrupt):
        client.flush()
    sink.raises = None
    client.increment("a", 5)
    client.flush()

    assert sink.taken == [{"a": 1}, {"a": 5}]
    assert client.sent == 2
    assert client.undelivered == 0


def test_what_a_signal_handler_counts_in_a_flush_leaves_with_the_next_one(client, monkeypatch):
    taken, publish = [], PublisherPeer.publish

    def publish_and_be_struck(publisher, topic, value, *others, bounded):
        client.increment("b")
        taken.append(value["c"])
        return publish(publisher, topic, value, *others, bounded=bounded)

    monkeypatch.setattr(PublisherPeer, "publish", publish_and_be_struck)
    client.increment("a")
    client.flush()
    client.flush()
    assert taken == [{"a": 1}, {"b": 1}]


def test_what_cannot_be_sent_is_counted(sink, client):
    client.increment("a")
    sink.raises = p2pmsg.MessageError("value", "too large")
    with pytest.raises(p2pmsg.MessageError):
        client.flush()
    sink.raises = None
    client.flush()

    assert sink.taken == []
    assert client.undelivered == 1


@pytest.mark.parametrize("value", [3.5, None, ["x"], b"x", object], ids=repr)
def test_a_value_of_a_set_that_is_neither_text_nor_integer_is_refused(client, value):
    with pytest.raises(p2pmsg.MessageError, match="value must be a text or an integer, not"):
        client.set_add("odd", value)


def test_ctrl_c_at_any_line_neither_loses_nor_doubles_what_was_counted(sink, client):
    client._add_up_at = 3
    places = ("/metrics/deltas.py", "/metrics/peer.py", "/section.py")
    struck, step, done = "at first", 0, 0

    def count():
        nonlocal done
        for _ in range(5):
            client.increment("a")
            done += 1
        client.flush()

    while struck is not None:
        before = sum(each.get("a", 0) for each in sink.taken)
        done = 0
        struck = interrupt_at(step, count, lambda code: code.co_filename.endswith(places))
        client.increment("b")
        client.flush()
        counted = sum(each.get("a", 0) for each in sink.taken) - before
        assert counted in (done, done + 1), struck  # it is not said of the one that was struck
        step += 1
    assert step > 100
    assert client.undelivered == 0
