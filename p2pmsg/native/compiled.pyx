# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: freethreading_compatible=True, embedsignature=False, binding=False
"""What `twin` does, compiled; docstrings stand there.

Every length that came off the wire is compared with the bytes that are there before any of them is
read: a mistake here is not an IndexError. Who holds a frame holds its bytes, which never change.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.ref cimport PyObject, PyTypeObject, Py_DECREF, Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from functools import wraps

from p2pmsg.native import format as _format
from p2pmsg.native import twin

cdef extern from *:
    """
    #ifndef P2PMSG_SOURCE
    #define P2PMSG_SOURCE 0
    #endif
    """
    const unsigned long P2PMSG_SOURCE

SOURCE = P2PMSG_SOURCE

cdef object FrameError = _format.FrameError
cdef object WIRE_ERRORS = twin.WIRE_ERRORS
cdef object _decode_columns = twin.decode_columns
cdef object _decode_value = twin.decode_value
cdef unsigned char _kinds[256]
for _kind in range(256):
    _kinds[_kind] = _kind in set(_format.Kind)

cdef enum:
    TOPIC_BYTES_MAX = 255
    BEGIN_BYTES = 15  # the zero byte, magic, version, kind, flags, compression, session
    REST_BYTES = 24
    COPIED_MAX = 1024  # up to here a copy is cheaper than a view

cdef uint64_t SEQUENCE_MAX = 0x7FFFFFFFFFFFFFFF

ctypedef const unsigned char* Octets


cdef inline uint32_t _u16(Octets at) noexcept:
    return <uint32_t>at[0] << 8 | at[1]


cdef inline uint32_t _u32(Octets at) noexcept:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t _u64(Octets at) noexcept:
    return <uint64_t>_u32(at) << 32 | _u32(at + 4)


cdef object _refuse(str reason):
    raise FrameError(reason)


# ------------------------------------------------------------------------------------- frames


@cython.no_gc
@cython.freelist(64)
cdef class Frame:
    cdef public object topic, session, sequence, base_timestamp_ns, data
    cdef public Py_ssize_t count, body_at
    cdef public int kind, flags

    def __init__(self, bytes data not None):
        cdef Octets octets = <Octets>PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), zero, body_at
        cdef Octets at = <Octets>memchr(octets, 0, min(size, TOPIC_BYTES_MAX + 1))
        cdef uint64_t sequence, count, length
        if at == NULL:
            _refuse("no topic")
        zero = at - octets
        body_at = zero + BEGIN_BYTES + REST_BYTES
        if size < body_at:
            _refuse("truncated")
        if at[1] != b"p" or at[2] != b"2":
            _refuse("magic")
        if at[3] != 1:
            _refuse("version")
        if not _kinds[at[4]]:
            _refuse("kind")
        if at[6]:
            _refuse("compression")
        try:
            self.topic = PyUnicode_DecodeUTF8(<const char*>octets, zero, NULL)
        except UnicodeDecodeError:
            raise FrameError("topic") from None
        sequence, count, length = _u64(at + 15), _u32(at + 23), _u32(at + 27)
        if length != <uint64_t>(size - body_at):
            _refuse("length")
        if sequence > SEQUENCE_MAX or sequence + count > SEQUENCE_MAX:
            _refuse("sequence")
        if at[4] == 1 and (
            not zero or not 0 < count <= length
            or <int64_t>count != _count_of(octets + body_at, size - body_at)
        ):
            _refuse("count")
        self.kind, self.flags, self.session = at[4], at[5], _u64(at + 7)
        self.sequence, self.base_timestamp_ns = sequence, <int64_t>_u64(at + 31)
        self.count, self.body_at, self.data = <Py_ssize_t>count, body_at, data

    def covers(self, sequence):
        return bool(self.sequence <= sequence < self.sequence + self.count)


cdef inline int64_t _count_of(Octets body, Py_ssize_t size) noexcept:
    if size < 2 or body[0] != 0x94:
        return -1
    if body[1] == 0xDD:
        return _u32(body + 2) if size >= 6 else -1
    if body[1] == 0xDC:
        return _u16(body + 2) if size >= 4 else -1
    return body[1] & 0x0F if body[1] & 0xF0 == 0x90 else -1


cdef object _part(bytes data, Py_ssize_t start, Py_ssize_t stop):
    """Return a part of a frame, for a decoder."""
    if stop - start > COPIED_MAX:
        return memoryview(data)[start:stop]
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + start, stop - start)


cdef tuple _decode_body(bytes data, Py_ssize_t body_at, Py_ssize_t count, object base_ns, decode):
    cdef object columns, values, timestamps, keys, headers
    try:
        columns = decode(_part(data, body_at, PyBytes_GET_SIZE(data)))
    except WIRE_ERRORS:
        raise FrameError("body") from None
    values, timestamps, keys, headers = columns
    if (
        len(values) != count
        or (timestamps is not None and len(timestamps) != count)
        or (keys is not None and len(keys) != count)
        or (headers is not None and len(headers) != count)
    ):
        _refuse("columns")
    if timestamps is not None:
        timestamps = [base_ns + offset for offset in timestamps]
    return values, timestamps, keys, headers


def decode_body(bytes data not None, body_at, count, base_ns, decode=_decode_columns):
    cdef Py_ssize_t at = body_at
    if not 0 <= at <= PyBytes_GET_SIZE(data):
        raise FrameError("body")
    return _decode_body(data, at, count, base_ns, decode)


cdef tuple _decode_one(bytes data, Py_ssize_t body_at, object base_ns, decode_value, decode):
    cdef Octets body = <Octets>PyBytes_AS_STRING(data) + body_at
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data) - body_at
    cdef object values, timestamps, keys, headers
    if size >= 6 and body[0] == 0x94 and body[1] == 0x91 and _is_plain(body, size):
        try:
            return decode_value(_part(data, body_at + 2, body_at + size - 3)), base_ns, None, None
        except WIRE_ERRORS:
            pass  # such as an array of one value that ends like that
    if _count_of(body, size) != 1:
        _refuse("count")
    values, timestamps, keys, headers = _decode_body(data, body_at, 1, base_ns, decode)
    return (
        values[0],
        base_ns if timestamps is None else timestamps[0],
        None if keys is None else keys[0],
        None if headers is None else headers[0],
    )


cdef inline bint _is_plain(Octets body, Py_ssize_t size) noexcept:
    """Whether a body of 3 bytes at least ends as one does that has values only."""
    return body[size - 1] == 0xC0 and body[size - 2] == 0xC0 and body[size - 3] == 0xC0


def decode_one(
    bytes data not None, body_at, base_ns, decode_value=_decode_value, decode=_decode_columns
):
    cdef Py_ssize_t at = body_at
    if not 0 <= at <= PyBytes_GET_SIZE(data):
        raise FrameError("count")
    return _decode_one(data, at, base_ns, decode_value, decode)


def read_frame(
    bytes data not None, bytes prefix not None, count_max, make, topic, origin, typed
):
    cdef Octets octets = <Octets>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = PyBytes_GET_SIZE(prefix)
    cdef uint64_t sequence, count, length
    cdef int64_t base_ns, most = count_max
    cdef Octets body
    if size < at + REST_BYTES + 4 or memcmp(octets, PyBytes_AS_STRING(prefix), at):
        return None
    sequence, count, length = _u64(octets + at), _u32(octets + at + 8), _u32(octets + at + 12)
    base_ns = <int64_t>_u64(octets + at + 16)
    at += REST_BYTES
    if length != <uint64_t>(size - at) or count == 0 or <int64_t>count > most:
        return None
    if sequence > SEQUENCE_MAX or sequence + count > SEQUENCE_MAX:
        return None
    body = octets + at
    try:
        if count > 1:
            if typed is None:
                columns = _decode_body(data, at, <Py_ssize_t>count, base_ns, _decode_columns)
            else:
                columns = typed.decode_body(data, at, count, base_ns)
            return sequence, count, base_ns, columns
        if typed is None:
            if body[0] == 0x94 and body[1] == 0x91 and size - at > 6 and _is_plain(body, size - at):
                found = _bytes_value(body + 2, size - at - 5)
                if found is not None:
                    return make(topic, found, base_ns, sequence, origin)
            value, time_ns, key, headers = _decode_one(
                data, at, base_ns, _decode_value, _decode_columns
            )
        else:
            value, time_ns, key, headers = typed.decode_one(data, at, base_ns)
    except FrameError:
        return None
    return make(topic, value, time_ns, sequence, origin, key, headers)


cdef inline object _bytes_value(Octets packed, Py_ssize_t size):
    """Return the value that is `size` bytes long, packed, if it is bytes; else None."""
    cdef Py_ssize_t lead
    if packed[0] == 0xC4 and size >= 2 and packed[1] == size - 2:
        lead = 2
    elif packed[0] == 0xC5 and size >= 3 and _u16(packed + 1) == size - 3:
        lead = 3
    elif packed[0] == 0xC6 and size >= 5 and _u32(packed + 1) == size - 5:
        lead = 5
    else:
        return None
    return PyBytes_FromStringAndSize(<const char*>packed + lead, size - lead)


def find_block(Frame frame not None):
    cdef bytes data = frame.data
    cdef Octets octets = <Octets>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = frame.body_at, head, stride, place
    cdef int64_t count = frame.count
    if not 0 <= at < size - 1 or count < 0:
        raise IndexError("index out of range")
    at += 6 if octets[at + 1] == 0xDD else 4 if octets[at + 1] == 0xDC else 2
    if size < at + 3 or octets[at] not in (0xC4, 0xC5):
        return None
    head = 2 if octets[at] == 0xC4 else 3
    stride = head + (octets[at + 1] if head == 2 else _u16(octets + at + 1))
    if stride == head or count > (size - at) // stride:
        return None
    for place in range(at, at + count * stride, stride):
        if memcmp(octets + place, octets + at, head):
            return None
    return at, stride, head


# ---------------------------------------------------------------------------- plain values

cdef extern from *:
    """
    #include <structmember.h>
    #ifdef Py_GIL_DISABLED
    #define P2PMSG_NO_GIL 1
    #else
    #define P2PMSG_NO_GIL 0
    #endif
    #define TYPE_IS(value, kind) (Py_TYPE(value) == (PyTypeObject *)(kind))
    """
    const bint NO_GIL "P2PMSG_NO_GIL"
    bint TYPE_IS(PyObject*, PyTypeObject*) noexcept
    PyTypeObject* BYTES "&PyBytes_Type"
    PyTypeObject* BYTEARRAY "&PyByteArray_Type"
    PyTypeObject* TEXT "&PyUnicode_Type"
    PyTypeObject* INT "&PyLong_Type"
    PyTypeObject* FLOAT "&PyFloat_Type"
    PyTypeObject* DICT "&PyDict_Type"
    PyTypeObject* LIST "&PyList_Type"
    PyTypeObject* MEMBER "&PyMemberDescr_Type"
    PyObject* NONE "Py_None"
    PyObject* TRUE "Py_True"
    PyObject* FALSE "Py_False"
    const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*) noexcept
    long long PyLong_AsLongLongAndOverflow(PyObject*, int*) noexcept
    double PyFloat_AS_DOUBLE(PyObject*) noexcept
    char* BYTES_OF "PyBytes_AS_STRING"(PyObject*) noexcept
    Py_ssize_t SIZE_OF "Py_SIZE"(PyObject*) noexcept
    Py_ssize_t PyDict_Size(PyObject*) noexcept
    bint PyDict_Next(PyObject*, Py_ssize_t*, PyObject**, PyObject**) noexcept
    PyObject* PyList_GET_ITEM(PyObject*, Py_ssize_t) noexcept
    void PyErr_Clear() noexcept

cdef enum:
    PACKED_MAX = 4096  # of values that are packed here; bytes may be longer
    NUMBER_MAX = 9  # what a number, or what leads any other value, takes at most
    LEVELS_MAX = 32

ctypedef unsigned char* Place


cdef inline Place _put(Place at, unsigned char lead, uint64_t number, int size) noexcept:
    cdef int place
    at[0] = lead
    for place in range(size):
        at[1 + place] = <unsigned char>(number >> 8 * (size - 1 - place))
    return at + 1 + size


cdef inline Place _put_lead(
    Place at, Py_ssize_t size, int short_lead, int short_max, int lead8, int lead16
) noexcept:
    """Begin something of `size` parts: less than 2 ** 32."""
    if size <= short_max:
        return _put(at, short_lead | size, 0, 0)
    if lead8 and size < 1 << 8:
        return _put(at, lead8, size, 1)
    return _put(at, lead16, size, 2) if size < 1 << 16 else _put(at, lead16 + 1, size, 4)


cdef inline Place _put_bytes_lead(Place at, Py_ssize_t size) noexcept:
    return _put_lead(at, size, 0, -1, 0xC4, 0xC5)


cdef Place _put_int(Place at, PyObject* value) noexcept:
    cdef int beyond = 0
    cdef long long number = PyLong_AsLongLongAndOverflow(value, &beyond)
    if beyond:
        return NULL
    if number >= 0:
        if number < 1 << 7:
            return _put(at, number, 0, 0)
        if number < 1 << 8:
            return _put(at, 0xCC, number, 1)
        if number < 1 << 16:
            return _put(at, 0xCD, number, 2)
        return _put(at, 0xCE, number, 4) if number < <int64_t>1 << 32 else _put(at, 0xCF, number, 8)
    if number >= -(1 << 5):
        return _put(at, number, 0, 0)
    if number >= -(1 << 7):
        return _put(at, 0xD0, number, 1)
    if number >= -(1 << 15):
        return _put(at, 0xD1, number, 2)
    if number >= -(<int64_t>1 << 31):
        return _put(at, 0xD2, number, 4)
    return _put(at, 0xD3, number, 8)


cdef Place _pack(PyObject* value, Place at, Place stop, int levels) noexcept:
    """Write a value as msgpack, up to `stop` at most; return where it ends, NULL: it is not for here.

    No code of Python's runs meanwhile. Without a GIL others could change a dict or list.
    """
    cdef Py_ssize_t size, place = 0
    cdef const char* text
    cdef PyObject* key
    cdef PyObject* part
    cdef double number
    cdef uint64_t bits
    if NO_GIL or stop - at < NUMBER_MAX:
        return NULL
    if TYPE_IS(value, TEXT):
        text = PyUnicode_AsUTF8AndSize(value, &size)
        if text == NULL:
            PyErr_Clear()
            return NULL
        if size > stop - at - NUMBER_MAX:
            return NULL
        at = _put_lead(at, size, 0xA0, 31, 0xD9, 0xDA)
        memcpy(at, text, size)
        return at + size
    if TYPE_IS(value, INT):
        return _put_int(at, value)
    if TYPE_IS(value, FLOAT):
        number = PyFloat_AS_DOUBLE(value)
        memcpy(&bits, &number, 8)
        return _put(at, 0xCB, bits, 8)
    if value == NONE or value == TRUE or value == FALSE:
        return _put(at, 0xC0 if value == NONE else 0xC3 if value == TRUE else 0xC2, 0, 0)
    if TYPE_IS(value, BYTES):
        size = SIZE_OF(value)
        if size > stop - at - NUMBER_MAX:
            return NULL
        at = _put_bytes_lead(at, size)
        memcpy(at, BYTES_OF(value), size)
        return at + size
    if not levels:
        return NULL
    if TYPE_IS(value, DICT):
        at = _put_lead(at, PyDict_Size(value), 0x80, 15, 0, 0xDE)
        while PyDict_Next(value, &place, &key, &part):
            if not TYPE_IS(key, TEXT):
                return NULL
            at = _pack(key, at, stop, 0)
            if at == NULL:
                return NULL
            at = _pack(part, at, stop, levels - 1)
            if at == NULL:
                return NULL
        return at
    if TYPE_IS(value, LIST):
        size = SIZE_OF(value)
        at = _put_lead(at, size, 0x90, 15, 0, 0xDC)
        for place in range(size):
            at = _pack(PyList_GET_ITEM(value, place), at, stop, levels - 1)
            if at == NULL:
                return NULL
        return at
    return NULL


cdef inline void _put_rest(
    Place at, uint64_t sequence, Py_ssize_t count, Py_ssize_t length, int64_t timestamp_ns
) noexcept:
    """Write the end of a frame's header: `REST_BYTES`."""
    cdef int place
    for place in range(8):
        at[place] = <unsigned char>(sequence >> 8 * (7 - place))
        at[16 + place] = <unsigned char>(<uint64_t>timestamp_ns >> 8 * (7 - place))
    for place in range(4):
        at[8 + place] = <unsigned char>(count >> 8 * (3 - place))
        at[12 + place] = <unsigned char>(length >> 8 * (3 - place))


def pack_lone(bytes prefix not None, sequence, timestamp_ns, value, key, bytes_max):
    cdef unsigned char body[PACKED_MAX + 3]
    cdef Place start = body + 2, at = start, stop = body + PACKED_MAX
    cdef Py_ssize_t lead = PyBytes_GET_SIZE(prefix), size
    cdef bytes frame
    cdef Place place
    body[0], body[1] = 0x94, 0x91
    at = _pack(<PyObject*>value, at, stop, LEVELS_MAX)
    if at == NULL:
        return None
    if key is None:
        memcpy(at, b"\xc0\xc0\xc0", 3)
        at += 3
    else:
        at[0], at[1] = 0xC0, 0x91
        at = NULL if stop - at < 2 or type(key) is not str else _pack(<PyObject*>key, at + 2, stop, 0)
        if at == NULL:
            return None
        at[0] = 0xC0
        at += 1
    if at - start > <Py_ssize_t>bytes_max:
        return None
    size = at - body
    frame = PyBytes_FromStringAndSize(NULL, lead + REST_BYTES + size)
    place = <Place>PyBytes_AS_STRING(frame)
    memcpy(place, PyBytes_AS_STRING(prefix), lead)
    _put_rest(place + lead, sequence, 1, size, timestamp_ns)
    memcpy(place + lead + REST_BYTES, body, size)
    return frame


# ----------------------------------------------------------------------------- open batches

cdef extern from *:
    """
    #define MEMBER_OF(descriptor) (((PyMemberDescrObject *)(descriptor))->d_member)
    """
    ctypedef struct Member "struct PyMemberDef":
        int type
        Py_ssize_t offset
    Member* MEMBER_OF(PyObject*) noexcept
    const int OBJECT_SLOT "T_OBJECT_EX"
    PyObject* PyDict_GetItemWithError(PyObject*, PyObject*) noexcept
    int RESIZED "PyByteArray_Resize"(PyObject*, Py_ssize_t) noexcept
    char* OCTETS_OF "PyByteArray_AS_STRING"(PyObject*) noexcept
    Py_ssize_t PyLong_AsSsize_t(PyObject*) noexcept
    unsigned long PyLong_AsUnsignedLongMask(PyObject*) noexcept
    unsigned long PyThread_get_thread_ident() noexcept
    int PyObject_SetItem(PyObject*, PyObject*, PyObject*) noexcept
    int PyObject_GetBuffer(PyObject*, Py_buffer*, int) noexcept
    void PyBuffer_Release(Py_buffer*) noexcept
    enum: PyBUF_WRITABLE

cdef enum:
    SLOTS_MAX = 5
    BUSY = 0, HOME = 1  # of a section
    TOPIC = 0, LAST = 1  # of open batches
    BUFFER = 0, END = 1, LIMIT = 2, NEXT = 3, SLOT = 4  # of a batch
    MEMORY = 0, HEADER = 1  # of a slot in the tail file


cdef struct Layout:  # where the values of a class's `__slots__` are, in each of its instances
    PyTypeObject* kind
    Py_ssize_t places[SLOTS_MAX]

cdef Layout _sections, _open_batches, _batches, _tail_slots
_sections.kind = _open_batches.kind = _batches.kind = _tail_slots.kind = NULL
cdef object _zero = 0


cdef inline bint _is_laid(PyObject* value, Layout* layout, tuple names) except -1:
    """Whether it has `__slots__` of these names, whose places are known from now on."""
    return TYPE_IS(value, layout.kind) or _learn(<object>value, layout, names)


cdef bint _learn(object value, Layout* layout, tuple names) except -1:
    cdef Layout found
    cdef int number
    cdef object kind = type(value), member
    for number, name in enumerate(names):
        member = getattr(kind, name, None)
        if not TYPE_IS(<PyObject*>member, MEMBER):
            return False
        if MEMBER_OF(<PyObject*>member).type != OBJECT_SLOT:
            return False
        found.places[number] = MEMBER_OF(<PyObject*>member).offset
    Py_INCREF(kind)  # so that no other class gets its address
    found.kind = <PyTypeObject*>kind
    layout[0] = found
    return True


cdef inline PyObject* _get(PyObject* value, Layout* layout, int number) noexcept:
    cdef PyObject* found = (<PyObject**>(<char*>value + layout.places[number]))[0]
    return NONE if found == NULL else found


cdef inline void _set(PyObject* value, Layout* layout, int number, object content) noexcept:
    cdef PyObject** place = <PyObject**>(<char*>value + layout.places[number])
    cdef PyObject* before = place[0]
    Py_INCREF(content)
    place[0] = <PyObject*>content
    Py_XDECREF(before)


cdef inline Py_ssize_t _size(PyObject* number) noexcept:
    """Return a number from 0 on; -1: it is none."""
    cdef Py_ssize_t size = PyLong_AsSsize_t(number) if TYPE_IS(number, INT) else -1
    if size < 0:
        PyErr_Clear()
    return size


cdef object _append(object face, object topic, PyObject* value):
    """Append a message to its open batch, and return its sequence; None: that is not for here."""
    cdef object entered = face._section, opened = face._batches, batch
    cdef PyObject* section = <PyObject*>entered
    cdef PyObject* batches = <PyObject*>opened
    cdef PyObject* found
    if not _is_laid(section, &_sections, ("busy", "home")):
        return None
    if not _is_laid(batches, &_open_batches, ("topic", "batch")):
        return None
    if <PyObject*>topic == _get(batches, &_open_batches, TOPIC):
        found = _get(batches, &_open_batches, LAST)
    elif TYPE_IS(<PyObject*>topic, TEXT):
        found = PyDict_GetItemWithError(batches, <PyObject*>topic)
        if found == NULL:
            PyErr_Clear()
            return None
    else:
        return None
    batch = <object>found
    if not _is_laid(found, &_batches, ("buffer", "end", "limit", "next", "slot")):
        return None
    found = _get(found, &_batches, SLOT)
    if found != NONE and not _is_laid(found, &_tail_slots, ("memory", "header")):
        return None
    return _append_to(section, <PyObject*>batch, value)


cdef object _append_to(PyObject* section, PyObject* batch, PyObject* value):
    """The same, of a batch whose places are known. From here on nobody else runs."""
    cdef unsigned char packed[PACKED_MAX]
    cdef Place stop = packed
    cdef const char* rest = NULL
    cdef Py_ssize_t end, size, rest_size = 0
    cdef PyObject* home = _get(section, &_sections, HOME)
    cdef PyObject* slot = _get(batch, &_batches, SLOT)
    cdef PyObject* buffer = _get(batch, &_batches, BUFFER)
    cdef object new_end, new_next, sequence
    cdef Py_buffer view
    if _get(section, &_sections, BUSY) != FALSE:
        return None
    if home != NONE and PyLong_AsUnsignedLongMask(home) != PyThread_get_thread_ident():
        return None
    if TYPE_IS(value, BYTES):
        rest, rest_size = BYTES_OF(value), SIZE_OF(value)
        stop = _put_bytes_lead(packed, rest_size)
    else:
        stop = _pack(value, packed, packed + PACKED_MAX, LEVELS_MAX)
        if stop == NULL:
            return None
    end = _size(_get(batch, &_batches, END))
    size = end + (stop - packed) + rest_size
    if end < 0 or size >= _size(_get(batch, &_batches, LIMIT)):
        return None
    if not TYPE_IS(_get(batch, &_batches, NEXT), INT):
        return None
    sequence = <object>_get(batch, &_batches, NEXT)
    new_end, new_next = size, sequence + 1
    if slot == NONE:
        if not TYPE_IS(buffer, BYTEARRAY) or SIZE_OF(buffer) != end:
            return None
        if RESIZED(buffer, size) < 0:
            PyErr_Clear()
            return None
        memcpy(OCTETS_OF(buffer) + end, packed, stop - packed)
        memcpy(OCTETS_OF(buffer) + size - rest_size, rest, rest_size)
    else:
        if PyObject_GetBuffer(_get(slot, &_tail_slots, MEMORY), &view, PyBUF_WRITABLE) < 0:
            PyErr_Clear()
            return None
        if size <= view.len:
            memcpy(<char*>view.buf + end, packed, stop - packed)
            memcpy(<char*>view.buf + size - rest_size, rest, rest_size)
        PyBuffer_Release(&view)
        if size > view.len or PyObject_SetItem(
            _get(slot, &_tail_slots, HEADER), <PyObject*>_zero, <PyObject*>new_end
        ) < 0:
            PyErr_Clear()
            return None
    _set(batch, &_batches, END, new_end)
    _set(batch, &_batches, NEXT, new_next)
    return sequence


def seal_frame(
    bytearray buffer not None, body_at, sequence, timestamp_ns, count, bytes columns not None
):
    cdef Py_ssize_t at = body_at, size = PyByteArray_GET_SIZE(buffer)
    cdef Py_ssize_t more = PyBytes_GET_SIZE(columns)
    cdef Place body
    if not REST_BYTES <= at <= size - 6:
        raise IndexError("index out of range")
    PyByteArray_Resize(buffer, size + more)
    body = <Place>PyByteArray_AS_STRING(buffer) + at
    memcpy(body + size - at, PyBytes_AS_STRING(columns), more)
    body[0] = 0x94
    _put(body + 1, 0xDD, <uint64_t>count, 4)
    _put_rest(body - REST_BYTES, sequence, count, size + more - at, timestamp_ns)


def appending(publish):
    if NO_GIL:
        return publish

    @wraps(publish)
    @cython.binding(True)
    def append_or_publish(self, topic, value, key=None, timestamp_ns=None, headers=None):
        if key is None and timestamp_ns is None and headers is None:
            sequence = _append(self, topic, <PyObject*>value)
            if sequence is not None:
                return sequence
        return publish(self, topic, value, key, timestamp_ns, headers)

    return append_or_publish


# ------------------------------------------------------------------------------ StatsD lines

cdef enum:
    PAD_BYTES = 32
    PART_BYTES_MAX = 1024
    DIGITS_MAX = 15
    VALUE_BYTES_MAX = 16

cdef double _powers[16]
for _power in range(16):
    _powers[_power] = 10.0 ** _power


cdef struct Keys:
    uint64_t start, length, first, second


cdef inline uint64_t _mixed(uint64_t code, uint64_t word, Keys* keys) noexcept:
    code = (code ^ word) * keys.first
    return (code ^ code >> 32) * keys.second


cdef inline uint64_t _word(Octets at) noexcept:
    cdef uint64_t word
    memcpy(&word, at, 8)
    return word


cdef uint64_t _mixed_before(uint64_t code, Octets stop, Py_ssize_t size, Keys* keys) noexcept:
    """Mix the `size` bytes before `stop` into a code, the last 32 of them first."""
    cdef Py_ssize_t kept, place
    cdef uint64_t word
    while True:
        for place in range(4):
            kept = size - (24 - 8 * place)  # bytes of this word that are kept, its last ones
            word = 0
            if kept > 0:
                word = _word(stop - 32 + 8 * place)
                if kept < 8:
                    word &= <uint64_t>-1 << 8 * (8 - kept)
            code = _mixed(code, word, keys)
        if size <= 32:
            return code
        stop -= 32
        size -= 32


cdef uint64_t _code(Octets name, Octets colon, Octets bar, Octets end, Keys* keys) noexcept:
    """Return the code of a line's name and rest; never 0. There are 32 bytes on both sides."""
    cdef Py_ssize_t size = end - bar
    cdef uint64_t code = <uint64_t>size << 32 | <uint64_t>(colon - name), word
    code = code * keys.length ^ keys.start
    code = _mixed_before(code, colon, colon - name, keys)
    word = _word(bar)
    if size < 8:
        word &= <uint64_t>-1 >> 8 * (8 - size)
    code = _mixed(code, word, keys)
    if size > 8:
        word = _word(bar + 8)
        if size < 16:
            word &= <uint64_t>-1 >> 8 * (16 - size)
        code = _mixed(code, word, keys)
        if size > 16:
            code = _mixed_before(code, end, size - 16, keys)
    return (code ^ code >> 32) | 1


cdef bint _number(Octets at, Octets stop, double* value) noexcept:
    """Read a decimal of at most 15 digits, without a sign: exactly as `float` does."""
    cdef uint64_t digits = 0
    cdef int count = 0, after = -1
    cdef unsigned char digit
    if stop - at > VALUE_BYTES_MAX:
        return False
    while at < stop:
        digit = at[0] - <unsigned char>48
        if digit <= 9:
            digits = digits * 10 + digit
            count += 1
            after += after >= 0
        elif at[0] == b"." and after < 0:
            after = 0
        else:
            return False
        at += 1
    if count == 0 or count > DIGITS_MAX:
        return False
    value[0] = <double>digits
    if after > 0:
        value[0] /= _powers[after]
    return True


def scan_lines(bytes data not None, start, length, first, second):
    """Return how many lines there are, and their columns; None: there are none.

    Args:
        data: `PAD_BYTES` of padding, lines that each end in a line feed, and padding again.
        start, length, first, second: of the codes; see `statsd.columns`.

    Returns:
        By lines that are not empty, and one column after the other: start, end, colon, bar, code
        and value, eight bytes each; then, a byte each, whether a line is regular, and negative.

    """
    cdef Octets octets = <Octets>PyBytes_AS_STRING(data), at = octets + PAD_BYTES
    cdef Octets stop = octets + PyBytes_GET_SIZE(data) - PAD_BYTES, end, colon, bar, value
    cdef Keys keys
    cdef Py_ssize_t count = 0, line = 0
    cdef bint regular, negative
    keys.start, keys.length, keys.first, keys.second = start, length, first, second
    end = at
    while end < stop:
        end = <Octets>memchr(end, b"\n", stop - end)
        if end == NULL:
            break
        count += end > at
        end += 1
        at = end
    if not count:
        return None
    cdef bytearray columns = PyByteArray_FromStringAndSize(NULL, count * 50)
    cdef int64_t* starts = <int64_t*>PyByteArray_AS_STRING(columns)
    cdef int64_t* ends = starts + count
    cdef int64_t* colons = ends + count
    cdef int64_t* bars = colons + count
    cdef uint64_t* codes = <uint64_t*>(bars + count)
    cdef double* values = <double*>(codes + count)
    cdef char* regulars = <char*>(values + count)
    cdef char* negatives = regulars + count
    at = octets + PAD_BYTES
    while line < count:
        end = <Octets>memchr(at, b"\n", stop - at)
        if end > at:
            colon = <Octets>memchr(at, b":", end - at)
            regular = negative = False
            bar = at
            values[line], codes[line] = 0.0, 1
            if colon != NULL and memchr(at, b"|", colon - at) == NULL:
                bar = value = colon + 1
                while bar < end and bar[0] != b"|" and bar[0] != b":":
                    bar += 1
                if bar < end and bar[0] == b"|":
                    negative = value[0] == b"-"
                    value += negative
                    regular = (
                        colon - at <= PART_BYTES_MAX and end - bar <= PART_BYTES_MAX
                        and _number(value, bar, &values[line])
                    )
                    if negative:
                        values[line] = -values[line]
            if regular:
                codes[line] = _code(at, colon, bar, end, &keys)
            starts[line], ends[line] = at - octets, end - octets
            colons[line] = at - octets if colon == NULL else colon - octets
            bars[line] = bar - octets
            regulars[line], negatives[line] = regular, negative
            line += 1
        at = end + 1
    return count, columns
