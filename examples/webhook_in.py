"""Webhooks of others as a stream: verified, each once, and in the log before they are answered.

`python examples/webhook_in.py` serves for itself: ten signed requests, each sent twice as after a
time-out, and one that is forged.

`python examples/webhook_in.py PORT` serves at that port of this machine until Ctrl-C, for
webhook_out.py, and prints what is published.
"""

import ctrl_c

import base64
import hmac
import json
import tempfile
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from arguments import optional

import p2pmsg
from p2pmsg import webhooks
from p2pmsg.http import bind, make_server

COUNT = 10
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # yours is a secret, and not in a program


def post(place: str, hook_id: str, value: Any, secret: str = SECRET) -> int:
    """Send a webhook as others do; return the status of the answer."""
    body, stamp = json.dumps(value).encode(), str(int(time.time()))
    key, content = base64.b64decode(secret[6:]), f"{hook_id}.{stamp}.".encode() + body
    signature = base64.b64encode(hmac.digest(key, content, "sha256")).decode()
    headers = {
        "content-type": "application/json",
        "webhook-id": hook_id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{signature}",
    }
    try:
        with urllib.request.urlopen(urllib.request.Request(place, body, headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def main(number: int | None) -> int:
    """Serve, and post if nobody else does."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        p2pmsg.Publisher("tcp://127.0.0.1:0", log=p2pmsg.LogConfig(f"{folder}/log")) as publisher,
        bind("127.0.0.1", number or 0) as place,
    ):
        app = webhooks.receive(publisher, secrets=SECRET, topic="hooks", seen=f"{folder}/seen")
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        url = f"http://127.0.0.1:{place.getsockname()[1]}/"
        try:
            with p2pmsg.Subscriber(publisher.endpoint, start="earliest") as subscriber:
                if number is not None:
                    print(f"waiting at {url}", flush=True)
                    for message in subscriber:
                        print(message.sequence, message.value, flush=True)
                for n in [*range(COUNT)] * 2:
                    post(url, f"order-{n}", {"order": n})
                forged = post(url, "order-99", {"order": 99}, "whsec_" + "A" * 32)
                orders = [subscriber.receive(timeout=10).value["order"] for _ in range(COUNT)]
        finally:
            server.should_exit = True
            thread.join()
        publisher.close(timeout=0)
    again = app.duplicates
    print(f"{len(orders)} of {COUNT} published, {again} came again, the forged one got {forged}")
    return 0 if orders == [*range(COUNT)] and forged == 401 else 1


if __name__ == "__main__":
    ctrl_c.run(main, optional(__doc__, "PORT", kind=int))
