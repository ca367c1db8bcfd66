import pickle

import pytest
import zmq

from transports import errors

EXAMPLES = [
    errors.EndpointError("tcp://h", "port", "missing port"),
    errors.AddressError("tcp://h:1", "no such device", 19),
    errors.AddressError("tcp://h:1", "no", None, "connect to"),
    errors.ClosedError("tcp://h:1"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_carry_their_data_through_pickle(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert isinstance(error, errors.TransportError)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (zmq.ETERM, errors.ClosedError),
        (zmq.ENOTSOCK, errors.ClosedError),
        (zmq.EINVAL, errors.TransportError),
    ],
)
def test_zmq_errors_are_translated(number, kind):
    assert type(errors.translate(zmq.ZMQError(number), "inproc://x")) is kind
