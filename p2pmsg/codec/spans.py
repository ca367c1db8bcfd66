"""Where msgpack values end, without reading them."""

from typing import Final

_FIXED: Final = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),
    **{0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8},
    **{0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17},
}
"""How many bytes follow a first byte."""
_COUNTED: Final = {
    **{0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)},
    **{0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)},
}
"""How many bytes a length has, and how many bytes more than it says follow."""
_NESTED: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""How many bytes a count has, and how many values each entry has."""


def ends_of_values(data: bytes) -> list[int]:
    """Return where each msgpack value ends, of values that stand one after the other.

    https://github.com/msgpack/msgpack/blob/master/spec.md
    """
    ends, at, size = [], 0, len(data)
    while at < size:
        waiting = 1
        while waiting:
            if at >= size:
                raise ValueError("the last value is not whole")
            first, at, waiting = data[at], at + 1, waiting - 1
            if first < 0x80 or first >= 0xE0:
                continue
            if first < 0x90:
                waiting += 2 * (first & 0x0F)
            elif first < 0xA0:
                waiting += first & 0x0F
            elif first < 0xC0:
                at += first & 0x1F
            elif first in _FIXED:
                at += _FIXED[first]
            elif first in _COUNTED:
                width, more = _COUNTED[first]
                at += width + more + int.from_bytes(data[at : at + width], "big")
            elif first in _NESTED:
                width, each = _NESTED[first]
                waiting += each * int.from_bytes(data[at : at + width], "big")
                at += width
            else:
                raise ValueError(f"no value begins with 0x{first:02x}")
        if at > size:
            raise ValueError("the last value is not whole")
        ends.append(at)
    return ends


def spans_of_array(data: bytes) -> list[bytes]:
    """Return the packed values of an array that `data` is; raises `ValueError`."""
    begin = {0xDC: 3, 0xDD: 5}.get(data[0], 1)
    values, spans, at = data[begin:], [], 0
    for end in ends_of_values(values):
        spans.append(values[at:end])
        at = end
    return spans
