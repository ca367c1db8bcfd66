"""Orders to a web service: signed, in order, and none is missing although it fails now and then.

`python examples/webhook_out.py` publishes twenty orders, and posts them to a small server of its
own, which refuses a third of the requests; the sender is stopped midway and started again.

`python examples/webhook_out.py URL` posts them to a server of yours (as webhook_in.py may be). It
may be on this machine: requests to loopback are allowed here, which otherwise they are not.
"""

import ctrl_c

import random
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

from arguments import optional

import p2pmsg
from p2pmsg import webhooks

ORDERS = 20
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # yours is a secret, and not in a program


class Shop(BaseHTTPRequestHandler):
    """Takes webhooks, and refuses a third of them."""

    arrived: dict[str, bytes] = {}  # noqa: RUF012
    requests = 0

    def do_POST(self) -> None:
        """Answer 500 at random; else keep the body by its id, which does not change."""
        body = self.rfile.read(int(self.headers["content-length"]))
        Shop.requests += 1
        is_well = random.random() > 1 / 3
        if is_well:
            self.arrived[self.headers["webhook-id"]] = body
        self.send_response(204 if is_well else 500)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def deliver(publisher: p2pmsg.Publisher, place: str, state: str, count: int) -> int:
    """Run a sender until so many were delivered or more; it goes on where the one before was."""
    endpoint = webhooks.Endpoint(
        place,
        secret=SECRET,
        topics=["orders"],
        order="stream",
        allow=["127.0.0.0/8", "::1/128"],
        retry=(0, *[0.05] * 50),  # the default takes 75 hours
        name="shop",
    )
    with webhooks.Sender(
        publisher.endpoint, state=state, endpoints=[endpoint], start="earliest"
    ) as sender:
        deadline = time.monotonic() + 30.0
        while sender.stats().delivered < count and time.monotonic() < deadline:
            time.sleep(0.01)
    return sender.stats().delivered


def main(place: str | None) -> int:
    """Publish, deliver half, stop, deliver the rest."""
    server = HTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    there = place or f"http://127.0.0.1:{server.server_port}/orders"
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as state,
        p2pmsg.Publisher("tcp://127.0.0.1:0") as publisher,
    ):
        for number in range(ORDERS):
            publisher.publish("orders", {"number": number, "price": 9.99})
        delivered = deliver(publisher, there, state, ORDERS // 2)
        deliver(publisher, there, state, ORDERS - delivered)
        publisher.close(timeout=0)
    if place is None:
        print(f"{len(Shop.arrived)} of {ORDERS} orders arrived, in {Shop.requests} requests")
        return 0 if len(Shop.arrived) == ORDERS else 1
    return 0


if __name__ == "__main__":
    ctrl_c.run(main, optional(__doc__, "URL"))
