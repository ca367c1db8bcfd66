"""A program that runs what goes over TCP with Linux's names taken away, as macOS has it."""

import ctypes
import errno
import fcntl
import io
import os
import select
import selectors
import socket
import sys

GONE = {
    os: "eventfd fdatasync memfd_create pidfd_open posix_fadvise posix_fallocate sched_getaffinity "
    "sched_setaffinity splice copy_file_range O_TMPFILE POSIX_FADV_DONTNEED sched_yield",
    select: "epoll EPOLLIN EPOLLOUT EPOLLET",
    socket: "SO_DOMAIN SO_BINDTODEVICE TCP_USER_TIMEOUT TCP_QUICKACK AF_PACKET MSG_CMSG_CLOEXEC "
    "IP_RECVTOS SO_INCOMING_CPU SO_MARK AF_NETLINK SOCK_CLOEXEC SOCK_NONBLOCK MSG_ERRQUEUE",
    fcntl: "F_OFD_SETLK F_OFD_SETLKW F_SETPIPE_SZ F_NOTIFY F_ADD_SEALS",
}


class Libc(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("fallocate", "recvmmsg", "statx", "sysctlbyname"):
            raise AttributeError(name)
        return super().__getattr__(name)


def without_proc(call):
    def refuse(path=".", *arguments, **keywords):
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "no /proc", os.fspath(path))
        return call(path, *arguments, **keywords)

    return refuse


def take_away():
    for module, names in GONE.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in ("open", "listdir", "scandir", "readlink", "stat"):
        setattr(os, name, without_proc(getattr(os, name)))
    __builtins__.open = io.open = without_proc(open)
    selectors.DefaultSelector = selectors.PollSelector  # it was chosen before
    ctypes.CDLL = Libc
    sys.platform = "darwin"


def repair(p2pmsg):
    from p2pmsg.testing import TcpProxy

    with (
        p2pmsg.Publisher("tcp://127.0.0.1:0") as publisher,
        TcpProxy(publisher.endpoint, frame_loss=0.2, loss_after_frames=3, seed=7) as proxy,
        p2pmsg.Subscriber(proxy.endpoint) as subscriber,
    ):
        publisher.wait_for_subscribers(1, timeout=60)
        for number in range(50):
            publisher.publish("t", number)
            publisher.flush()
        assert [subscriber.receive(timeout=60).value for _ in range(50)] == [*range(50)]
        assert subscriber.stats().repaired["buffer"] > 0 == subscriber.stats().lost


def log(p2pmsg, folder):
    settings = p2pmsg.LogConfig(f"{folder}/log")
    for first in (0, 100):
        with (
            p2pmsg.Publisher(f"ipc://{folder}/feed", log=settings) as publisher,
            p2pmsg.Subscriber(
                publisher.endpoint, start="earliest", cursor=f"{folder}/at"
            ) as subscriber,
        ):
            publisher.publish_many("t", [*range(first, first + 100)])
            found = [subscriber.receive(timeout=60).value for _ in range(100)]
            assert found == [*range(first, first + 100)], found
            subscriber.commit()
            assert subscriber.stats().lost == 0 < publisher.stats().log.bytes


def jobs(p2pmsg, folder):
    with (
        p2pmsg.Pusher("tcp://127.0.0.1:0", log=f"{folder}/jobs") as pusher,
        p2pmsg.Puller(pusher.endpoint) as puller,
    ):
        pusher.push(1)
        with puller.receive(timeout=60) as job:
            assert job.value == 1


def request(p2pmsg):
    with (
        p2pmsg.Responder("tcp://127.0.0.1:0", {"add": sum}) as responder,
        p2pmsg.Requester([responder.endpoint]) as requester,
    ):
        assert requester.request("add", [1, 2], timeout=60) == 3


def refused(p2pmsg):
    for endpoint in ("udp://239.255.1.1:4000", "mold://239.255.1.1:4000", "ipc://@feed"):
        for peer in (p2pmsg.Publisher, p2pmsg.Subscriber):
            try:
                peer(endpoint)
            except p2pmsg.ConfigError as error:
                assert "needs Linux" in str(error)
            else:
                raise AssertionError(endpoint)


if __name__ == "__main__":
    take_away()
    import p2pmsg

    repair(p2pmsg)
    log(p2pmsg, sys.argv[1])
    jobs(p2pmsg, sys.argv[1])
    request(p2pmsg)
    refused(p2pmsg)
    print("done")
