"""What a person, a log and `json.dumps` see of each peer and its counters."""

import asyncio
import json
import traceback

import pytest

import p2pmsg
from p2pmsg import security
from tests.unit.p2pmsg.test_arguments import CASES, PEERS

TIMELESS = ("Subscriber", "Requester", "Responder", "aio.Subscriber")


@pytest.mark.parametrize(
    "name", [*PEERS, *(f"aio.{name}" for name in PEERS), "Collector", "Bridge"]
)
def test_a_peer_says_what_it_is_and_where_and_its_counters_are_json(name):
    call, given, _ = CASES[name]

    async def shown():
        peer = call(*given)
        text, stats = repr(peer), getattr(peer, "stats", dict)()
        ended = peer.close() if name in TIMELESS else peer.close(0)
        if asyncio.iscoroutine(ended):
            await ended
        return text, stats, repr(peer)

    text, stats, closed = asyncio.run(shown())
    assert text.startswith(f"<{call.__name__} ")
    assert "127.0.0.1" in text
    assert text.endswith("open>")
    assert closed.endswith("closed>")
    assert " object at 0x" not in f"{text}{stats}"
    if stats:
        assert json.loads(json.dumps(stats.to_dict())).keys() == stats.to_dict().keys()


@pytest.mark.parametrize("name", [*PEERS, "Collector", "Bridge", "Security"])
def test_one_that_could_not_be_made_can_be_shown(name):
    kind = CASES[name][0]
    assert kind.__name__ in repr(object.__new__(kind))


def test_a_traceback_with_locals_of_a_bad_key_file_can_be_shown(tmp_path):
    key = tmp_path / "key"
    security.write_key_file(key, security.new_keys())
    key.write_text(key.read_text() + "more\n")
    with pytest.raises(p2pmsg.ConfigError) as raised:
        p2pmsg.Security(key, tmp_path / "known_peers")
    error = raised.value
    shown = "".join(
        traceback.TracebackException.from_exception(error, capture_locals=True).format()
    )
    assert "Security(" in shown
    assert key.read_text().split()[-2] not in shown
