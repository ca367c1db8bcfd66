"""Where the open batches are: the latest one is found without its topic being looked up."""

from p2pmsg.publisher.batch import Batch, OpenBatches
from p2pmsg.wire import stream_prefix


def batch_of(topic):
    return Batch(stream_prefix(topic, 1), 0, 0, 0, 1024, bytearray())


def latest(batches):
    return batches.topic, batches.batch


def test_the_latest_is_the_one_begun_last():
    batches, a, b = OpenBatches(), batch_of("a"), batch_of("b")
    assert latest(batches) == (None, None)
    batches["a"] = a
    assert latest(batches) == ("a", a)
    batches["b"] = b
    assert latest(batches) == ("b", b)
    assert batches == {"a": a, "b": b}


def test_one_that_is_sealed_is_the_latest_no_more():
    batches, a = OpenBatches(), batch_of("a")
    batches["a"] = a
    del batches["a"]
    assert latest(batches) == (None, None)
    assert batches == {}


def test_the_latest_stays_when_another_one_is_sealed():
    batches, a, b = OpenBatches(), batch_of("a"), batch_of("b")
    batches["a"], batches["b"] = a, b
    del batches["a"]
    assert latest(batches) == ("b", b)
    batches["a"] = a
    assert latest(batches) == ("a", a)


def test_a_topic_of_another_object_with_the_same_text_seals_the_latest():
    batches, name = OpenBatches(), "".join(["top", "ic"])
    batches["topic"] = batch_of("topic")
    assert name is not batches.topic
    del batches[name]
    assert latest(batches) == (None, None)
