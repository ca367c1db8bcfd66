"""SIGTERM and Ctrl-C as a wish to stop."""

import signal

import pytest

from p2pmsg.driver.stop_signals import StopSignals


@pytest.mark.parametrize("calls", [["stop"], ["stop", "again"]])
def test_a_signal_that_comes_while_the_last_one_is_handled_is_that_one(monkeypatch, calls):
    def strike(number):
        if struck:
            struck.pop()
            signal.raise_signal(signal.SIGINT)
        return real(number)

    real, struck, came = signal.getsignal, [], []
    with StopSignals(*[lambda call=call: came.append(call) for call in calls]):
        for _ in calls[1:]:
            signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(signal, "getsignal", strike)  # called as the handlers are put back
        struck.append(True)
        signal.raise_signal(signal.SIGINT)

    assert not struck
    assert came == calls
    assert real(signal.SIGINT) is signal.default_int_handler
