"""Takes a process its file descriptors."""

import contextlib
import os
import resource

import pytest


@contextlib.contextmanager
def no_descriptor_left():
    """Let every `open` of this process fail, as strangers' connections make it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
