"""Pipelines: jobs that need no acknowledgement one by one, over PUSH and PULL sockets."""
