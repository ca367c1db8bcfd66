"""`p2pmsg serve` where posts cannot be published, or are not what they have to be."""

import json

import pytest

pytest.importorskip("uvicorn", reason="serving over HTTP needs uvicorn (extra http)")
pytest.importorskip("recovery.log")

from p2pmsg import LogConfig
from tests.integration.peers import eventually
from tests.integration.test_serve import Events, ask, serving, values
from tests.unit.p2pmsg.webhooks.test_seen import no_file_above


def test_a_log_that_takes_nothing_is_named_and_streams_go_on(make_publisher, tmp_path, caplog):
    posts = make_publisher(log=LogConfig(tmp_path / "log", fsync="always"))
    other = make_publisher()
    with serving([posts.endpoint, other.endpoint], publisher=posts) as (port, app):
        eventually(lambda: app.stats().connected == 2)
        eventually(lambda: ask(port, "GET", "/health")[::2] == (200, b"ok\n"))
        with Events(port, "/topics/a").wait_ready() as events:
            with no_file_above(0):
                for _ in range(5):
                    assert ask(port, "POST", "/topics/a", b"refused")[0] == 503
                status, _, text = ask(port, "GET", "/health")
                assert (status, str(tmp_path / "log") in text.decode()) == (503, True)
                assert text.startswith(b"nothing can be published: ")
                assert ask(port, "GET", "/health/streams")[::2] == (200, b"ok\n")
                stats = json.loads(ask(port, "GET", "/stats")[2])
                assert stats["rejected"] == {"publisher": 5}
                assert stats["log_errors"] >= 5
                assert "File too large" in stats["failing"]
                other.publish("a", "streams")
                assert values(events.messages(1)) == ["streams"]
            assert ask(port, "POST", "/topics/a", b"x", **{"content-type": "text/plain"})[0] == 200
            while values(events.messages(1)) != ["x"]:
                pass  # what had failed only since it was not on the disk may come all the same
        assert ask(port, "GET", "/health")[0] == 200
        stats = json.loads(ask(port, "GET", "/stats")[2])
        assert (stats["published"], stats["failing"]) == (1, None)
    said = [one.getMessage() for one in caplog.records if "what is posted" in one.getMessage()]
    assert len(said) == 2
    assert "POST is answered with 503 meanwhile, and streams go on" in said[0]
    assert said[1].endswith("it works again, after 5 failures")
