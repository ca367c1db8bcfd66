"""`p2pmsg bridge`, run as a user does."""

import re

import zmq

from p2pmsg import Subscriber
from tests.integration.commands import command
from tests.integration.peers import eventually


def test_bridges_until_it_is_asked_to_end(tmp_path):
    with zmq.Context() as context, context.socket(zmq.XPUB) as pub:
        pub.bind(f"ipc://{tmp_path}/plain")
        arguments = [
            "--from", f"zmq+sub+ipc://{tmp_path}/plain", "--to", "tcp://127.0.0.1:0",
            "--log", str(tmp_path / "log"), "--json", "--sequence-at", "n", "--stats", "0.1",
        ]  # fmt: skip
        with command(tmp_path, "bridge", *arguments) as bridge:
            assert pub.recv() == b"\1"
            for count in (0, 1, 2, 5):
                pub.send_multipart([b"t", b'{"n": %d}' % count])
            endpoint = eventually(lambda: re.search(r"from .* to (tcp://\S+)", bridge.errors()))[1]
            with Subscriber(endpoint, start="earliest") as subscriber:
                assert [subscriber.receive(60).value["n"] for _ in range(4)] == [0, 1, 2, 5]
            counts = "4 messages received; 4 passed on; 2 lost before they came here"
            eventually(lambda: counts in bridge.errors())
            bridge.process.terminate()  # for Ctrl-C there is test_cli_interrupted.py
            assert bridge.wait() == 0
            errors = bridge.errors()
    assert "Traceback" not in errors
    assert all(line.startswith("p2pmsg bridge: ") for line in errors.splitlines())
    assert counts in errors.splitlines()[-1]
