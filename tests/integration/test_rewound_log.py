"""A publisher whose log was restored from a copy: what it sends with old sequences arrives."""

import shutil

import pytest

import p2pmsg
from tests.integration.peers import eventually

pytest.importorskip("recovery.log")

ENDPOINT = "ipc://{}/feed"


def publisher(tmp_path):
    # As where a whole machine goes back to a snapshot: it does not know its log for a copy.
    log = p2pmsg.LogConfig(tmp_path / "log", moved=True)
    return p2pmsg.Publisher(ENDPOINT.format(tmp_path), name="feed", log=log)


def restored(tmp_path, first):
    """Publish 100, copy the log, publish 100 more, and put the copy in the log's place."""
    with publisher(tmp_path) as one:
        first(one, range(100))
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with publisher(tmp_path) as one:
        first(one, range(100, 200))
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "copy", tmp_path / "log")


def take(subscriber, count):
    return [subscriber.receive(timeout=20).value for _ in range(count)]


@pytest.mark.parametrize("count", [50, 250], ids=["behind", "passed"])
@pytest.mark.parametrize("policy", ["raise", "report"])
def test_a_live_subscriber_is_told_and_gets_the_new_messages(tmp_path, policy, count):
    reports = []
    on_gap = "raise" if policy == "raise" else reports.append
    with p2pmsg.Subscriber(ENDPOINT.format(tmp_path), start="earliest", on_gap=on_gap) as sub:

        def send(one, values):
            one.publish_many("t", list(values))
            assert take(sub, len(values)) == list(values)

        restored(tmp_path, send)
        with publisher(tmp_path) as one:
            one.publish_many("t", [f"new {n}" for n in range(count)])
            if policy == "raise":
                with pytest.raises(p2pmsg.SessionRewoundError) as caught:
                    sub.receive(timeout=20)
                reports.append(caught.value.report)
            assert take(sub, count) == [f"new {n}" for n in range(count)]
            (report,) = reports
            assert isinstance(report, p2pmsg.RewoundReport)
            assert (report.start, report.stop, report.reason.value) == (100, 200, "rewound")
            stats = sub.stats()
            assert (stats.streams_rewound, stats.delivered, stats.lost) == (1, 200 + count, 0)
            assert stats.balanced


def test_a_subscriber_with_a_cursor_that_was_away_gets_the_new_messages(tmp_path, caplog):
    def subscriber():
        return p2pmsg.Subscriber(
            ENDPOINT.format(tmp_path), start="earliest", cursor=tmp_path / "cursor"
        )

    def send(one, values):
        with subscriber() as sub:
            one.publish_many("t", list(values))
            assert take(sub, len(values)) == list(values)
            sub.commit()

    restored(tmp_path, send)
    with publisher(tmp_path) as one:
        one.publish_many("t", list(range(50)))
        with subscriber() as sub:
            assert take(sub, 50) == list(range(50))
            sub.commit()
        assert "from a copy" in caplog.text
        one.publish("t", "later")
        with subscriber() as sub:
            assert take(sub, 1) == ["later"]
            assert sub.stats().streams_rewound == 0  # the cursor was set back


def test_a_relay_keeps_what_it_has_and_says_so(tmp_path, caplog):
    with p2pmsg.Relay(ENDPOINT.format(tmp_path), f"ipc://{tmp_path}/relay") as relay:

        def send(one, values):
            before = relay.stats().received
            one.publish_many("t", list(values))
            eventually(lambda: relay.stats().received == before + len(values))

        restored(tmp_path, send)
        with publisher(tmp_path) as one:
            one.publish_many("t", [f"new {n}" for n in range(50)])
            eventually(lambda: "Those that this relay has keep them here" in caplog.text)
            with p2pmsg.Subscriber(f"ipc://{tmp_path}/relay", start="earliest") as sub:
                assert take(sub, 200) == list(range(200))


def test_a_relay_counts_it_and_keeps_what_it_has(tmp_path, caplog):
    place = f"ipc://{tmp_path}/relay"
    with (
        p2pmsg.Relay(ENDPOINT.format(tmp_path), place) as relay,
        p2pmsg.Subscriber(place, start="earliest") as sub,
    ):

        def send(one, values):
            one.publish_many("t", list(values))
            assert take(sub, len(values)) == list(values)

        restored(tmp_path, send)
        with publisher(tmp_path) as one:
            one.publish_many("t", [f"new {n}" for n in range(50)])
            eventually(lambda: relay.stats().streams_rewound == 1)
            one.publish_many("t", [f"new {n}" for n in range(50, 110)])
            assert take(sub, 10) == [f"new {n}" for n in range(100, 110)]
        assert "it drops the other ones" in caplog.text
