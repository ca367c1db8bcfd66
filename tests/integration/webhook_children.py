"""A sender of webhooks to be killed: `python -m tests.integration.webhook_children …`."""

import sys

from p2pmsg.webhooks import Endpoint, Sender
from tests.integration.webhooks import LOOPBACK


def endpoint(url, order, form="standard", **more):
    return Endpoint(
        url, allow=LOOPBACK, order=order, format=form, concurrency=4, name="hook",
        retry=(0, *[0.02] * 200), **more,
    )  # fmt: skip


if __name__ == "__main__":
    place, address, state, order, form = sys.argv[1:]
    with Sender(place, state=state, endpoints=[endpoint(address, order, form)],
                start="earliest") as sender:  # fmt: skip
        print("ready", flush=True)
        sender.wait()
