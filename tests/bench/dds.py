"""Cyclone DDS as a contender over multicast."""

import os
import time
from dataclasses import dataclass
from typing import Any

from tests.bench.groups import Wire, enter
from tests.bench.harness import Receiver, Sender
from tests.bench.loads import TrialError
from tests.bench.ours import READY_SECONDS, TIMEOUT_SECONDS


class DdsEnd:
    """What both ends of Cyclone DDS share: a participant, a topic, reliable and keep-all."""

    def __init__(self, pid: int, interface: str, port: int) -> None:
        enter(pid)
        os.environ["CYCLONEDDS_URI"] = (
            "<CycloneDDS><Domain id='any'><General><Interfaces>"
            f"<NetworkInterface name='{interface}' multicast='true'/></Interfaces>"
            "<AllowMulticast>true</AllowMulticast></General></Domain></CycloneDDS>"
        )
        from cyclonedds.core import Policy, Qos
        from cyclonedds.domain import DomainParticipant
        from cyclonedds.idl import IdlStruct
        from cyclonedds.idl.types import array, uint8
        from cyclonedds.topic import Topic
        from cyclonedds.util import duration

        fields = {"__annotations__": {"data": array[uint8, 128]}}
        self.blob = dataclass(type("Blob", (IdlStruct,), fields))
        self.participant = DomainParticipant(port % 200)
        self.qos = Qos(Policy.Reliability.Reliable(duration(seconds=20)), Policy.History.KeepAll)
        self.topic = Topic(self.participant, "bench", self.blob, qos=self.qos)


class DdsSender(DdsEnd, Sender):
    def __init__(self, wire: Wire, port: int) -> None:
        super().__init__(wire.sender_pid, wire.sender_interface, port)
        from cyclonedds.pub import DataWriter

        self.endpoint = str(port)
        self._writer = DataWriter(self.participant, self.topic, qos=self.qos)

    def wait_ready(self, subscriber_count: int) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while len(self._writer.get_matched_subscriptions()) < subscriber_count:
            if time.monotonic() > deadline:
                raise TrialError("Cyclone DDS: no subscriber came")
            time.sleep(0.01)
        time.sleep(0.3)

    def send(self, values: list[Any]) -> None:
        write, blob = self._writer.write, self.blob
        for value in values:
            write(blob(value))


class DdsReceiver(DdsEnd, Receiver):
    def __init__(self, wire: Wire, endpoint: str) -> None:
        super().__init__(wire.receiver_pid, wire.receiver_interface, int(endpoint))
        from cyclonedds.core import InstanceState, ReadCondition, SampleState, ViewState, WaitSet
        from cyclonedds.sub import DataReader
        from cyclonedds.util import duration

        self._reader = DataReader(self.participant, self.topic, qos=self.qos)
        self._set = WaitSet(self.participant)
        state = SampleState.Any | ViewState.Any | InstanceState.Any
        self._set.attach(ReadCondition(self._reader, state))
        self._duration = duration(seconds=TIMEOUT_SECONDS)

    def receive(self, count: int) -> list[Any]:
        while True:
            samples = self._reader.take(min(count, 256))
            if samples:
                return [bytes(sample.data) for sample in samples]
            if not self._set.wait(self._duration):
                raise TrialError("Cyclone DDS: nothing came")

    def receive_rest(self, seconds: float) -> int:
        time.sleep(seconds)
        return len(self._reader.take(256))
