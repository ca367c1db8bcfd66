"""npm's `standardwebhooks` and `cloudevents` and GitHub's verifier: theirs is taken, and ours."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("aiohttp", reason="webhooks out need aiohttp (extra webhooks)")
pytest.importorskip("uvicorn", reason="webhooks in over HTTP need uvicorn (extra webhooks)")

from p2pmsg.webhooks import Endpoint, Sender, receive
from tests.integration.peers import eventually
from tests.integration.test_webhooks_in import messages, serving
from tests.integration.webhooks import LOOPBACK, SECRET, Receiver, post

PROGRAM = Path(__file__).with_name("webhooks_npm.mjs")
PACKAGES = ("standardwebhooks", "cloudevents", "@octokit/webhooks-methods")
TEXT = "It's a Secret to Everybody"


@pytest.fixture(scope="module")
def npm():
    """Ask Node: a function from a question to its answer."""
    node, folder = shutil.which("node"), os.environ.get("P2PMSG_NPM_FOLDER", "")
    if node is None:
        pytest.skip("Node is not there")
    modules = Path(folder) / "node_modules"
    if not folder or not all((modules / name).is_dir() for name in PACKAGES):
        pytest.skip(f"P2PMSG_NPM_FOLDER names no folder with npm's {', '.join(PACKAGES)}")
    process = subprocess.Popen(
        [node, PROGRAM, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(**question):
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, "the program has ended"
        return json.loads(line)

    yield ask
    process.kill()
    process.communicate()


@pytest.fixture
def sent(make_publisher, tmp_path):
    """Publish values to a receiver, and return the requests that came."""

    def send(*values, requests=None, **settings):
        publisher = make_publisher()
        with Receiver() as receiver:
            endpoint = Endpoint(receiver.url, allow=LOOPBACK, name="hook", **settings)
            with Sender(
                publisher.endpoint, state=tmp_path / "hooks", endpoints=[endpoint], start="earliest"
            ):
                publisher.publish_many("orders.new", list(values), keys=["k"] * len(values))
                eventually(lambda: len(receiver.requests) >= (requests or len(values)))
        return receiver.requests

    return send


def test_npms_standardwebhooks_verifies_what_is_sent(npm, sent):
    (request,) = sent({"n": 1, "text": "é"}, secret=SECRET)
    question = {"do": "verify", "by": "standardwebhooks", "headers": request.headers}
    found = npm(**question, secret=SECRET, body=request.body.decode())
    assert (found["type"], found["data"]) == ("orders.new", {"n": 1, "text": "é"})
    assert "error" in npm(**question, secret=SECRET, body=request.body.decode() + " ")
    other = "whsec_" + "B" * 32
    assert "error" in npm(**question, secret=other, body=request.body.decode())


def test_githubs_verifier_accepts_what_is_sent(npm, sent):
    (request,) = sent({"n": 1, "text": "é"}, secret=TEXT, scheme="github", format="json")
    assert request.headers["x-github-event"] == "orders.new"
    assert request.headers["x-github-delivery"].startswith("msg_")
    question = {"do": "verify", "by": "github", "headers": request.headers}
    body = request.body.decode()
    assert npm(**question, secret=TEXT, body=body) is True
    assert npm(**question, secret=TEXT, body=body + " ") is False
    assert npm(**question, secret="other", body=body) is False


@pytest.mark.parametrize("form", ["cloudevents", "cloudevents-structured", "cloudevents-batch"])
def test_npms_cloudevents_reads_what_is_sent(npm, sent, form):
    requests = sent({"n": 0}, {"n": 1}, format=form, requests=1)
    found = []
    for each in requests:
        answer = npm(do="verify", by=form, secret="", headers=each.headers, body=each.body.decode())
        found += answer if isinstance(answer, list) else [answer]
    assert {event["data"]["n"] for event in found} <= {0, 1}
    for event in found:
        assert (event["type"], event["specversion"]) == ("orders.new", "1.0"), event
        assert event["partitionkey"] == "k"
        assert event["id"].startswith("msg_")


@pytest.mark.parametrize("by", ["standardwebhooks", "github"])
def test_what_they_sign_is_taken_once(npm, make_publisher, make_subscriber, by):
    publisher = make_publisher()
    secret = SECRET if by == "standardwebhooks" else TEXT
    scheme = "standard" if by == "standardwebhooks" else by
    signed = npm(do="sign", by=by, secret=secret, id="msg_7", body='{"a": "é"}')
    body, headers = signed["body"].encode(), signed["headers"]
    headers["content-type"] = "application/json"
    app = receive(publisher, secrets=secret, topic="t", scheme=scheme)
    with serving(app) as port:
        assert [post(port, body, headers)[0] for _ in range(2)] == [204, 204]
        assert post(port, body + b" ", headers)[0] == 401
        (message,) = messages(publisher, make_subscriber, 1)
    assert message.value == {"a": "é"}
    assert (app.published, app.duplicates) == (1, 1)


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_what_npms_cloudevents_sends_is_taken(npm, make_publisher, make_subscriber, mode):
    publisher = make_publisher()
    app = receive(publisher, secrets="token", topic="{type}", scheme="token")
    sent = npm(do="sign", by=mode, secret="", id="7", body='{"a": "é"}')
    headers = {**sent["headers"], "authorization": "Bearer token"}
    with serving(app) as port:
        assert post(port, sent["body"].encode(), headers)[0] == 204
        (message,) = messages(publisher, make_subscriber, 1)
    assert (message.topic, message.key, message.value) == ("t", "k", {"a": "é"})
