"""The publisher's state machine: what is accepted, kept, sent and answered. No I/O."""
