"""Scheduling: serving: the discrete-event simulation of servers of a language model.

The loop is that of `foretell.scheduling.simulation`: a heap of the ends of steps, whose void entries a version number
tells, and arrivals that are read one by one. A request goes to the server with the fewest requests. With servers for
prompts and servers for generation apart, it moves from one to the other after its first token, and its KV cache takes
the time of a transfer. Memory holds the requests that wait or run, and sums.

Limits: the first token of a split deployment counts when the prompt is computed; the blocks of a prompt are free again
as soon as its transfer begins; network and host beside the steps are part of the step time, or left out.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from foretell.errors import InputError
from foretell.scheduling.serving.requests import Arrival
from foretell.scheduling.serving.server import Live, Rules, Server, StepPower, StepTime
from foretell.scheduling.serving.totals import Limits, ServingTotals


@dataclass(frozen=True)
class Deployment:
    """Servers that share the requests.

    Attributes:
        step_time: How long a step takes.
        kv_tokens: How many tokens the KV cache of one server holds.
        servers: How many there are (data parallel).
        rules: How the engine makes steps.
        power: The power of a step in watts, where energy is wanted.
        idle_power_w: The power of a server without work.
        prefix_share: The share of every input that is the same for all, and found in the cache (prefix caching).
        prefill_servers: Servers that only compute prompts, beside ``servers`` that generate; 0 computes them together.
        prefill_step_time: The step time of those, where it differs.
        transfer_time: How long the KV cache of so many tokens takes between two servers, in seconds.
    """

    step_time: StepTime
    kv_tokens: int
    servers: int = 1
    rules: Rules = field(default_factory=Rules)
    power: StepPower | None = None
    idle_power_w: float = 0.0
    prefix_share: float = 0.0
    prefill_servers: int = 0
    prefill_step_time: StepTime | None = None
    transfer_time: Callable[[int], float] | None = None

    def check(self) -> None:
        """Refuse what cannot be simulated."""
        self.rules.check()
        if self.servers < 1 or self.prefill_servers < 0:
            raise InputError(
                f"Got {self.servers} servers and {self.prefill_servers} for prompts; give at least 1 and 0."
            )
        if not 0 <= self.prefix_share < 1:
            raise InputError(f"The shared prefix is {self.prefix_share} of the input; give a share from 0 to below 1.")
        if self.kv_tokens < self.rules.block_tokens:
            raise InputError(f"A KV cache of {self.kv_tokens} tokens is smaller than a block; the model does not fit.")


def simulate_serving(
    arrivals: Iterable[Arrival],
    deployment: Deployment,
    *,
    concurrency: int | None = None,
    limits: Limits | None = None,
    warmup: int = 0,
    on_done: Callable[[float, float, float, int, int], None] | None = None,
) -> ServingTotals:
    """Run all requests to their end, and return the sums.

    Args:
        arrivals: (seconds, input tokens, output tokens), read one by one, in order of time.
        deployment: What serves them.
        concurrency: Take the requests in a closed loop: so many at a time, whatever their times say.
        limits: What a request must keep to count for the goodput.
        warmup: So many first requests count in no time.
        on_done: Gets the arrival, the first token and the end (seconds), input and output tokens of each request.

    >>> from foretell.scheduling.serving.requests import closed_loop, fixed_lengths
    >>> def step(prefill, before, requests, context): return 0.01
    >>> totals = simulate_serving(closed_loop(fixed_lengths(100, 11, 8)), Deployment(step, 10_000), concurrency=4)
    >>> totals.requests, totals.generated_tokens, round(totals.tpot.mean_s, 6), round(totals.span_s, 6)
    (8, 88, 0.01, 0.22)
    """
    deployment.check()
    if concurrency is not None and concurrency < 1:
        raise InputError(f"Got a concurrency of {concurrency}; it must be at least 1.")
    return _Simulation(deployment, limits or Limits(), concurrency, warmup, on_done).run(arrivals)


class _Simulation:
    def __init__(
        self,
        deployment: Deployment,
        limits: Limits,
        concurrency: int | None,
        warmup: int,
        on_done: Callable[[float, float, float, int, int], None] | None,
    ) -> None:
        self._totals = ServingTotals(limits, energy_j=None if deployment.power is None else 0.0)
        self._deployment = deployment
        self._concurrency = concurrency
        self._warmup = warmup
        self._on_done = on_done
        blocks = deployment.kv_tokens // deployment.rules.block_tokens

        def server(step_time: StepTime, *, first: bool, hands_over: bool = False) -> Server:
            return Server(
                deployment.rules, blocks, step_time, self._totals, power=deployment.power,
                prefix_share=deployment.prefix_share if first else 0.0, hands_over=hands_over,
            )  # fmt: skip

        split = deployment.prefill_servers > 0
        own = deployment.prefill_step_time or deployment.step_time
        self._entries = [server(own, first=True, hands_over=True) for _ in range(deployment.prefill_servers)]
        self._decoders = [server(deployment.step_time, first=not split) for _ in range(deployment.servers)]
        self._servers = self._entries + self._decoders
        self._numbers = {server: number for number, server in enumerate(self._servers)}
        if not split:
            self._entries = self._decoders
        self._split = split
        self._ends: list[tuple[float, int, int]] = []
        self._transfers: list[tuple[float, int, Live]] = []
        self._transferred = 0
        self._arrived = 0
        self._in_system = 0
        self._changed_s = 0.0

    def run(self, arrivals: Iterable[Arrival]) -> ServingTotals:
        """Run until the last request has ended."""
        source = _in_order(arrivals) if self._concurrency is None else iter(arrivals)
        upcoming: Arrival | None = None
        if self._concurrency is None:
            upcoming = next(source, None)
        else:
            self._source = source
            for _ in range(self._concurrency):
                self._take_next(0.0)
            # a loop begins with all its requests at once, so servers start when all have arrived
            for server in self._servers:
                if not server.busy and server.in_flight:
                    self._begin(server, 0.0)
        ends, transfers = self._ends, self._transfers
        while upcoming is not None or ends or transfers:
            next_s = ends[0][0] if ends else math.inf
            if transfers and transfers[0][0] <= next_s and (upcoming is None or transfers[0][0] <= upcoming[0]):
                moment_s, _, request = heapq.heappop(transfers)
                self._enter(request, self._decoders, moment_s)
            elif upcoming is not None and upcoming[0] <= next_s:
                self._arrive(upcoming, upcoming[0])
                upcoming = next(source, None)
            else:
                moment_s, number, version = heapq.heappop(ends)
                server = self._servers[number]
                if version == server.version:
                    self._finish(server, moment_s)
        totals = self._totals
        if totals.energy_j is not None:
            idle_s = totals.span_s * len(self._servers) - totals.busy_s
            totals.energy_j += max(idle_s, 0.0) * self._deployment.idle_power_w
        return totals

    def _take_next(self, now_s: float) -> None:
        """In a closed loop, let the next request arrive; its server is begun by the caller, or is under way."""
        entry = next(self._source, None)
        if entry is not None:
            self._arrive(entry, now_s, begin=False)

    def _arrive(self, entry: Arrival, now_s: float, *, begin: bool = True) -> None:
        _, input_tokens, output_tokens = entry
        if input_tokens < 1 or output_tokens < 1:
            raise InputError(
                f"A request has {input_tokens} input and {output_tokens} output tokens; both are at least 1."
            )
        request = Live(now_s, input_tokens, output_tokens, self._arrived >= self._warmup)
        self._arrived += 1
        self._count(now_s, 1)
        if self._split:
            self._decoders[0].check(request)
        self._enter(request, self._entries, now_s, begin=begin)

    def _enter(self, request: Live, servers: Sequence[Server], now_s: float, *, begin: bool = True) -> None:
        server = servers[0] if len(servers) == 1 else min(servers, key=_in_flight)
        end_s = server.interrupt(now_s) if server.busy else None
        if end_s is not None:
            heapq.heappush(self._ends, (end_s, self._numbers[server], server.version))
        server.add(request)
        if begin and not server.busy:
            self._begin(server, now_s)

    def _begin(self, server: Server, now_s: float) -> None:
        end_s = server.begin(now_s)
        if end_s is not None:
            heapq.heappush(self._ends, (end_s, self._numbers[server], server.version))

    def _finish(self, server: Server, now_s: float) -> None:
        for request in server.finish(now_s):
            if request.generated < request.output_tokens:
                self._move(request, now_s)
            else:
                self._end(request, now_s)
        self._begin(server, now_s)
        if self._concurrency is not None:
            for other in self._servers:  # a request of the loop may have come to a server without work
                if not other.busy and other.in_flight:
                    self._begin(other, now_s)

    def _move(self, request: Live, now_s: float) -> None:
        """The cache of a request goes from a server for prompts to one that generates."""
        transfer = self._deployment.transfer_time
        arrival_s = now_s + (transfer(request.target) if transfer is not None else 0.0)
        request.ready = True
        self._transferred += 1
        heapq.heappush(self._transfers, (arrival_s, self._transferred, request))

    def _end(self, request: Live, now_s: float) -> None:
        self._count(now_s, -1)
        self._totals.add(
            request.arrival_s, request.first_s, now_s, request.input_tokens, request.output_tokens, request.counts
        )
        if self._on_done is not None:
            self._on_done(request.arrival_s, request.first_s, now_s, request.input_tokens, request.output_tokens)
        if self._concurrency is not None:
            self._take_next(now_s)

    def _count(self, now_s: float, change: int) -> None:
        self._totals.in_system_s += self._in_system * (now_s - self._changed_s)
        self._changed_s = now_s
        self._in_system += change


def _in_flight(server: Server) -> int:
    return server.in_flight


def _in_order(arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    last_s = 0.0
    for entry in arrivals:
        if not (entry[0] >= last_s and math.isfinite(entry[0])):
            raise InputError(f"A request arrives at {entry[0]} s, after one at {last_s:g} s: sort them, from 0 on.")
        last_s = entry[0]
        yield entry
