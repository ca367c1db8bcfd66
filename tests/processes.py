"""What a process does, seen from outside, and what a forked child comes to."""

import os
import signal
import traceback


def in_child(work):
    """Do `work`, which gets a pipe, in a forked child; return what it wrote, once it has ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
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
