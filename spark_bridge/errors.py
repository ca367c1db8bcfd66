"""What spark_bridge raises.

::

    BridgeError
    ├── OptionError (ValueError)              an option of the source is unknown or has a bad value
    ├── DataLossError                         failOnDataLoss, and a range is gone
    └── ChangedBatchError                     a batch of a sink came again with other rows

`BridgeError` itself says that nobody answers for a range, so that Spark fails the batch and reads
the same range at the next start of the query, or that rows could not be published or were not
confirmed, so that Spark writes them again. A value that does not fit the schema is a `ValueError`;
that PySpark, PyArrow or Java is missing, or too old, is an `ImportError`.
Spark passes the texts on in exceptions of its own.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import p2pmsg


class BridgeError(Exception):
    """The root of what spark_bridge raises. All of them can be copied and pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        # They cross processes, and must not explain themselves twice, as `__init__` would.
        return _make_copy, (type(self), self.args), vars(self).copy()


def _make_copy(kind: Any, arguments: tuple[Any, ...]) -> Any:
    made = kind.__new__(kind)
    made.args = arguments
    return made


class OptionError(BridgeError, ValueError):
    """An option is unknown, missing, or out of its limits.

    Attributes:
        option: its name.
        reason: what is wrong with it.

    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"option {option!r} of format p2pmsg {reason}")
        self.option = option
        self.reason = reason


class DataLossError(BridgeError):
    """A range that is owed is gone, and `failOnDataLoss` is true."""


class ChangedBatchError(BridgeError):
    """A partition that was delivered came again with other rows: its source is not repeatable.

    Some of its rows may have been delivered before, with this or another partition of the batch,
    and others not; none is delivered now.

    Attributes:
        query: the id of the query, or the `writeId`.
        batch: its number.
        partition: its number.
        rows_before: how many rows were delivered.
        rows: how many came now.
        batches: these rows, as they were received.

    """

    def __init__(
        self,
        which: tuple[str, int, int],
        rows_before: int,
        batches: "tuple[p2pmsg.MessageBatch, ...]",
    ) -> None:
        query, batch, partition = which
        rows = sum(map(len, batches))
        change = (
            f"of {rows} rows, and of other topics than before"
            if rows == rows_before
            else f"of {rows} rows, and was delivered with {rows_before}"
        )
        super().__init__(
            f"partition {partition} of batch {batch} of query {query!r} came again, {change}: what "
            "Spark read for this batch was not the same again. Its rows are not delivered; some "
            "may have been before, and others of this batch may be missing or come twice. They are "
            "in the attribute `batches`, and the next call goes on"
        )
        self.query = query
        self.batch = batch
        self.partition = partition
        self.rows_before = rows_before
        self.rows = rows
        self.batches = batches
