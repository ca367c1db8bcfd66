"""Takes a process its file descriptors."""

import contextlib
import os
import resource


@contextlib.contextmanager
def no_descriptor_left():
    """Let every `open` of this process fail, as strangers' connections make it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with contextlib.suppress(OSError):
            while True:  # a thread of a former test may close some meanwhile
                lowest = os.dup(0)
                os.close(lowest)
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
