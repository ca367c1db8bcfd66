"""A client whose sendings are cut short."""

import pytest

import p2pmsg
from p2pmsg import metrics


class Sink:
    """Stands for where deltas go; raises when it is told to, before or after it has taken them."""

    endpoint = "nowhere"

    def __init__(self):
        self.taken, self.raises, self.after = [], None, False

    def send(self, deltas):
        if self.raises is not None and not self.after:
            raise self.raises
        self.taken.append(dict(deltas.counters))
        if self.raises is not None:
            raise self.raises

    def has_sent(self):
        return self.after

    def close(self, timeout):
        return 0, ""


@pytest.fixture
def client():
    made = metrics.Client("udp://127.0.0.1:9", interval_ms=60_000)
    made._sink.close(0)
    made._sink = Sink()
    yield made
    made._sink.raises = None
    made.close()


@pytest.mark.parametrize("after", [False, True])
def test_what_ctrl_c_keeps_from_being_sent_is_sent_with_the_next_flush_and_once(client, after):
    sink = client._sink
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


def test_what_cannot_be_sent_is_counted(client):
    client.increment("a")
    client._sink.raises = p2pmsg.MessageError("value", "too large")
    with pytest.raises(p2pmsg.MessageError):
        client.flush()
    client._sink.raises = None
    client.flush()

    assert client._sink.taken == []
    assert client.undelivered == 1
