"""Who ended a connection: libzmq, or its peer."""

import os
import socket

import pytest

from transports.ended_here import EndedHere


@pytest.fixture
def ended():
    made = EndedHere()
    yield made
    made.close()


@pytest.fixture(params=["tcp", "ipc"])
def pair(request):
    """Return the two ends of a connection."""
    if request.param == "ipc":
        ends = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            peer = socket.create_connection(listener.getsockname())
            ends = listener.accept()[0], peer
    yield ends
    for each in ends:
        each.close()


def followed(ended, own):
    ended.came(own.fileno())
    assert ended.follow()
    ended.confirm()
    return own.fileno()


def test_one_whose_peer_is_there_was_ended_here(ended, pair):
    own, peer = pair
    peer.sendall(b"x" * 1000)
    fd = followed(ended, own)
    own.close()
    ended.went(fd)
    assert ended.count == 1
    peer.settimeout(30)
    try:
        assert peer.recv(1) == b""  # it sees the end
    except ConnectionResetError:
        pass


def test_one_whose_peer_has_gone_was_not(ended, pair):
    own, peer = pair
    peer.sendall(b"x" * 1000)
    fd = followed(ended, own)
    peer.close()
    own.recv(1)
    own.setblocking(True)
    while own.recv(65_536):  # until the end has come
        pass
    own.close()
    ended.went(fd)
    assert ended.count == 0


def test_one_that_ended_before_it_was_followed_is_not_judged(ended, pair):
    own, _ = pair
    fd = own.fileno()
    ended.came(fd)
    ended.follow()
    ended.went(fd)  # the number may be that of a later connection
    ended.confirm()
    ended.went(fd)
    assert ended.count == 0
    assert not ended.follow()


def test_no_descriptor_stays_open(ended, pair):
    before = len(os.listdir("/dev/fd"))
    own, _ = pair
    for _ in range(3):
        followed(ended, own)
    assert len(os.listdir("/dev/fd")) == before + 1
    ended.close()
    assert len(os.listdir("/dev/fd")) == before


def test_there_is_a_bound(ended, pair, monkeypatch):
    monkeypatch.setattr("transports.ended_here._FOLLOWED_MAX", 1)
    own, peer = pair
    followed(ended, own)
    ended.came(peer.fileno())
    assert not ended.follow()
