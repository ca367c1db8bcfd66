"""The subscriber's state machine: what has come, what is missing, what is ready. No I/O."""
