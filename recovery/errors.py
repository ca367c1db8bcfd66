"""The root of what this package raises.

Data from the network never raises here: it is counted and dropped. What raises is a mistake of the
caller (`ValueError` for an argument, `RecoveryError` for a call out of turn).
"""


class RecoveryError(Exception):
    """Root of the errors of `recovery`; raised itself for a call out of turn."""
