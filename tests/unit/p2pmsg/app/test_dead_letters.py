"""What a dead letter holds."""

from p2pmsg import codec
from p2pmsg.app.dead_letters import letter_of
from p2pmsg.app.events import Event


def test_an_errors_text_can_always_be_packed():
    """Names of files may have characters that UTF-8 has not."""
    letter = letter_of(Event("timer", "on"), OSError("no \udcff.txt"))

    assert letter["error"] == "OSError: no ?.txt"
    codec.make_encoder().encode(letter)


def test_of_a_long_text_the_beginning_is_kept():
    letter = letter_of(Event("timer", "on"), OSError("x" * 20_000))

    assert letter["error"] == f"OSError: {'x' * 16_375} … (20009 characters)"
