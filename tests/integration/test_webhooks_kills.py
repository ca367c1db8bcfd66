"""SIGKILL of sender and receiver at random points: at least once, equal ids, order kept."""

import itertools
import random
import subprocess
import sys
import time

import pytest

pytest.importorskip("aiohttp", reason="webhooks out need aiohttp (extra webhooks)")
pytest.importorskip("uvicorn", reason="webhooks in over HTTP need uvicorn (extra webhooks)")

import p2pmsg
from p2pmsg import LogConfig
from p2pmsg.webhooks import Sender
from tests.endpoints import lasting_endpoint
from tests.integration.commands import P2PMSG
from tests.integration.peers import eventually
from tests.integration.webhook_children import endpoint
from tests.integration.webhooks import SECRET, Receiver


class Ids:
    """Which ids each value came with, and in which order values came."""

    def __init__(self):
        self.by_value = {}
        self.values = []

    def note(self, value, hook_id):
        self.by_value.setdefault(value, set()).add(hook_id)
        self.values.append(value)

    def check(self, count, *, ordered):
        assert sorted(self.by_value) == [*range(count)]
        ids = [one for (one,) in self.by_value.values()]
        assert len(set(ids)) == count
        if ordered:
            highest = -1
            for value in self.values:
                assert value <= highest + 1
                highest = max(highest, value)


@pytest.mark.rounds(1, 40)
@pytest.mark.parametrize(
    ("order", "form"),
    [
        ("stream", "standard"),
        pytest.param("none", "standard", marks=pytest.mark.long),
        pytest.param("stream", "cloudevents-batch", marks=pytest.mark.long),
    ],
)
def test_a_sender_that_is_killed(order, form, rounds, tmp_path, make_publisher):
    rng = random.Random(f"{order}{form}")
    publisher = make_publisher(log=LogConfig(tmp_path / "log"))
    ids, numbers = Ids(), itertools.count()

    def answer(request):
        if rng.random() < 0.1:
            return rng.choice([500, 503, 429])
        events = request.value if isinstance(request.value, list) else [request.value]
        for event in events:
            ids.note(event["data"], event.get("id") or request.id)
        return 204 if rng.random() < 0.95 else 502

    with Receiver(answer) as receiver:
        arguments = [publisher.endpoint, receiver.url, str(tmp_path / "s"), order, form]
        command = [sys.executable, "-m", "tests.integration.webhook_children", *arguments]
        for turn in range(rounds + 1):
            child = subprocess.Popen(command, stdout=subprocess.PIPE)
            try:
                child.stdout.readline()
                for _ in range(60):
                    publisher.publish("t", next(numbers))
                if turn < rounds:
                    time.sleep(rng.random() * 0.2)
                else:
                    count = next(numbers)
                    eventually(lambda count=count: len(ids.by_value) == count)
            finally:
                child.kill()
                child.wait()
                child.stdout.close()
    ids.check(count, ordered=order == "stream")


@pytest.mark.rounds(1, 40)
def test_a_receiver_that_is_killed(rounds, tmp_path, make_publisher):
    rng = random.Random(7)
    source = make_publisher(log=LogConfig(tmp_path / "log"))
    port = int(lasting_endpoint().rpartition(":")[2])
    published = f"ipc://{tmp_path}/published"
    command = [
        *P2PMSG, "hook", "in", "--listen", f"127.0.0.1:{port}", "--publish", published,
        "--log", str(tmp_path / "in"), "--secret", SECRET, "--scheme", "standard",
    ]  # fmt: skip
    numbers, count = itertools.count(), 0
    hook = endpoint(f"http://127.0.0.1:{port}/", "stream", secret=SECRET)
    sender = Sender(source.endpoint, state=tmp_path / "s", endpoints=[hook], start="earliest")
    with sender:
        for turn in range(rounds + 1):
            child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            try:
                for _ in range(60):
                    count = source.publish("t", next(numbers)) + 1
                if turn < rounds:
                    before = sender.stats().delivered
                    eventually(lambda least=before: sender.stats().delivered > least)
                    time.sleep(rng.random() * 0.1)
                    continue
                eventually(lambda count=count: sender.stats().delivered >= count)
                ids = Ids()
                with p2pmsg.Subscriber(published, start="earliest") as subscriber:
                    while len(ids.by_value) < count:
                        message = subscriber.receive(timeout=60)
                        ids.note(message.value["data"], message.headers["webhook-id"])
            finally:
                child.kill()
                child.wait()
    ids.check(count, ordered=True)
