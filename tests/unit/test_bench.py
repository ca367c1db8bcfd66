"""What the benchmark's processes run can be made: a row that cannot be measured is seen here."""

import inspect
import types

import pytest

from tests.bench import aio_roles, ours, peers
from tests.bench.harness import Contender, Receiver, Sender

CONTENDERS = {
    one.name: one
    for module in (aio_roles, ours, peers)
    for one in vars(module).values()
    if isinstance(one, Contender)
}
SENDER, RECEIVER = ("wait_ready", "send", "finish", "close"), ("receive_rest", "close")
assert all(hasattr(Sender, name) for name in SENDER)
assert all(hasattr(Receiver, name) for name in RECEIVER)


@pytest.mark.parametrize("contender", CONTENDERS.values(), ids=CONTENDERS)
def test_each_contender_has_all_that_is_called_of_it(contender):
    for kind, names in ((contender.open_sender, SENDER), (contender.open_receiver, RECEIVER)):
        if isinstance(kind, types.FunctionType):  # which chooses one
            continue
        assert not inspect.isabstract(kind), kind.__abstractmethods__
        assert [name for name in names if not callable(getattr(kind, name, None))] == []
        if kind is contender.open_receiver:
            assert hasattr(kind, "receive") or hasattr(kind, "receive_checked")
