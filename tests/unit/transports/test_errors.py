import inspect
import pickle

import pytest
import zmq

import transports
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


def test_every_error_is_public_and_in_the_drawn_tree():
    classes = [
        name
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if value.__module__ == "transports.errors" and not name.startswith("_")
    ]
    assert set(classes) <= set(transports.__all__)
    assert all(name in errors.__doc__ for name in classes)


def test_messages_name_what_happened():
    assert str(EXAMPLES[1]) == "cannot bind 'tcp://h:1': no such device"
    assert str(EXAMPLES[2]) == "cannot connect to 'tcp://h:1': no"


def test_an_address_error_is_an_os_error_with_its_number():
    assert isinstance(EXAMPLES[1], OSError)
    assert EXAMPLES[1].errno == 19


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
