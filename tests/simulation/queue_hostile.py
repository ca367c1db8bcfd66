"""Workers of a simulated queue that mean ill: they speak the protocol, and do no job.

What cannot be had without keys is left out: that a job counts as done which one of them
acknowledged.
"""

from tests.simulation.queue_nodes import WorkerNode

KINDS = ("holder", "rejecter", "extender", "flapper", "hoarder")
_CENTURIES_S = 1e10


class HostileNode(WorkerNode):
    """Takes what it gets and never does it; each of a kind.

    `holder` answers nothing, `rejecter` wants each job to wait for centuries, `extender` asks for
    centuries, `flapper` holds and connects anew all the time, `hoarder` claims room for a million.
    """

    def __init__(self, world, number):
        super().__init__(world, number)
        self.kind = KINDS[number % len(KINDS)]

    def start(self):
        super().start()
        if self.kind == "hoarder":
            self.line.prefetch = 1_000_000
        if self.kind == "flapper":
            self.world.after(self.world.rng.uniform(30, 300), self._flap, self.life)

    def _flap(self, life):
        if life == self.life and self.line is not None:
            self.cuts()
            self.world.after(self.world.rng.uniform(30, 300), self._flap, life)

    def service(self):
        # It does not time out what it holds, as an honest line would.
        self.line._time_out = lambda now_ns: None
        super().service()

    def _begin(self, thread):
        line, now = self.line, self.world.now
        while (job := line.take(now_ns=now)) is not None:
            self.world.history.hostile(job)
            if self.kind == "rejecter":
                line.reject(job, "x" * 4096, _CENTURIES_S)
            elif self.kind == "extender":
                line.extend(job, _CENTURIES_S)
