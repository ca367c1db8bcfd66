"""Bridges between p2pmsg and nanomsg's and nng's sockets: pynng, and nng's own nngcat."""

import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import p2pmsg
from p2pmsg.bridge import BridgeConfig
from p2pmsg.errors import BindError, ConfigError, RemoteError
from tests.endpoints import free_port
from tests.integration.peers import DEADLINE_S, LOOPBACK, eventually, values_of

pynng = pytest.importorskip("pynng", reason="the extra `nng` is not installed")


@pytest.fixture
def stranger(opened):
    """Make a socket of pynng that dials; returns it."""

    def make(kind, end, **options):
        place = end.rpartition("+")[2].partition("?")[0]
        made = opened.enter_context(kind(recv_timeout=60_000, send_timeout=60_000, **options))
        made.dial(place, block=True)
        return made

    return make


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_a_pub_becomes_a_stream(stranger, bridge, make_subscriber, tmp_path, scheme):
    end = "sp+sub://127.0.0.1:0" if scheme == "tcp" else f"sp+sub+ipc://{tmp_path}/in"
    made = bridge(f"{end}?bind=1", LOOPBACK, topics=["prices"])
    pub = stranger(pynng.Pub0, made.source, send_buffer_size=1000)
    subscriber = make_subscriber(made.endpoint, start="earliest")

    def is_there():
        pub.send(b"prices first")
        return made.stats().received

    eventually(is_there)
    for number in range(100):
        pub.send(b"other x")
        pub.send(b"prices %d" % number)
    values = []
    while not values or values[-1] != b"99":
        values += values_of(subscriber, 1)
    assert [value for value in values if value != b"first"] == [b"%d" % n for n in range(100)]


def test_a_stream_reaches_a_sub(stranger, bridge, make_publisher):
    publisher = make_publisher()
    made = bridge(publisher.endpoint, "sp+pub://127.0.0.1:0?bind=1")
    sub = stranger(pynng.Sub0, made.target, topics=b"prices ")
    publisher.wait_for_subscribers(1, timeout=DEADLINE_S)
    sub.recv_timeout = 20

    def is_there():
        publisher.publish("prices", b"hello")
        try:
            return sub.recv()
        except pynng.Timeout:
            return None

    assert eventually(is_there) == b"prices hello"
    publisher.publish("prices", [b"two", b"parts"])
    publisher.publish("prices", "last")
    sub.recv_timeout = 60_000
    while (got := sub.recv()) == b"prices hello":
        pass
    assert got == b"prices last"
    eventually(lambda: made.stats().refused == 1)


def test_jobs_wait_for_a_pull(stranger, bridge, make_pusher):
    pusher = make_pusher()
    made = bridge(pusher.endpoint, "sp+push://127.0.0.1:0?bind=1")
    for number in range(100):
        pusher.push(b"%d" % number)
    eventually(lambda: made.stats().received)
    assert pusher.stats().done == 0
    pull = stranger(pynng.Pull0, made.target)
    assert [pull.recv() for _ in range(100)] == [b"%d" % number for number in range(100)]
    eventually(lambda: pusher.stats().done == 100)


def test_a_req_asks_a_responder_of_ours(stranger, bridge, opened):
    responder = opened.enter_context(p2pmsg.Responder(LOOPBACK, {"square": lambda n: n * n}))
    made = bridge("sp+rep://127.0.0.1:0?bind=1", responder.endpoint, topic="square", codec="json")
    req = stranger(pynng.Req0, made.source)
    for number in range(10):
        req.send(b"%d" % number)
        assert req.recv() == b"%d" % number**2
    eventually(lambda: made.stats().passed_on == 10)


def test_a_request_that_fails_is_counted_and_the_next_one_is_answered(stranger, bridge, opened):
    def answer(value):
        return {b"good": b"yes"}[value]

    responder = opened.enter_context(p2pmsg.Responder(LOOPBACK, {"t": answer}))
    made = bridge("sp+rep://127.0.0.1:0?bind=1", responder.endpoint, topic_at="prefix", topic="t")
    req = stranger(pynng.Req0, made.source)
    req.send(b"t bad")
    eventually(lambda: made.stats().refused == 1)
    req.send(b"t good")
    assert req.recv() == b"yes"


@pytest.mark.internal
def test_a_requester_of_ours_asks_a_rep(stranger, bridge, opened, monkeypatch):
    monkeypatch.setattr("p2pmsg.bridge.opening.ANSWER_S", DEADLINE_S)  # on a slow machine
    made = bridge(LOOPBACK, "sp+req://127.0.0.1:0?bind=1", topics=["a", "b"], codec="msgpack")
    rep = stranger(pynng.Rep0, made.target)
    requester = opened.enter_context(p2pmsg.Requester(made.source))

    def serve():
        for _ in range(20):
            rep.send(rep.recv())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    values = [[number, "x"] for number in range(20)]
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(requester.request, "ab"[value[0] % 2], value, timeout=60)
            for value in values
        ]
        assert [one.result() for one in asked] == values
    thread.join()
    with pytest.raises(RemoteError):
        requester.request("c", 1)


@pytest.mark.internal
def test_where_no_rep_answers_the_requester_gets_the_reason(bridge, opened, monkeypatch):
    monkeypatch.setattr("p2pmsg.bridge.opening.ANSWER_S", 0.3)
    made = bridge(LOOPBACK, "sp+req://127.0.0.1:0?bind=1", topics=["a"])
    requester = opened.enter_context(p2pmsg.Requester(made.source))
    with pytest.raises(RemoteError, match=r"nobody takes requests there|no answer within 0\.3 s"):
        requester.request("a", b"x", timeout=60, attempts_max=1)


def test_a_surveyor_is_answered_by_responders_of_ours(stranger, bridge, opened):
    surveyor = opened.enter_context(pynng.Surveyor0(survey_time=20_000, recv_timeout=60_000))
    listener = surveyor.listen("tcp://127.0.0.1:0")
    place = str(listener.local_address)
    for factor in (1, 10):
        handlers = {"times": lambda n, factor=factor: n * factor}
        responder = opened.enter_context(p2pmsg.Responder(LOOPBACK, handlers))
        bridge(f"sp+respondent://{place}", responder.endpoint, topic="times", codec="json")
    eventually(lambda: len(surveyor.pipes) == 2)
    for number in range(1, 11):
        surveyor.send(b"%d" % number)
        got = sorted(int(surveyor.recv()) for _ in range(2))
        assert got == [number, 10 * number]


TOOLS = {
    "nngcat": ("nng-utils", "--dial", ["--count", "1"]),
    "nanocat": ("nanomsg-utils", "--connect", ["--recv-timeout", "20"]),
}


def test_a_survey_of_a_requester_of_ours_has_the_answers_of_all(stranger, bridge, opened):
    made = bridge(LOOPBACK, "sp+surveyor://127.0.0.1:0?bind=1", topics=["who"])
    requester = opened.enter_context(p2pmsg.Requester(made.source))
    with pytest.raises(RemoteError, match="no respondent is connected"):
        requester.request("who", b"?", timeout=DEADLINE_S, attempts_max=1)
    respondents = [stranger(pynng.Respondent0, made.target) for _ in range(2)]

    def answer(number):
        while True:
            try:
                respondents[number].recv()
                respondents[number].send(b"%d" % number)
            except pynng.Closed:
                return
            except pynng.NNGException:
                pass  # its survey is over

    threads = [threading.Thread(target=answer, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    eventually(
        lambda: (
            [sorted(one.value or ()) for one in requester.request_all("who", b"?", deadline=60)]
            == [[b"0", b"1"]]
        )
    )


@pytest.mark.long
@pytest.mark.parametrize("tool", TOOLS)
def test_their_own_tools_push_and_pull(bridge, make_pusher, make_puller, tool):
    package, dial, options = TOOLS[tool]
    if not shutil.which(tool):
        pytest.skip(f"{tool} is not there (Debian: {package})")
    inward = bridge("sp+pull://127.0.0.1:0?bind=1", LOOPBACK)
    place = inward.source.rpartition("+")[2].partition("?")[0]
    subprocess.run([tool, "--push", dial, place, "--data", "hello"], check=True, timeout=60)
    with make_puller(inward.endpoint).receive(DEADLINE_S) as job:
        assert job.value == b"hello"
    pusher = make_pusher()
    outward = bridge(pusher.endpoint, "sp+push://127.0.0.1:0?bind=1")
    pusher.push(b"work")
    place = outward.target.rpartition("+")[2].partition("?")[0]
    pull = subprocess.Popen(
        [tool, "--pull", dial, place, "--quoted", *options], stdout=subprocess.PIPE
    )
    try:
        eventually(lambda: pusher.stats().done == 1)
        assert pull.stdout.read(6) == b'"work"'
    finally:
        pull.kill()
        pull.communicate()


def test_what_is_wrong_is_named(bridge):
    with pytest.raises(ConfigError, match="topic_at"):
        p2pmsg.Bridge("sp+sub://a:1", LOOPBACK, topic_at="part")
    with pytest.raises(ConfigError, match="requests, as the source is"):
        p2pmsg.Bridge("sp+rep://a:1", "queue+tcp://127.0.0.1:0")
    with pytest.raises(ConfigError, match="where requests come from"):
        p2pmsg.Bridge("sp+rep://a:1", "sp+req://a:2")
    with pytest.raises(ConfigError, match="sp goes over tcp, ipc"):
        p2pmsg.Bridge("sp+sub+inproc://a", LOOPBACK)
    with pytest.raises(ConfigError, match="abstract"):
        p2pmsg.Bridge("sp+sub+ipc://@a", LOOPBACK)
    made = bridge("sp+pull://127.0.0.1:0?bind=1", LOOPBACK)
    place = made.source.rpartition("+")[2].partition("://")[2]
    with pytest.raises(BindError, match=r"127\.0\.0\.1"):
        p2pmsg.Bridge(f"sp+pull://{place}", LOOPBACK)


def test_empty_jobs_are_jobs_like_any_other(stranger, bridge, make_puller):
    made = bridge("sp+pull://127.0.0.1:0?bind=1", LOOPBACK)
    push = stranger(pynng.Push0, made.source)
    sent = [b"" if number % 3 else b"%d" % number for number in range(60)]
    for data in sent:
        push.send(data)
    puller = make_puller(made.endpoint)
    for data in sent:
        with puller.receive(DEADLINE_S) as job:
            assert job.value == data


def test_a_connection_that_ended_is_counted_and_said(opened, bridge, caplog):
    """nng says to nobody that a message was too large for it."""
    place = f"127.0.0.1:{free_port()}"
    pub = opened.enter_context(pynng.Pub0(listen=f"tcp://{place}"))
    made = bridge(f"sp+sub://{place}", LOOPBACK, config=BridgeConfig(part_bytes_max=1000))
    eventually(lambda: len(pub.pipes) == 1)
    assert made.stats().reconnected == 0
    pub.send(b"t" + bytes(2000))
    eventually(lambda: made.stats().reconnected == 1)
    eventually(lambda: [r for r in caplog.records if "a connection ended" in r.getMessage()])
    (said,) = [r.getMessage() for r in caplog.records if "a connection ended" in r.getMessage()]
    assert "part_bytes_max" in said
