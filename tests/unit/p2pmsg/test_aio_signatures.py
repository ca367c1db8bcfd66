"""Peers of asyncio have the names and arguments of the threaded ones; what differs is listed."""

import inspect

import pytest

import p2pmsg
from p2pmsg import aio, metrics
from p2pmsg.aio import metrics as aio_metrics

PAIRS = {
    "Publisher": (p2pmsg.Publisher, aio.Publisher),
    "Subscriber": (p2pmsg.Subscriber, aio.Subscriber),
    "Pusher": (p2pmsg.Pusher, aio.Pusher),
    "Puller": (p2pmsg.Puller, aio.Puller),
    "Requester": (p2pmsg.Requester, aio.Requester),
    "Responder": (p2pmsg.Responder, aio.Responder),
    "Relay": (p2pmsg.Relay, aio.Relay),
    "Client": (metrics.Client, aio_metrics.Client),
}
TURNS = {"close_now", "next_deadline", "turn", "wait_fds"}
MORE = {
    "Publisher": {"begin", "open"},
    "Subscriber": {"begin", "open"},
    "Pusher": {"begin", "open"},
    "Puller": {"begin", "open"},
    "Requester": {"begin", "open"},
    "Responder": {"begin", "open"},
    "Relay": {"begin", "open"},
    "Client": {"begin", "open"},
}
ARGUMENTS = {
    # Tasks in place of threads.
    ("Responder", "__init__"): ({"threads"}, {"tasks_max"}),
    ("Puller", "run"): ({"threads"}, {"tasks"}),
}


def names(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def arguments(call):
    return {
        name: (each.kind, each.default)
        for name, each in inspect.signature(call).parameters.items()
        if name != "self"
    }


@pytest.mark.parametrize("peer", PAIRS)
def test_the_names_are_the_same(peer):
    threaded, here = map(names, PAIRS[peer])
    assert here - threaded == TURNS | MORE.get(peer, set())
    assert threaded - here == set()


@pytest.mark.parametrize("peer", PAIRS)
def test_the_arguments_are_the_same(peer):
    threaded, here = PAIRS[peer]
    for name in [*sorted(names(threaded) & names(here)), "__init__"]:
        one, other = (
            kind if name == "__init__" else getattr(kind, name) for kind in (threaded, here)
        )
        if not callable(one):
            assert not callable(other), name
            continue
        fewer, more = ARGUMENTS.get((peer, name), (set(), set()))
        before, after = arguments(one), arguments(other)
        assert before.keys() - after.keys() == fewer, name
        assert after.keys() - before.keys() == more, name
        both = before.keys() & after.keys()
        assert {key: before[key] for key in both} == {key: after[key] for key in both}, name
        assert [key for key in before if key in both] == [key for key in after if key in both], name
