"""Ctrl-C at one step after the other of what is called."""

import sys


def interrupt_at(step, action, inside, event="line"):
    """Call `action`, with Ctrl-C at the `step`-th event (from 0) in the code that is `inside`.

    `event` is a "line" about to run, or a "call", the start of a function. Returns the name of the
    function that was struck, or None: there are not so many steps.
    """
    left, where = step, None

    def trace(frame, happened, argument):
        nonlocal left, where
        if not inside(frame.f_code):
            return None
        if happened == event:
            left -= 1
            if left < 0:
                sys.settrace(None)
                where = frame.f_code.co_qualname
                raise KeyboardInterrupt
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(former)
    return where
