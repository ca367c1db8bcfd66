"""Requester and responder over real sockets, through forks and kills."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial

import pytest
import zmq

import p2pmsg
from p2pmsg.requests import frames
from p2pmsg.requests.frames import Status
from p2pmsg.testing.proxy import TcpProxy
from p2pmsg.wire import Frame
from tests.integration.peers import DEADLINE_S, LOOPBACK, eventually, in_threads


@pytest.fixture
def make_responder(opened):
    def make(handlers, **options):
        return opened.enter_context(p2pmsg.Responder(LOOPBACK, handlers, **options))

    return make


@pytest.fixture
def make_requester(opened):
    return lambda *endpoints: opened.enter_context(p2pmsg.Requester(endpoints))


def fail(value):
    raise LookupError(f"no {value}")


class OwnError(Exception):
    pass


def fail_oddly(value):
    raise OwnError


@dataclass
class Price:
    symbol: str
    price: float


PRICES = {
    "price": lambda symbol: {"symbol": symbol, "price": 1},
    "odd": lambda symbol: {"symbol": symbol, "price": [1]},
}
MISFIT = r"does not fit its type: Expected `float`, got `array` - at `\$\.price`"


class NoType:
    pass


def test_an_answer_is_made_a_type_or_said_not_to_fit(make_responder, make_requester):
    requester = make_requester(make_responder(PRICES).endpoint)

    assert requester.request("price", "A", type=Price) == Price("A", 1.0)
    assert requester.request("price", "A", type=dict[str, str | float])["price"] == 1.0
    with pytest.raises(p2pmsg.RequestError, match=MISFIT):
        requester.request("odd", "A", type=Price)
    with pytest.raises(p2pmsg.ConfigError, match="NoType"):
        requester.request("price", "A", type=NoType)
    assert requester.request("odd", "A") == {"symbol": "A", "price": [1]}


@pytest.mark.parametrize("threads", [1, 4])
def test_an_answer_comes_back(make_responder, make_requester, threads):
    responder = make_responder({"square": lambda n: n * n, "nil": lambda n: None}, threads=threads)
    requester = make_requester(responder.endpoint)

    assert [requester.request("square", n) for n in range(20)] == [n * n for n in range(20)]
    assert requester.request("nil") is None


@pytest.mark.parametrize("threads", [1, 4])
def test_a_remote_exception_arrives_with_its_type_and_text(make_responder, make_requester, threads):
    responder = make_responder(
        {"fail": fail, "odd": fail_oddly, "object": lambda n: object()}, threads=threads
    )
    requester = make_requester(responder.endpoint)

    with pytest.raises(p2pmsg.errors.RemoteError, match="LookupError: no 7") as caught:
        requester.request("fail", 7)
    assert (caught.value.type_name, caught.value.text) == ("LookupError", "no 7")
    assert caught.value.responder == responder.endpoint
    with pytest.raises(p2pmsg.errors.RemoteError) as caught:
        requester.request("odd")
    assert caught.value.type_name.endswith("test_requests.OwnError")
    with pytest.raises(p2pmsg.errors.RemoteError, match="MessageError: value of type object"):
        requester.request("object")
    with pytest.raises(p2pmsg.errors.RemoteError, match="nobody"):
        requester.request("nobody")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_retry_does_not_do_the_work_twice(make_responder, make_requester, threads):
    calls = []

    def work(n):
        calls.append(n)
        eventually(lambda: requester.stats().retries)
        return n

    responder = make_responder({"work": work}, threads=threads)
    requester = make_requester(responder.endpoint)

    assert requester.request("work", 1, timeout=60, attempts_max=600) == 1
    assert requester.stats().retries >= 1
    assert calls == [1]


def test_a_request_is_retried_at_another_responder(make_responder, make_requester, opened):
    released = threading.Event()
    hanging = make_responder({"who": lambda n: released.wait(DEADLINE_S)})
    opened.callback(released.set)
    good = make_responder({"who": lambda n: "good"})
    requester = make_requester(hanging.endpoint, good.endpoint)

    assert requester.request("who", timeout=60, attempts_max=300) == "good"
    retries = requester.stats().retries
    assert retries >= 1
    assert requester.request("who", timeout=60) == "good"
    assert requester.stats().retries == retries  # who answered is asked first


def test_an_answer_survives_a_cut_connection(make_responder, opened):
    calls = []
    responder = make_responder({"work": lambda n: (calls.append(n), time.sleep(0.2))[0]}, threads=2)
    proxy = opened.enter_context(TcpProxy(responder.endpoint))
    requester = opened.enter_context(p2pmsg.Requester(proxy.endpoint))
    cutter = threading.Timer(0.1, proxy.cut)
    cutter.start()

    assert requester.request("work", 1, timeout=60, attempts_max=120) is None
    assert calls == [1]
    cutter.join()


def test_nobody_answers(make_requester):
    requester = make_requester("tcp://127.0.0.1:1")

    with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
        requester.request("anything", timeout=0.2)


def test_scatter_and_gather(make_responder, make_requester, opened):
    released = threading.Event()
    fast = make_responder({"price": lambda n: 1})
    slow = make_responder({"price": lambda n: released.wait(DEADLINE_S)})
    opened.callback(released.set)
    broken = make_responder({"price": fail})
    requester = make_requester(fast.endpoint, slow.endpoint, broken.endpoint)

    def ask():
        answers = {one.endpoint: one for one in requester.request_all("price", 5, deadline=0.2)}
        return sum(one.is_missing for one in answers.values()) == 1 and answers

    answers = eventually(ask)
    assert [*answers].index(slow.endpoint) == 2
    assert answers[fast.endpoint].value == 1
    assert isinstance(answers[broken.endpoint].error, p2pmsg.errors.RemoteError)
    assert answers[slow.endpoint].is_missing
    released.set()
    answers = [*requester.request_all("price", 5, deadline=60)]
    assert [one.endpoint for one in answers if one.error is not None] == [broken.endpoint]
    assert len(answers) == 3


def test_answers_that_nobody_waits_for_take_no_space(make_responder, opened):
    responder = make_responder({"price": lambda n: n})
    places = [responder.endpoint, "tcp://127.0.0.1:1"]
    requester = opened.enter_context(p2pmsg.Requester(places, pending_max=1))
    for number in range(3):
        for answer in requester.request_all("price", number, deadline=60):
            assert answer.value == number
            break
        assert requester.request("price", number, timeout=60) == number


def test_several_threads_ask_at_once(make_responder, make_requester):
    responder = make_responder({"same": lambda n: n}, threads=4)
    requester = make_requester(responder.endpoint)
    found = []

    def ask(start):
        found.extend(requester.request("same", n) == n for n in range(start, start + 50))

    in_threads(*(partial(ask, n * 100) for n in range(4)))
    assert len(found) == 200
    assert all(found)


def test_a_thread_that_ended_leaves_no_descriptor(make_responder, make_requester):
    """Each left three, and 60 KiB."""
    asks = make_requester(make_responder({"same": lambda n: n}).endpoint)
    found = []

    def ask(number):
        found.append(asks.request("same", number, timeout=60))

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    ask(0)
    before = descriptors()
    for number in range(1, 40):
        in_threads(partial(ask, number))
    assert found == list(range(40))
    eventually(lambda: descriptors() <= before)


def test_garbage_is_counted(make_responder, opened):
    import zmq

    responder = make_responder({"same": lambda n: n})
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.connect(responder.endpoint)
        for garbage in (b"", b"x", b"same\0" + bytes(38), b"\0" * 60):
            stranger.send(garbage)
        with p2pmsg.Requester(responder.endpoint) as requester:
            assert requester.request("same", 1) == 1
        eventually(lambda: sum(responder.stats().frames_invalid.values()) == 4)
        stranger.close(linger=0)


BAD = {
    "topic": (lambda r: r.request(""), p2pmsg.MessageError, "topic"),
    "value": (lambda r: r.request("t", object()), p2pmsg.MessageError, "value"),
    "size": (lambda r: r.request("t", b"x" * 2**21), p2pmsg.errors.MessageTooLargeError, "request"),
    "timeout": (lambda r: r.request("t", timeout=0), p2pmsg.ConfigError, "timeout"),
    "attempts": (lambda r: r.request("t", attempts_max=0), p2pmsg.ConfigError, "attempts_max"),
    "deadline": (lambda r: r.request_all("t", deadline=-1), p2pmsg.ConfigError, "deadline"),
    "message_bytes_max": (
        lambda _: p2pmsg.Requester("tcp://127.0.0.1:1", message_bytes_max=2**24 + 1),
        p2pmsg.ConfigError,
        "message_bytes_max must be at most 16777216",
    ),
    "busy wait": (
        lambda _: p2pmsg.Requester("tcp://127.0.0.1:1", busy_wait=0.0011),
        p2pmsg.ConfigError,
        "busy_wait must be at most 0.001, not 0.0011",
    ),
}


@pytest.mark.parametrize(("call", "error", "text"), BAD.values(), ids=BAD)
def test_bad_arguments_are_refused(make_requester, call, error, text):
    with pytest.raises(error, match=text):
        call(make_requester("tcp://127.0.0.1:1"))


@contextlib.contextmanager
def a_responder_of_too_large_answers():
    """Have one, of ZeroMQ alone: its first answer has more than 16 MiB, and each other one is 7."""
    ending = threading.Event()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.set(zmq.LINGER, 0)

        def serve():
            packed = bytes(20 * 2**20)
            while not ending.is_set():
                if router.poll(20):
                    where, data = router.recv_multipart()
                    asked = Frame(data)
                    reply = frames.reply_frame(asked.session, asked.sequence, Status.DONE, packed)
                    router.send_multipart([where, reply])
                    packed = b"\x07"

        endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield endpoint
        finally:
            ending.set()
            thread.join()


def test_a_connection_that_zeromq_gave_up_is_made_again(opened, make_requester, caplog):
    asks = make_requester(opened.enter_context(a_responder_of_too_large_answers()))
    with pytest.raises(TimeoutError):
        asks.request("t", timeout=1.0, attempts_max=1)
    for _ in range(3):
        assert asks.request("t", timeout=60, attempts_max=60) == 7
    assert asks.stats().reconnects == 1
    assert caplog.text.count("the connection is made again, since ZeroMQ gave it up") == 1


def test_requests_that_are_over_keep_no_place_in_a_queue(tmp_path, make_requester):
    """ZeroMQ keeps 1,024 of them for a responder that is away, and took no further ones."""
    at = f"ipc://{tmp_path}/late"
    asks, found = make_requester(at), []

    def ask():
        for number in range(1024):
            with pytest.raises(TimeoutError):
                asks.request("same", number, timeout=1e-6, attempts_max=1)
        found.append(asks.request("same", 7, timeout=60, attempts_max=1))

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: asks.stats().reconnects == 1)
    with p2pmsg.Responder(at, {"same": lambda value: value}):
        asking.join(60)
    assert found == [7]


def test_who_asks_and_never_reads_fills_no_memory(make_responder, make_requester):
    """Its replies waited, 100,000 of them, whatever their size: 0.7 GB of 200 KB in seconds."""
    answer = bytes(500_000)
    responder = make_responder({"t": lambda _: answer}, cache_max=0)
    context = zmq.Context()
    silent = context.socket(zmq.DEALER)
    try:
        silent.set(zmq.RCVHWM, 1)
        silent.set(zmq.RCVBUF, 100_000)
        silent.set(zmq.LINGER, 0)
        silent.connect(responder.endpoint)
        for number in range(100):
            silent.send(frames.request_frame(b"t", 1, number, 1000, b"\xc0"))
        eventually(lambda: responder.stats().answered + responder.stats().unsent == 100)
        assert responder.stats().unsent > 40
        assert make_requester(responder.endpoint).request("t", 1, timeout=60) == answer
    finally:
        silent.close()
        context.term()


FORKS = """
import os, sys, threading, p2pmsg

def say(what):
    os.write(1, f"{what}\\n".encode())  # at once, for two processes write to one pipe

def ask(requester, who):
    try:
        answers = [requester.request("echo", f"{who} {n}", timeout=60.0) for n in range(3)]
        say(answers == [f"{who} {n}" for n in range(3)])
    except p2pmsg.ClosedError as error:
        say(error)

requester = p2pmsg.Requester(sys.argv[1])
requester.request("echo", "before", timeout=60.0)
if child := os.fork():
    ask(requester, "parent")
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    for call in (ask, ask):
        thread = threading.Thread(target=call, args=(requester, "child"))
        thread.start()
        thread.join()
        requester = p2pmsg.Requester(sys.argv[1])
    os._exit(0)
"""
WORKS = """
import os, sys, time, p2pmsg
place, done, dies = sys.argv[1:]

def work(value):
    with open(done, "a") as book:
        book.write(f"{value}\\n")
    if dies == "dies":
        os.kill(os.getpid(), 9)
    return value

with p2pmsg.Responder(place, {"work": work}):
    print("ready", flush=True)
    time.sleep(60)
"""


def start(opened, code, *arguments):
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    for call in (child.stdout.close, child.wait, child.kill):
        opened.callback(call)
    return child


def test_a_forked_child_does_not_get_its_parents_answers(tmp_path, opened):
    place = f"ipc://{tmp_path}/requests"
    with p2pmsg.Responder(place, {"echo": lambda value: value}) as responder:
        child = start(opened, FORKS, place)
        said = [child.stdout.readline().strip() for _ in range(4)]
        assert child.wait(DEADLINE_S) == 0
    why = "it belongs to the parent process; open another one in this process"
    refused = f"the requester cannot be used: {why}"
    assert sorted(said) == sorted(["True", refused, "True", "0"])
    assert responder.stats().cached == 0


@pytest.mark.parametrize("attempts_max", [1, 120])
def test_a_responder_that_dies_between_work_and_answer(tmp_path, opened, attempts_max):
    """At least once while attempts are left, and at most once with one."""
    place, done = f"ipc://{tmp_path}/requests", tmp_path / "done"
    first = start(opened, WORKS, place, done, "dies")
    assert first.stdout.readline() == "ready\n"
    requester = opened.enter_context(p2pmsg.Requester(place))
    found = []
    # One attempt is waited for to its end.
    options = {"timeout": 60.0 if attempts_max > 1 else 5.0, "attempts_max": attempts_max}

    def ask():
        try:
            found.append(requester.request("work", "it", **options))
        except TimeoutError:
            found.append("time-out")

    asking = threading.Thread(target=ask)
    asking.start()
    assert first.wait(DEADLINE_S) == -9
    os.unlink(tmp_path / "requests")
    second = start(opened, WORKS, place, done, "lives")
    assert second.stdout.readline() == "ready\n"
    asking.join(DEADLINE_S)
    assert found == (["it"] if attempts_max > 1 else ["time-out"])
    assert done.read_text().split() == ["it"] * (2 if attempts_max > 1 else 1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_is_for_the_program_ends_the_responder_and_is_said(
    make_responder, make_requester, caplog, kind, threads
):
    def leave(value):
        raise kind(value)

    responder = make_responder({"leave": leave}, threads=threads)
    requester = make_requester(responder.endpoint)
    with pytest.raises(p2pmsg.errors.RemoteError, match=kind.__name__):
        requester.request("leave", 3, timeout=60)
    eventually(lambda: "closed" in repr(responder))
    eventually(lambda: any(each.levelname == "CRITICAL" for each in caplog.records))
    assert f"raised {kind(3)!r}" in caplog.text
    with pytest.raises(p2pmsg.ClosedError, match="a handler of its raised"):
        responder.serve()


@dataclass
class Order:
    symbol: str
    prices: list[float]


ORDER = {"symbol": "ACME", "prices": [1.5, 2]}
BAD_ORDER = {"symbol": "ACME", "prices": [1.5, "2"]}
WHERE = r"InvalidValueError: the value of a request 'total' .*`float`.*\$\.prices\[1\]"


def total(order):
    assert isinstance(order, Order)
    return sum(order.prices)


@pytest.mark.parametrize("options", [{"type": Order}, {"types": {"to*": Order}}])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_typed_responder_answers_what_does_not_fit_with_its_path(
    make_responder, make_requester, options, threads
):
    responder = make_responder({"total": total}, threads=threads, **options)
    requester = make_requester(responder.endpoint)
    assert requester.request("total", ORDER, timeout=60) == 3.5
    with pytest.raises(p2pmsg.errors.RemoteError, match=WHERE):
        requester.request("total", BAD_ORDER, timeout=60)
    assert (responder.stats().values_invalid, responder.stats().raised) == (1, 1)
    assert requester.request("total", ORDER, timeout=60) == 3.5


def test_types_that_are_none_are_refused():
    with pytest.raises(p2pmsg.ConfigError, match="type"):
        p2pmsg.Responder(LOOPBACK, type=object())
    with pytest.raises(p2pmsg.ConfigError, match="types"):
        p2pmsg.Responder(LOOPBACK, type=Order, types={"a": Order})
