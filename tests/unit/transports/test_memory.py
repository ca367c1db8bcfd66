import pytest

from transports.memory import (
    MemoryNetwork,
    MemoryReceiver,
    MemoryRecoveryClient,
    MemoryRecoveryServer,
    MemorySender,
)

FEED = "memory://feed"


class Transfers:
    """A hook that holds every transfer back."""

    def __init__(self):
        self.held = []

    def __call__(self, link, frame):
        self.held.append((link, frame))


@pytest.fixture
def network():
    return MemoryNetwork()


@pytest.fixture
def sender(network):
    return MemorySender(FEED, network=network)


def receiver_on(network, *prefixes, **options):
    receiver = MemoryReceiver(FEED, network=network, **options)
    for prefix in prefixes or (b"",):
        receiver.subscribe(prefix)
    receiver.connect()
    return receiver


def received(socket):
    frames = []
    while (frame := socket.receive()) is not None:
        frames.append(frame)
    return frames


def test_a_full_receiver_makes_send_refuse_and_shedding_skips_it_alone(network, sender):
    slow, quick = receiver_on(network, queue_frames=1), receiver_on(network)
    assert sender.send(b"1")
    assert not sender.send(b"2")
    sender.send_shedding(b"3")
    assert received(quick) == [b"1", b"3"]
    assert received(slow) == [b"1"]
    assert sender.send(b"4")


def test_frames_in_flight_take_space_until_they_arrive_and_are_read_or_are_lost():
    transfers = Transfers()
    network = MemoryNetwork(transfers)
    sender = MemorySender(FEED, network=network, queue_frames=2)
    receiver = receiver_on(network)
    assert sender.send(b"1")
    assert sender.send(b"2")
    assert not sender.send(b"3")
    (link, frame), (_, lost) = transfers.held
    link.lose()
    assert sender.send(b"4")
    link.arrive(frame)
    assert not sender.send(b"5")
    assert receiver.receive() == b"1"
    assert sender.send(b"6")
    assert lost == b"2"


def test_a_reply_says_when_the_queue_is_full_and_when_the_requester_is_gone(network):
    server = MemoryRecoveryServer(FEED, network=network, queue_frames=1)
    client = MemoryRecoveryClient(FEED, network=network)
    client.connect()
    client.send(b"?")
    assert not client.send(b"?")
    requester, _ = server.receive()
    assert server.reply(requester, b"1")
    assert not server.reply(requester, b"2")
    client.send(b"unread")
    client.close()
    assert server.receive() is None
    assert server.reply(requester, b"3") is None


def test_requests_on_their_way_arrive_where_closing_leaves_them_time():
    waiting = []
    network = MemoryNetwork(lambda link, frame: waiting.append((link, frame)))
    server = MemoryRecoveryServer(FEED, network=network)
    for linger_ms in (0, 100):
        client = MemoryRecoveryClient(FEED, network=network)
        client.connect()
        client.send(b"bye")
        client.close(linger_ms)
    for link, frame in waiting:
        link.arrive(frame)
    ((requester, frame),) = server.receive_some(9)
    assert (frame, server.reply(requester, b"?")) == (b"bye", None)
