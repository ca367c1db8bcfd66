"""What a dead letter holds."""

from p2pmsg import codec
from p2pmsg.app.dead_letters import letter_of
from p2pmsg.app.events import Event
from p2pmsg.message import Message, Origin


def test_a_letter_has_the_message_and_how_its_handler_failed():
    message = Message("t", [1, 2], 5, 9, Origin(7, "p"), "K", {"a": 1})
    event = Event("message", "on", message.value, message=message, attempt=2)

    assert letter_of(event, OSError("away")) == {
        "handler": "on", "error": "OSError: away", "attempts": 2, "topic": "t", "publisher": "p",
        "session": 7, "sequence": 9, "key": "K", "timestamp_ns": 5, "headers": {"a": 1},
        "value": [1, 2],
    }  # fmt: skip


def test_an_errors_text_can_always_be_packed():
    """Names of files may have characters that UTF-8 has not."""
    letter = letter_of(Event("timer", "on"), OSError("no \udcff.txt"))

    assert letter["error"] == "OSError: no ?.txt"
    codec.make_encoder().encode(letter)


def test_of_a_long_text_the_beginning_is_kept():
    letter = letter_of(Event("timer", "on"), OSError("x" * 20_000))

    assert letter["error"] == f"OSError: {'x' * 16_375} … (20009 characters)"
