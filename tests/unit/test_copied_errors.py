"""Every error of the project comes out of copying, of pickling and of worker processes as it is."""

import copy
import importlib
import pickle
import pkgutil
import threading

import pytest

import p2pmsg
import recovery
import spark_bridge
import transports
from p2pmsg import errors
from p2pmsg.errors import LossReport, RewoundReport
from p2pmsg.message import FixedBatch, Message, MessageBatch, Origin
from p2pmsg.queue.frames import Detail
from p2pmsg.queue.job import GONE, Job
from p2pmsg.queue.job import Origin as JobOrigin
from p2pmsg.subscriber.conflation import ConflatedBatch
from recovery import Loss, LossReason
from recovery._copied import CopiesWhole
from recovery.latency import LatencyHistogram

PACKAGES = (p2pmsg, transports, recovery, spark_bridge)
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
LOSS = Loss(3, 9, LossReason.EVICTED)
REPORT = LossReport("t", 7, "feed", LOSS)
MESSAGE = Message("t", {"price": "x"}, 1, 2, Origin(7, "feed"))


class NoCore:
    """What a job is settled at; it cannot be pickled."""

    lock = threading.Lock()

    def __reduce__(self):
        raise TypeError("this is a test's")


def job(state=3):
    return Job({"a": 1}, 5, 6, JobOrigin(NoCore(), 7, 8, 9, 5), None, state)


ARGUMENTS = {
    "p2pmsg.codec.converters.CodecError": ("no int", "$.a"),
    "p2pmsg.errors.AccessDeniedError": ("publish", "t", "no rule"),
    "p2pmsg.errors.AuthenticationError": ("tcp://h:1", "another key"),
    "p2pmsg.errors.BindError": ("in use", 98),
    "p2pmsg.errors.ClosedError": ("the subscriber", "it belongs to the parent process"),
    "p2pmsg.errors.ConfigError": ("linger", "at least 0", -1),
    "p2pmsg.errors.CursorError": ("a.cursor", "torn"),
    "p2pmsg.errors.HandlerError": ("on_order", "message 3", "ValueError: 1"),
    "p2pmsg.errors.InvalidValueError": ("job 6", "$.a", "no str", job()),
    "p2pmsg.errors.LogFormatError": ("a.log", 7, "torn"),
    "p2pmsg.errors.LogInUseError": ("a", "the log in", "another writer", 12),
    "p2pmsg.errors.MessageError": ("topic", "is empty"),
    "p2pmsg.errors.MessageTooLargeError": ("value", 2_000_000, 1_000_000),
    "p2pmsg.errors.MessagesLostError": (REPORT,),
    "p2pmsg.errors.MissingExtraError": ("cursor", "crc32c", "log"),
    "p2pmsg.errors.RemoteError": ("t", "tcp://h:1", "ValueError", "no"),
    "p2pmsg.errors.LogFailedError": ("no space", 28),
    "p2pmsg.errors.ReentrantCallError": (),
    "p2pmsg.errors.RequestError": ("t", "tcp://h:1", "no"),
    "p2pmsg.errors.SessionEndedError": (errors.SessionEnd("t", 7, "feed", 9, announced=True),),
    "p2pmsg.http.asgi.RejectedError": (429, "busy", "later", 3),
    "recovery.errors.LogFormatError": ("a.log", 7, "torn"),
    "recovery.errors.LogWriteError": ("the log", OSError(28, "no space")),
    "recovery.errors.SyncFailedError": (5, "I/O error"),
    "spark_bridge.errors.ChangedBatchError": (("q", 3, 0), 2, ()),
    "spark_bridge.errors.DataLossError": ("[3, 9) of 't' is gone",),
    "spark_bridge.errors.OptionError": ("topic", "is missing"),
    "transports.errors.AddressError": ("tcp://h:1", "no such device", 19),
    "transports.errors.EndpointError": ("tcp:/", "scheme", "no scheme"),
}
"""What a class is made with; those that are not here take one text."""


def import_all():
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.rpartition(".")[2] != "__main__":
                try:
                    importlib.import_module(found.name)
                except (ImportError, p2pmsg.ConfigError):  # what it needs is not installed
                    pass


def subclasses(kind):
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def all_errors():
    import_all()
    ours = {package.__name__ for package in PACKAGES}
    found = {each for each in subclasses(BaseException) if each.__module__.split(".")[0] in ours}
    return sorted(found, key=name_of)


def name_of(kind):
    return f"{kind.__module__}.{kind.__qualname__}"


def made(kind):
    error = kind(*ARGUMENTS.get(name_of(kind), ("why",)))
    error.add_note("a note")
    error.mine = [1]
    return error


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"protocol {n}": lambda error, n=n: pickle.loads(pickle.dumps(error, n)) for n in PROTOCOLS},
}
OF_C = ("errno", "strerror", "filename", "name", "path", "msg")


def parts(error):
    """What there is to see of an error."""
    state = {name: shown(value) for name, value in vars(error).items()}
    return str(error), repr(error), state, [getattr(error, name, None) for name in OF_C]


def shown(value):
    return repr(value) if isinstance(value, Job | errors.SessionEnd) else value


def test_every_error_comes_back_from_each_kind_of_copy_as_it_was():
    found = all_errors()
    assert len(found) > 30
    for kind in found:
        error = made(kind)
        for title, way in COPIES.items():
            again = way(error)
            assert type(again) is kind, (kind, title)
            assert parts(again) == parts(error), (kind, title)
            assert parts(copy.copy(again)) == parts(error), (kind, title)
            if isinstance(again, CopiesWhole):
                again.add_note("of the copy alone")
                assert error.__notes__ == ["a note"], (kind, title)


def test_what_cannot_be_pickled_goes_as_its_text():
    lock = threading.Lock()
    error = errors.ConfigError("handler", "a function", lock)
    assert pickle.loads(pickle.dumps(error)).value == repr(lock)
    error.itself = error
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


HISTOGRAM = LatencyHistogram()
HISTOGRAM.record(1234)
BATCH = MessageBatch("t", 7, "feed", 3, 1, ["a", "b"], None, ["x", None])
LATE = MessageBatch("t", 7, "feed", 3, 1, ["a", "b"])
LATE.late = True
VALUES = {
    "LossReport": REPORT,
    "RewoundReport": RewoundReport("t", 7, "feed", LOSS),
    "MessageBatch": BATCH,
    "late": LATE,
    "FixedBatch": FixedBatch("t", 7, "feed", 3, 1, b"\x01a\x01b", 2, 1),
    "ConflatedBatch": ConflatedBatch([MESSAGE, MESSAGE]),
    "LatencyHistogram": HISTOGRAM,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_reports_and_batches_equal_their_copies(value):
    for title, way in COPIES.items():
        again = way(value)
        assert again == value, title
        assert type(again) is type(value), title
        if not isinstance(value, LatencyHistogram):
            assert hash(again) == hash(value), title


@pytest.mark.parametrize(
    "detail", [None, Detail("k", 1, "id", {"a": 1}, 2, 3, "why", 4, 1)], ids=["plain", "detailed"]
)
def test_the_copy_of_a_job_can_be_read_and_is_nobody_s(detail):
    held = job(0)
    held._detail = detail
    for title, way in COPIES.items():
        if title == "copy":
            continue
        again = way(held)
        assert (again.value, again.sequence, again._state) == ({"a": 1}, 6, GONE)
        assert again.session == held.session
        assert [again.ack(), again.reject(), again.discard(), again.extend(1)] == [False] * 4
    assert held.state == "held"
