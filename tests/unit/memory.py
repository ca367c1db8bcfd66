"""What work leaves allocated, for tests of bounds."""

import gc
import tracemalloc


def bytes_kept(work):
    """Return how many bytes that `work` allocated are still there after it."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
