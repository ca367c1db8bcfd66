"""A forked child has nothing of its parent's peers, and each use of one says so."""

import contextlib
import copy
import os
import pickle
import signal

import pytest

import p2pmsg
from p2pmsg import metrics
from p2pmsg.statsd import Collector
from p2pmsg.statsd.exact import StateFile
from p2pmsg.webhooks.letters import Letters
from p2pmsg.webhooks.seen import SeenIds
from tests.integration.peers import LOOPBACK, eventually
from tests.processes import in_child

INHERITED = "it belongs to the parent process; open another one in this process"


def outcomes(*calls):
    """Return what each call comes to in a forked child: the text of its error, or its result."""
    said = in_child(lambda pipe: os.write(pipe, pickle.dumps([outcome(call) for call in calls])))
    return pickle.loads(said)


def outcome(call):
    try:
        return repr(call())
    except p2pmsg.ClosedError as error:
        return str(error)
    except Exception as error:
        return repr(error)


@contextlib.contextmanager
def a_child_that_lives():
    """Fork a child that does nothing, and ends after the block."""
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.close(go)
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    try:
        yield
    finally:
        os.close(go)
        os.waitpid(child, 0)


def die_with_a_child_that_lives(hold):
    """Call `hold` in a process that forks and is killed; return what ends its child."""
    wait, go = os.pipe()
    ready, say = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(go)
        held = hold()
        if os.fork() == 0:
            signal.alarm(60)
            os.write(say, b".")
            os.close(say)
            os.read(wait, 1)
            os._exit(0)
        assert held is not None
        signal.pause()
    os.close(wait)
    os.close(say)
    assert os.read(ready, 1) == b"."
    os.close(ready)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    return go


def assert_refused(found):
    assert all(INHERITED in each for each in found), found


def drain(source):
    return lambda: list(source)


def test_a_child_gets_no_jobs_of_the_parent_s_puller(opened):
    pusher = opened.enter_context(p2pmsg.Pusher(LOOPBACK))
    puller = opened.enter_context(p2pmsg.Puller(pusher.endpoint, prefetch=8))
    for number in range(8):
        pusher.push(number)
    first = puller.receive(timeout=60)
    eventually(lambda: puller.stats().ready >= 2)
    held = next(puller)
    found = outcomes(
        drain(puller), lambda: next(puller), lambda: puller.receive(1), lambda: puller.run(print),
        lambda: puller.run(print, threads=2), lambda: (held.state, held.ack()),
    )  # fmt: skip
    assert_refused(found[:-1])
    assert found[-1] == repr(("gone", False))
    assert first.ack()
    assert held.ack()
    for expected in range(2, 8):
        with puller.receive(60) as job:
            assert job.value == expected


@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
@pytest.mark.parametrize("cursor", [False, True], ids=["plain", "cursor"])
def test_a_child_gets_no_messages_of_the_parent_s_subscriber(opened, tmp_path, begun, cursor):
    publisher = opened.enter_context(p2pmsg.Publisher(LOOPBACK))
    options = {"cursor": tmp_path / "cursor"} if cursor else {}
    subscriber = opened.enter_context(
        p2pmsg.Subscriber(publisher.endpoint, start="earliest", **options)
    )
    publisher.wait_for_subscribers(timeout=60)
    publisher.publish_many("t", range(100))
    publisher.flush()
    messages = iter(subscriber)
    assert next(messages).value == 0
    source = messages if begun else subscriber
    found = outcomes(
        drain(source), drain(source), lambda: subscriber.receive(1),
        lambda: subscriber.receive_many(timeout=1),
    )  # fmt: skip
    assert_refused(found)
    assert [next(messages).value for _ in range(99)] == [*range(1, 100)]


def test_a_child_s_other_peers_say_whose_they_are(opened):
    responder = p2pmsg.Responder(LOOPBACK, {"t": lambda value: value})
    opened.enter_context(responder)
    idle = p2pmsg.Responder(LOOPBACK)
    opened.callback(idle.close)
    client = opened.enter_context(metrics.Client(LOOPBACK, close_timeout=0))
    client.increment("hits")
    relay = opened.enter_context(p2pmsg.Relay(responder.endpoint, LOOPBACK))
    found = outcomes(
        responder.start, responder.serve, idle.start, client.flush,
        lambda: client.increment("hits"), client.wait_for_collectors, relay.wait_for_streams,
        lambda: relay.wait_for_subscribers(1),
    )  # fmt: skip
    assert_refused(found)


def test_an_error_says_who_has_the_address(opened):
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        where = publisher.endpoint
        child = opened.enter_context(contextlib.ExitStack())
        child.enter_context(a_child_that_lives())
        with pytest.raises(p2pmsg.BindError, match="this process has bound it already"):
            p2pmsg.Publisher(where)
        (said,) = outcomes(lambda: p2pmsg.Publisher(where))
        assert "another process on this machine has bound it" in said
    with pytest.raises(p2pmsg.BindError, match=r"a forked child keeps .* an endpoint of its own"):
        p2pmsg.Publisher(where)
    child.close()
    p2pmsg.Publisher(where).close()


def letters_of(path):
    letters = Letters(path / "hook")
    letters.lock()
    return letters


@pytest.mark.parametrize(
    "hold",
    [
        lambda path: StateFile(path / "state"),
        letters_of,
        lambda path: SeenIds(path / "seen", 0),
    ],
    ids=["totals", "letters", "seen"],
)
def test_a_child_keeps_no_lock_of_a_parent_that_was_killed(tmp_path, hold):
    go = die_with_a_child_that_lives(lambda: hold(tmp_path))
    try:
        hold(tmp_path).close()
    finally:
        os.close(go)


def test_peers_cannot_be_copied_or_pickled(opened):
    publisher = opened.enter_context(p2pmsg.Publisher(LOOPBACK))
    peers = [
        publisher,
        opened.enter_context(p2pmsg.Subscriber(publisher.endpoint)),
        opened.enter_context(p2pmsg.Relay(publisher.endpoint, LOOPBACK)),
        opened.enter_context(p2pmsg.Pusher(LOOPBACK)),
        opened.enter_context(p2pmsg.Puller("tcp://127.0.0.1:9")),
        opened.enter_context(p2pmsg.Pusher(LOOPBACK, acknowledge="batch")),
        opened.enter_context(p2pmsg.Puller("tcp://127.0.0.1:9", acknowledge="batch")),
        opened.enter_context(p2pmsg.Requester("tcp://127.0.0.1:9")),
        opened.enter_context(p2pmsg.Responder(LOOPBACK)),
        opened.enter_context(metrics.Client(LOOPBACK)),
        opened.enter_context(Collector("udp://127.0.0.1:0")),
    ]
    for peer in peers:
        refuse_copies(peer)


def refuse_copies(peer):
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=rf"{type(peer).__name__} cannot be copied or pickled"):
            way(peer)
