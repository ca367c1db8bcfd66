"""What a process does, seen from outside, and what a forked child comes to."""

import os
import signal
import time
import traceback
from pathlib import Path


def is_asleep(process):
    """Say whether a process waits, for 0.1 s by now: one that only has no core is not asleep.

    So a signal that it was sent before has been handled.
    """
    for _ in range(20):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
        if state != "S":
            return False
        time.sleep(0.005)
    return True


def in_child(work):
    """Do `work`, which gets a pipe, in a forked child; return what it wrote, once it has ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(15)
            os.close(reading)
            work(writing)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said
