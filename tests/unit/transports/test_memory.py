import pytest

from transports import (
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

    def deliver_all(self):
        while self.held:
            link, frame = self.held.pop(0)
            link.arrive(frame)


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
    assert not sender.send_now(b"3")
    (link, frame), (_, lost) = transfers.held
    link.lose()
    assert sender.send(b"4")
    link.arrive(frame)
    assert not sender.send(b"5")
    assert receiver.receive() == b"1"
    assert sender.send(b"6")
    assert lost == b"2"


def test_a_duplicate_arrives_twice_and_one_without_space_is_counted():
    transfers = Transfers()
    network = MemoryNetwork(transfers)
    sender = MemorySender(FEED, network=network, queue_frames=2)
    receiver = receiver_on(network)
    sender.send(b"1")
    link, frame = transfers.held[0]
    for _ in range(3):
        link.arrive(frame)
    assert received(receiver) == [b"1", b"1"]
    assert (link.overflowed, link.in_flight, link.waiting) == (1, 0, 0)


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


def test_it_answers_all_that_peers_ask_zmqs_sockets():
    network = MemoryNetwork()
    sender, receiver = MemorySender(FEED, network=network), MemoryReceiver(FEED, network=network)
    server = MemoryRecoveryServer(FEED, network=network)
    client = MemoryRecoveryClient(FEED, network=network)
    receiver.subscribe(b"a")
    receiver.connect()
    client.connect()
    assert (len(sender.connections), len(server.connections)) == (1, 1)
    sender.send_now(b"abc")
    client.send(b"1")
    client.send(b"2")
    assert receiver.has_message()
    assert [frame for _, frame in server.receive_some(9)] == [b"1", b"2"]
    for one in (receiver, client):
        assert (one.fileno(), one.refusal, one.last_byte_ns(7)) == (-1, "", None)
        assert [one.check(), one.was_ended_here(), one.has_returned()] == [False] * 3
    client.close()
    assert len(server.connections) == 0


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


def test_it_says_that_it_was_connected_again():
    network = MemoryNetwork()
    server = MemoryRecoveryServer(FEED, network=network)
    client = MemoryRecoveryClient(FEED, network=network)
    client.connect()
    assert not client.has_returned()
    server.close()
    MemoryRecoveryServer(FEED, network=network)
    assert [client.has_returned(), client.has_returned()] == [True, False]
