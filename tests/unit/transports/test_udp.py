"""UDP on real sockets: groups, addresses, trains, buffers."""

import select
import socket

import pytest

from tests.endpoints import free_port
from transports import AddressError, ClosedError, EndpointError, udp
from transports.udp import UdpReceiver, UdpSender


@pytest.fixture
def opened():
    made = []
    yield lambda one: made.append(one) or one
    for one in made:
        one.close()


def wait_for(one):
    assert select.select([one], [], [], 60)[0], "nothing came"


def pair(opened, endpoint):
    receiver = opened(UdpReceiver(endpoint))
    receiver.connect()
    return opened(UdpSender(endpoint)), receiver


PLACES = {
    "group": "udp://239.255.7.1:{}?interface=127.0.0.1",
    "interface by name": "udp://239.255.7.1:{}?interface=lo&ttl=0",
    "address": "udp://127.0.0.1:{}",
    "name": "udp://localhost:{}",
    "ipv6": "udp://[::1]:{}",
}


@pytest.mark.parametrize("text", PLACES.values(), ids=PLACES)
def test_a_datagram_arrives_and_an_answer_comes_back(opened, text):
    sender, receiver = pair(opened, text.format(free_port()))
    assert sender.send(b"hello")
    wait_for(receiver)
    received = receiver.receive()
    assert bytes(received.data) == b"hello"
    assert received.address == sender.find_source()
    receiver.send(b"back", sender.local_address if received.address is None else received.address)
    wait_for(sender)
    answer, address = sender.receive()
    assert answer == b"back"
    assert sender.send(b"for you alone", address)
    wait_for(receiver.back)
    assert receiver.receive_back()[0] == b"for you alone"
    assert receiver.receive() is None
    assert receiver.receive_back() is None
    assert sender.receive() is None


@pytest.mark.parametrize("segmenting", [True, False])
def test_a_train_arrives_as_the_datagrams_that_it_is_made_of(opened, segmenting):
    sender, receiver = pair(opened, PLACES["group"].format(free_port()))
    sender.segmenting &= segmenting
    datagrams = [bytes([number]) * 1000 for number in range(40)] + [b"the last is shorter"]
    assert sender.send_train(datagrams, 1000)
    found = []
    while len(found) < len(datagrams):
        wait_for(receiver)
        received = receiver.receive()
        data, segment = bytes(received.data), received.segment
        found += [data[at : at + segment] for at in range(0, len(data), segment)]
    assert found == datagrams


def test_what_does_not_fit_the_buffer_is_counted(opened):
    endpoint = PLACES["group"].format(free_port())
    receiver = opened(UdpReceiver(endpoint, buffer_bytes=16 * 1024))
    receiver.connect()
    sender = opened(UdpSender(endpoint))
    sent = 200
    for _ in range(sent):
        assert sender.send(bytes(1000))
    got = 0
    while receiver.receive() is not None:
        got += 1
    assert sender.send(b"the kernel reports with the next one")
    wait_for(receiver)
    receiver.receive()
    assert 0 < got < sent
    assert receiver.kernel_drops == sent - got


def test_an_address_has_one_receiver_only(opened):
    endpoint = PLACES["address"].format(free_port())
    pair(opened, endpoint)
    second = opened(UdpReceiver(endpoint))
    with pytest.raises(AddressError, match="this process has bound it already"):
        second.connect()


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "interface": ("udp://239.1.1.1:1?interface=none0", "interface 'none0' cannot be used"),
        "interface of the other kind": ("udp://[ff15::1]:1?interface=127.0.0.1", "cannot be used"),
        "host": ("udp://no-such-host.invalid:1", "is unknown"),
        "wildcard": ("udp://*:1", "needs an address and a port"),
        "zone": ("udp://[ff15::1%none0]:1", "'none0' cannot be used .*lo"),
        "zone of a link": ("udp://[ff02::1%999]:1", "'999' cannot be used .*lo"),
        "two interfaces": ("udp://[ff02::1%lo]:1?interface=lo", "one too many"),
        "scheme": ("tcp://h:1", "is not one of UDP's"),
    }.values(),
)
def test_a_sender_says_what_is_wrong_with_its_endpoint(text, message):
    with pytest.raises(EndpointError, match=message):
        UdpSender(text)


@pytest.mark.parametrize("host", ["ff05::7:1%lo", "ff12::7:1%lo", "ff05::7:1%{}", "ff12::7:1%{}"])
def test_a_zone_is_an_interface_whatever_the_scope(opened, host):
    index = socket.if_nametoindex("lo")
    text = f"udp://[{host.format(index)}]:{free_port()}"
    opened(UdpReceiver(text)).connect()
    sender = opened(UdpSender(text))
    used = sender.socket.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF)
    assert used == index


def test_an_address_of_another_machine_cannot_be_received_on(opened):
    receiver = opened(UdpReceiver("udp://192.0.2.1:5000"))
    with pytest.raises(AddressError):
        receiver.connect()


def test_a_closed_one_says_so(opened):
    sender, receiver = pair(opened, PLACES["address"].format(free_port()))
    sender.close()
    receiver.close()
    receiver.close()
    for call in (lambda: sender.send(b""), sender.receive, receiver.receive, receiver.receive_back):
        with pytest.raises(ClosedError):
            call()


def test_a_senders_buffer_for_answers_is_as_large_as_it_says_and_its_drops_are_counted(
    opened, monkeypatch
):
    large = opened(UdpSender(PLACES["address"].format(free_port())))
    monkeypatch.setattr(udp, "ANSWER_BUFFER_BYTES", 8192)
    sender = opened(UdpSender(PLACES["address"].format(free_port())))
    assert large.buffer_bytes > sender.buffer_bytes
    assert large.buffer_bytes > 100_000
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        target = ("127.0.0.1", sender.local_address[1])
        for _ in range(200):
            receiver.sendto(bytes(1000), target)
        came = 0
        while sender.receive() is not None:
            came += 1
        receiver.sendto(b"last", target)  # it brings the count
        assert sender.receive() == (b"last", receiver.getsockname())
    assert 0 < came < 200
    assert sender.kernel_drops == 200 - came


REFUSED = "udp://255.255.255.255:{}"
"""Sockets that do not ask for it may not broadcast."""


@pytest.mark.parametrize("segmenting", [True, False])
def test_what_the_network_refuses_is_lost_and_counted_and_said_once(opened, caplog, segmenting):
    sender = opened(UdpSender(REFUSED.format(free_port())))
    segmenting &= sender.segmenting
    sender.segmenting = segmenting
    assert sender.send(b"x")
    assert (sender.unsent.count, sender.unsent.why) == (1, "Permission denied")
    assert sender.send_train([bytes(100)] * 9 + [b"the last"], 100)
    assert sender.unsent.count == 11
    assert sender.segmenting == segmenting
    (record,) = caplog.records
    assert "datagrams cannot be sent: Permission denied. It is tried again" in record.message


def test_the_ttl_of_an_address_is_the_systems_unless_it_is_given(opened):
    place = PLACES["address"].format(free_port())
    default = opened(UdpSender(place)).socket.getsockopt(socket.IPPROTO_IP, socket.IP_TTL)
    assert default > 1
    given = opened(UdpSender(f"{place}?ttl=3"))
    assert given.socket.getsockopt(socket.IPPROTO_IP, socket.IP_TTL) == 3
    given = opened(UdpSender(f"{PLACES['ipv6'].format(free_port())}?ttl=3"))
    hops = given.socket.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS)
    assert hops == 3
    with pytest.raises(EndpointError, match="ttl 0 is for groups"):
        UdpSender(f"{place}?ttl=0")
