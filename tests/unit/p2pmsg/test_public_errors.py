"""What public calls raise: each error is exported, and is a `P2PError` or a built-in one."""

import inspect

import pytest

import p2pmsg
import recovery.errors
from p2pmsg import errors, metrics

pytest.importorskip("recovery.log")
import recovery.log

CLASSES = [
    getattr(p2pmsg, name) for name in p2pmsg.__all__ if inspect.isclass(getattr(p2pmsg, name))
]
CLASSES.append(metrics.Client)


def test_all_errors_are_exported_and_in_the_drawn_tree():
    found = [
        name
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, p2pmsg.P2PError) and name[0] != "_"
    ]
    assert len(found) > 20
    for name in found:
        assert name in errors.__doc__


def test_a_log_that_another_writer_has_raises_ours(tmp_path):
    config = p2pmsg.LogConfig(tmp_path)
    with p2pmsg.Publisher("tcp://127.0.0.1:0", log=config):
        with pytest.raises(p2pmsg.errors.LogInUseError) as caught:
            p2pmsg.Publisher("tcp://127.0.0.1:0", log=config)
        assert isinstance(caught.value, p2pmsg.P2PError)
        assert isinstance(caught.value.__cause__, recovery.log.LogLockedError)
        with pytest.raises(p2pmsg.errors.LogInUseError):
            p2pmsg.Relay("tcp://127.0.0.1:1", "tcp://127.0.0.1:0", log=config)


def test_a_log_that_is_none_raises_ours(tmp_path):
    with p2pmsg.Publisher("tcp://127.0.0.1:0", log=p2pmsg.LogConfig(tmp_path)) as publisher:
        publisher.publish("t", 1)
    (segment,) = tmp_path.glob("*.log")
    segment.write_bytes(b"something else, and long enough to be looked at" * 10)
    with pytest.raises(p2pmsg.errors.LogFormatError) as caught:
        p2pmsg.Publisher("tcp://127.0.0.1:0", log=p2pmsg.LogConfig(tmp_path))
    assert str(tmp_path) in caught.value.path
    assert caught.value.offset == 0
    assert str(caught.value) == str(caught.value.__cause__)
