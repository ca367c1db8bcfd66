"""The hot functions: compiled where a C compiler was when the package was built, else in Python.

`P2PMSG_NATIVE=0` in the environment chooses Python, `=1` the compiled module: it is an error then
where that is not to be had. Who calls these functions does not see which ones they are.

=============  ===================================================================================
`compiled`     `compiled.pyx`, by Cython
`twin`         the same in Python: same names, arguments, results and errors
`format`       what both know of frames
=============  ===================================================================================

Attributes:
    NAME: which one runs: "compiled" or "python".
    MISSING: why the compiled module does not run; empty: it does.

"""

import os
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

_WANTED: Final = os.environ.get("P2PMSG_NATIVE", "")
if _WANTED not in ("", "0", "1"):
    raise ImportError(f"P2PMSG_NATIVE must be 0 or 1, not {_WANTED!r}")


def _missing() -> str:
    if _WANTED == "0":
        return "P2PMSG_NATIVE=0"
    try:
        compiled = import_module("p2pmsg.native.compiled")
    except ModuleNotFoundError:
        return "the compiled module was not built"
    except ImportError as error:
        return f"the compiled module cannot be loaded: {error}"
    source = Path(__file__).with_name("compiled.pyx")
    if not source.exists() or zlib.crc32(source.read_bytes()) == compiled.SOURCE:
        return ""
    return "compiled.pyx has changed since it was compiled; install the package again"


MISSING: Final = _missing()
NAME: Final = "python" if MISSING else "compiled"
if _WANTED == "1" and MISSING:
    raise ImportError(f"P2PMSG_NATIVE=1, but {MISSING}")

ScanLines = Callable[[bytes, int, int, int, int], tuple[int, bytearray] | None]
scan_lines: ScanLines | None = None
"""Splits StatsD lines; None: it was not compiled. Its twin is in `statsd.columns`, with numpy."""
if TYPE_CHECKING or MISSING:
    from p2pmsg.native.twin import Frame as Frame
    from p2pmsg.native.twin import appending as appending
    from p2pmsg.native.twin import decode_body as decode_body
    from p2pmsg.native.twin import decode_one as decode_one
    from p2pmsg.native.twin import find_block as find_block
    from p2pmsg.native.twin import pack_lone as pack_lone
    from p2pmsg.native.twin import read_frame as read_frame
    from p2pmsg.native.twin import seal_frame as seal_frame
else:
    from p2pmsg.native.compiled import Frame as Frame
    from p2pmsg.native.compiled import appending as appending
    from p2pmsg.native.compiled import decode_body as decode_body
    from p2pmsg.native.compiled import decode_one as decode_one
    from p2pmsg.native.compiled import find_block as find_block
    from p2pmsg.native.compiled import pack_lone as pack_lone
    from p2pmsg.native.compiled import read_frame as read_frame
    from p2pmsg.native.compiled import scan_lines as scan_lines
    from p2pmsg.native.compiled import seal_frame as seal_frame

__all__ = ["MISSING", "NAME"]
