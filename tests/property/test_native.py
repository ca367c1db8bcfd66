"""The compiled functions do what their twins in Python do, whatever comes off the wire.

In the long run these are a million cases, and as many under AddressSanitizer, where gcc has it.
"""

import os
import random
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2pmsg import codec, wire
from p2pmsg.message import Message, Origin
from p2pmsg.native import twin
from p2pmsg.native.format import FrameError
from p2pmsg.statsd.columns import PAD_BYTES, CodeKeys, split_by_numpy, split_compiled
from p2pmsg.subscriber.typed import ValueType
from tests.unit.p2pmsg.frames import VALID, header

compiled = pytest.importorskip("p2pmsg.native.compiled", exc_type=ImportError)

TOPIC, ORIGIN = "t", Origin(5, "feed")
PREFIX = wire.stream_prefix(TOPIC, 0x0102030405060708)
TYPED = ValueType(int)
FIELDS = ("topic", "kind", "flags", "session", "sequence", "count", "base_timestamp_ns", "body_at")
MARKS = bytes(
    (0, 1, 2, 0x7F, 0x80, 0x90, 0x91, 0x92, 0x94, 0xC0, 0xC4, 0xC5, 0xC6, 0xDC, 0xDD, 0xFF)
)
MUTATIONS = 20
"""Cases of an example: that many changes, one upon the other."""

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
values = scalars | st.text(max_size=8) | st.binary(max_size=300) | st.lists(scalars, max_size=3)
many = st.lists(values, min_size=1, max_size=5) | st.tuples(
    st.binary(max_size=300), st.integers(1, 20)
).map(lambda pair: [pair[0]] * pair[1])
columns = st.sampled_from([(None,) * 3] * 3 + [([0], None, None), (None, ["k"], [{"h": 1}])])
made = st.builds(
    lambda content, others, sequence, base_ns: header(
        body=codec.encode([content, *others]), count=len(content), sequence=sequence,
        base_ns=base_ns,
    ),
    many, columns, st.sampled_from([0, 7, 2**63 - 2, 2**63 - 1, 2**64 - 1]),
    st.sampled_from([0, -1, 2**63 - 1, 10**18]),
)  # fmt: skip
frames = made | st.sampled_from(list(VALID.values())) | st.binary(max_size=80)


def outcome(call, *given):
    try:
        return repr(call(*given))
    except FrameError as error:
        return f"FrameError: {error}"


def parsed(module, data):
    """What a module makes of a frame: all fields, or the reason, and what it finds in the body."""
    try:
        frame = module.Frame(data)
    except FrameError as error:
        return str(error)
    found = [getattr(frame, name) for name in FIELDS]
    assert frame.data is data
    assert frame.covers(frame.sequence) == (frame.count > 0)
    assert not frame.covers(frame.sequence + frame.count)
    if frame.kind == wire.Kind.DATA:
        place = data, frame.body_at, frame.base_timestamp_ns
        found += [
            module.find_block(frame),
            outcome(module.decode_one, *place),
            outcome(module.decode_body, *place[:2], frame.count, place[2]),
        ]
    return found


def check(data):
    assert parsed(compiled, data) == parsed(twin, data)
    for typed in (None, TYPED):
        for prefix, most in ((PREFIX, 2**32), (PREFIX, 1), (data[:20], 3), (b"", 2)):
            given = data, prefix, most, Message, TOPIC, ORIGIN, typed
            assert repr(compiled.read_frame(*given)) == repr(twin.read_frame(*given))


def mutated(rng, data):
    """Change a byte, cut something out, or double it; mostly where headers and leads are."""
    at = (
        rng.randrange(min(len(data), 60) + 1)
        if rng.random() < 0.8
        else rng.randrange(len(data) + 1)
    )
    what = rng.randrange(8)
    if what < 5:
        return data[:at] + bytes((rng.choice(MARKS),)) + data[at + 1 :]
    if what < 7:
        return data[:at] + data[at + rng.randrange(1, 4) :]
    return data[:at] + data[at : at + rng.randrange(1, 9)] * 2 + data[at:]


def with_length(data):
    """The frame with the body length that fits, so that what comes after is looked at, too."""
    zero = data.find(b"\0")
    if not 0 <= zero < len(data) - 38:
        return data
    length = len(data) - zero - 39
    return data[: zero + 27] + length.to_bytes(4, "big") + data[zero + 31 :]


def compare_frames(rounds):
    @settings(max_examples=rounds, deadline=None, suppress_health_check=list(HealthCheck))
    @given(frames, st.integers(0, 2**32))
    def cases(data, seed):
        rng = random.Random(seed)
        check(data)
        for _ in range(MUTATIONS):
            data = mutated(rng, data)
            check(data)
            check(with_length(data))

    cases()


OCTETS = b"abc:|\n.-+0123456789e#@\xff\0"
names = st.integers(0, 140).map(lambda size: b"n" * size) | st.binary(max_size=40)
numbers = st.from_regex(rb"-?[0-9]{0,9}\.?[0-9]{0,9}", fullmatch=True) | st.binary(max_size=18)
rests = st.sampled_from(
    [b"|c", b"|ms", b"|g|#a:b,c:d", b"|c|@0.1|#zone:b", b"", b"|" + b"r" * 1030]
)
lines = st.builds(lambda *parts: b"%s:%s%s" % parts, names, numbers, rests)


def check_lines(text):
    keys, pad = CodeKeys(len(text)), bytes(PAD_BYTES)
    data = pad + text + pad
    found, wanted = split_compiled(data, keys), split_by_numpy(data, keys)
    if wanted is None:
        assert found is None
        return
    regular = wanted.regular
    for name in ("starts", "ends", "regular"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()
    assert found.codes.all()
    for name in ("colons", "bars", "codes", "values", "negative"):
        one, other = getattr(found, name)[regular], getattr(wanted, name)[regular]
        assert one.tolist() == other.tolist()
        assert np.signbit(one).tolist() == np.signbit(other).tolist() if name == "values" else True


def compare_lines(rounds):
    @settings(max_examples=rounds, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(lines, max_size=8), st.integers(0, 2**32))
    def cases(some, seed):
        rng, text = random.Random(seed), b"".join(line + b"\n" for line in some)
        check_lines(text + b"\n")
        for _ in range(MUTATIONS):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + bytes((rng.choice(OCTETS),)) + text[at + 1 :]
            check_lines(text + b"\n")

    cases()


@pytest.mark.rounds(100, 50_000)
def test_frames_are_read_alike(rounds):
    compare_frames(rounds)


@pytest.mark.rounds(60, 25_000)
def test_lines_are_split_alike(rounds):
    compare_lines(rounds)


ROOT = Path(__file__).parents[2]
COMPARING = """
from tests.property import test_native, test_native_append
assert test_native.compiled.__file__.startswith({folder!r})
test_native.compare_frames({rounds})
test_native.compare_lines({rounds})
test_native_append.compare_appends({rounds} // 2)
test_native_append.compare_lone({rounds} // 2)
print("compared")
"""


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.rounds(100, 50_000)
def test_no_byte_beyond_a_frame_is_touched(rounds, tmp_path):
    """The same under AddressSanitizer, with a module that was built for it."""
    pytest.importorskip("Cython")
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True)
    library = Path(found.stdout.strip())
    if not library.is_absolute() or not library.exists():
        pytest.skip("gcc has no libasan")
    for name in ("recovery", "transports", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "p2pmsg", tmp_path / "p2pmsg", ignore=shutil.ignore_patterns("*.so"))
    made = tmp_path / "p2pmsg/native" / f"compiled{sysconfig.get_config_var('EXT_SUFFIX')}"
    source = made.with_name("compiled.pyx")
    options = "-fsanitize=address", "-fno-omit-frame-pointer", "-g"
    code = "import sys, pathlib; sys.path.insert(0, 'p2pmsg/native'); import hatch_build"
    code += "; source, made = map(pathlib.Path, sys.argv[1:3])"
    code += "; hatch_build.build(source, made, *sys.argv[3:])"
    command = [sys.executable, "-c", code, str(source), str(made), *options]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    environment = os.environ | {
        "LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc", "PYTHONPATH": str(tmp_path),
        "ASAN_OPTIONS": "detect_leaks=0", "P2PMSG_NATIVE": "1",
    }  # fmt: skip
    code = COMPARING.format(folder=str(tmp_path), rounds=rounds)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "compared\n"), done.stderr[-4000:]
