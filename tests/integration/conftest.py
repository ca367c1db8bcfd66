"""Fixtures that close whatever a test opened, in the end and in order."""

import contextlib

import pytest

import p2pmsg
from p2pmsg.testing.proxy import TcpProxy
from tests.integration.peers import LOOPBACK, start_child


@pytest.fixture
def opened():
    """Keep what a test opens; all of it is closed when the test ends, last one first."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def make_publisher(opened):
    def make(endpoint=LOOPBACK, **options):
        made = p2pmsg.Publisher(endpoint, **options)
        opened.callback(made.close, timeout=0.0)
        return made

    return make


@pytest.fixture
def make_subscriber(opened):
    """Make a subscriber; with `joins`, wait until these publishers have one more than before."""

    def make(endpoints, *, joins=None, **options):
        publishers = [joins] if isinstance(joins, p2pmsg.Publisher) else (joins or [])
        before = [publisher.stats().subscribers for publisher in publishers]
        made = opened.enter_context(p2pmsg.Subscriber(endpoints, **options))
        for publisher, count in zip(publishers, before, strict=True):
            publisher.wait_for_subscribers(count + 1, timeout=10)
        return made

    return make


@pytest.fixture
def make_proxy(opened):
    return lambda publisher, **options: opened.enter_context(
        TcpProxy(publisher.endpoint, **options)
    )


@pytest.fixture
def make_child(opened):
    """Start a child process; it is killed in the end, if it still runs."""

    def make(role, *arguments):
        child = start_child(role, *arguments)
        opened.callback(child.finish)
        return child

    return make


@pytest.fixture
def make_pusher(opened):
    def make(endpoint=LOOPBACK, **options):
        made = p2pmsg.Pusher(endpoint, **options)
        opened.callback(made.close, timeout=0.0)
        return made

    return make


@pytest.fixture
def make_puller(opened):
    def make(endpoints, **options):
        made = p2pmsg.Puller(endpoints, **options)
        opened.callback(made.close)
        return made

    return make
