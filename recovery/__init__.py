"""Recovery: gaps, NACKs, replay. Pure state machines that know sequences and bytes, no more.

Nothing here reads a clock, opens a socket or starts a thread: time comes in as `now_ns`, an integer
of monotonic nanoseconds, and randomness as a `random.Random`. See README.md in this folder.
"""

from recovery.budget import TokenBucket
from recovery.cursor import CursorConfig, CursorFile
from recovery.deadlines import DeadlineHeap
from recovery.errors import RecoveryError
from recovery.feedback import AnswerTime, Feedback
from recovery.group_repair import GroupRepair
from recovery.heartbeat import HeartbeatSchedule
from recovery.latency import LatencyHistogram
from recovery.loss import Delivery, Loss, LossReason, Rewound
from recovery.nack import NackScheduler
from recovery.ranges import RangeSet
from recovery.reassembly import Reassembler
from recovery.receiver import ReceiverConfig, StreamReceiver
from recovery.reorder import InsertResult, ReorderBuffer
from recovery.replay_buffer import Kept, PartedFrame, ReplayBuffer
from recovery.retransmit import RetransmitScheduler, SentFrames
from recovery.retry import RetryPolicy
from recovery.stall import StallGuard
from recovery.window import FlowWindow

__all__ = [
    "AnswerTime",
    "CursorConfig",
    "CursorFile",
    "DeadlineHeap",
    "Delivery",
    "Feedback",
    "FlowWindow",
    "GroupRepair",
    "HeartbeatSchedule",
    "InsertResult",
    "Kept",
    "LatencyHistogram",
    "Loss",
    "LossReason",
    "NackScheduler",
    "PartedFrame",
    "RangeSet",
    "Reassembler",
    "ReceiverConfig",
    "RecoveryError",
    "ReorderBuffer",
    "ReplayBuffer",
    "RetransmitScheduler",
    "RetryPolicy",
    "Rewound",
    "SentFrames",
    "StallGuard",
    "StreamReceiver",
    "TokenBucket",
]
