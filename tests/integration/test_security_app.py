"""An app whose key is not admitted at first."""

import asyncio
import threading

from p2pmsg import App, Publisher, Pusher
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.secure import Peers


def test_a_refusal_ends_no_app_which_goes_on_when_its_key_is_admitted(tmp_path, caplog):
    peers = Peers(tmp_path)
    security, own = peers.security("server"), peers.security("app")
    with (
        Publisher(LOOPBACK, security=security) as publisher,
        Pusher(LOOPBACK, security=security) as pusher,
    ):
        publisher.publish("t", "message")
        pusher.push("job")
        app, seen = App(stop_timeout=10.0), []

        def took(value):
            seen.append(value)
            if len(seen) == 2:
                app.stop()

        @app.subscriber(
            peers.pinned(publisher.endpoint, "server"), topics=["t"], start="earliest", security=own
        )
        async def on_message(value: str):
            took(value)

        @app.worker(peers.pinned(pusher.endpoint, "server"), security=own)
        async def on_job(value: str):
            took(value)

        def admit():
            eventually(lambda: caplog.text.count("does not admit our key") >= 2)
            security.known.add("app", peers.text("app"))

        threading.Thread(target=admit, daemon=True).start()
        asyncio.run(asyncio.wait_for(app.serve(), 60))
        assert sorted(seen) == ["job", "message"]
