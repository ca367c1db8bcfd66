"""Ctrl-C at one step after the other of what is called."""

import dis
import gc
import sys

_LOOKS = ("RESUME", "CALL", "JUMP_BACKWARD")
"""CPython looks for signals after these instructions, and nowhere else."""


def interrupt_at(step, action, inside, event="line"):
    """Call `action`, with Ctrl-C at the `step`-th event (from 0) in the code that is `inside`.

    `event` is a "line" about to run, a "call", the start of a function, or a "signal", where the
    interpreter looks for signals. Returns the name of the function that was struck, or None: there
    are not so many steps.
    """
    left, where = step, None
    ran = {}  # by frame, the instruction that ran last

    def trace(frame, happened, argument):
        nonlocal left, where
        if not inside(frame.f_code):
            return None
        if event == "signal":
            frame.f_trace_opcodes = True
            looks = happened == "opcode" and ran.get(frame, "").startswith(_LOOKS)
            if happened == "opcode":
                ran[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if happened == event or (event == "signal" and looks):
            left -= 1
            if left < 0:
                sys.settrace(None)
                where = frame.f_code.co_qualname
                raise KeyboardInterrupt
        return trace

    former, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # else it may strike what other tests left to be finalized
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(former)
        if collects:
            gc.enable()
    return where
