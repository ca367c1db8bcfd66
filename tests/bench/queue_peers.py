"""The work queue's contenders: p2pmsg, raw pyzmq, Redis lists."""

import os
import time
from functools import partial
from typing import Any

import zmq

import p2pmsg
from tests.bench.harness import Contender, Sender
from tests.bench.loads import TrialError

LOOPBACK = "tcp://127.0.0.1:0"
IN_FLIGHT = 100_000
PREFETCH = 8192
BATCH = 100
STOP = b"stop"


class OursSource(Sender):
    def __init__(self) -> None:
        self.pusher: Any = self.make()
        self.endpoint = self.pusher.endpoint

    def make(self) -> Any:
        return p2pmsg.Pusher(LOOPBACK, in_flight_max=IN_FLIGHT)

    def count(self) -> int:
        return len(self.pusher.stats().workers)

    def wait_ready(self, count: int) -> None:
        deadline = time.monotonic() + 10
        while self.count() < count:
            if time.monotonic() > deadline:
                raise TrialError("the workers did not come")
            time.sleep(0.005)

    def send(self, values: list[bytes]) -> None:
        push = self.pusher.push
        for value in values:
            push(value)

    def finish(self) -> None:
        self.pusher.join(timeout=30)

    def stop(self, workers: int) -> None:
        for _ in range(workers):
            self.pusher.push(STOP)
            self.pusher.join(timeout=5)

    def close(self) -> None:
        self.pusher.close(timeout=0)


class OursSink:
    def __init__(self, endpoint: str) -> None:
        self.puller = p2pmsg.Puller(endpoint, prefetch=PREFETCH)

    def work(self) -> tuple[int, int]:
        """Do jobs until asked to stop: how many, and the sum of their numbers."""
        count = total = 0
        for job in self.puller:
            with job:
                value = job.value
                if value == STOP:
                    break
                count += 1
                total += len(value)
        # A worker that stopped takes no further job.
        self.puller.close()
        return count, total

    def close(self) -> None:
        self.puller.close()


class DefaultSource(OursSource):
    """As a user gets it who sets nothing."""

    def make(self) -> Any:
        return p2pmsg.Pusher(LOOPBACK)


class DefaultSink(OursSink):
    def __init__(self, endpoint: str) -> None:
        self.puller = p2pmsg.Puller(endpoint)


class RawSource(Sender):
    """pyzmq's PUSH, one frame a job, no acknowledgement."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PUSH)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"

    def wait_ready(self, count: int) -> None:
        time.sleep(0.3)

    def send(self, values: list[bytes]) -> None:
        send = self.socket.send
        for value in values:
            send(value)

    def stop(self, workers: int) -> None:
        # A PUSH skips a worker whose queue is full, so that another may get two of them.
        for _ in range(20 * workers):
            self.socket.send(STOP)
            time.sleep(0.0005)

    def close(self) -> None:
        self.socket.close(linger=1000)
        self.context.term()


class RawSink:
    def __init__(self, endpoint: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PULL)
        self.socket.connect(endpoint)

    def work(self) -> tuple[int, int]:
        recv = self.socket.recv
        count = total = 0
        while True:
            value = recv()
            if value == STOP:
                return count, total
            count += 1
            total += len(value)

    def close(self) -> None:
        self.socket.close(linger=0)
        self.context.term()


class RedisSource(Sender):
    """RPUSH in pipelines; workers move jobs to their own lists by LMOVE, and LREM when done."""

    def __init__(self, path: str) -> None:
        import redis

        self.redis: Any = redis.Redis(unix_socket_path=path)
        self.redis.flushall()
        self.endpoint = path

    def send(self, values: list[bytes]) -> None:
        for at in range(0, len(values), BATCH):
            pipe = self.redis.pipeline(transaction=False)
            for value in values[at : at + BATCH]:
                pipe.rpush("jobs", value)
            pipe.execute()

    def stop(self, workers: int) -> None:
        for _ in range(workers):
            self.redis.rpush("stop", STOP)

    def close(self) -> None:
        self.redis.close()


class RedisSink:
    def __init__(self, path: str) -> None:
        import redis

        self.redis: Any = redis.Redis(unix_socket_path=path)
        self.own = f"working-{os.getpid()}"

    def work(self) -> tuple[int, int]:
        count = total = 0
        while True:
            pipe = self.redis.pipeline(transaction=False)
            for _ in range(BATCH):
                pipe.lmove("jobs", self.own, "LEFT", "RIGHT")
            values = [value for value in pipe.execute() if value is not None]
            if not values:
                if self.redis.lpop("stop"):
                    return count, total
                time.sleep(0.001)
                continue
            pipe = self.redis.pipeline(transaction=False)
            for value in values:
                count += 1
                total += len(value)
                pipe.lrem(self.own, 1, value)
            pipe.execute()

    def close(self) -> None:
        self.redis.close()


OURS_QUEUE = Contender("p2pmsg", OursSource, OursSink)
DEFAULT_QUEUE = Contender("p2pmsg, defaults", DefaultSource, DefaultSink)
RAW_QUEUE = Contender("raw pyzmq", RawSource, RawSink)


def redis_queue(path: str) -> Contender:
    """Redis lists, at a Unix socket."""
    return Contender("Redis", partial(RedisSource, path), RedisSink)
