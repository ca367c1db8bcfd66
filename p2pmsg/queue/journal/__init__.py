"""The work queue's log."""
