"""KeyboardInterrupt at the lines of a request: the requester asks on after it."""

import gc
import sys

import p2pmsg

OURS = ("p2pmsg/peers", "p2pmsg/requests", "p2pmsg/driver")


class Strike:
    """Raises KeyboardInterrupt at the n-th line of ours that this thread runs in its block."""

    def __init__(self, number):
        self._left = number

    def _trace(self, frame, event, argument):
        if not any(each in frame.f_code.co_filename for each in OURS):
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                sys.settrace(self._before)
                raise KeyboardInterrupt
        return self._trace

    def __enter__(self):
        self._before = sys.gettrace()
        gc.disable()  # else it may strike what other tests left to be finalized
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exception):
        sys.settrace(self._before)
        gc.enable()

    @property
    def struck(self):
        return self._left <= 0


def test_a_requester_asks_on_after_an_interrupt_at_any_line():
    with (
        p2pmsg.Responder("inproc://struck", {"same": lambda value: value}) as responder,
        p2pmsg.Requester(responder.endpoint, busy_wait=0.0) as requester,
    ):
        for number in range(1, 2000, 3):
            try:
                with Strike(number) as strike:
                    requester.request("same", number, timeout=60.0)
            except KeyboardInterrupt:
                pass
            assert requester.request("same", ["next", number], timeout=60.0) == ["next", number]
            if not strike.struck:
                return
        raise AssertionError("a request has fewer lines")
