"""Predictors: a closed loop: a fixed number of clients, each of which asks again as soon as it is answered.

Continuous batching is followed step by step, but steps in which nothing changes are taken together: while no prompt
waits, the same requests generate until the next one ends, and a step's time changes only with the mean context. So a
run costs a few operations a request, not one a token. When the cache is full, an engine that reserves keeps requests
waiting; one that does not sends the youngest back and computes its prompt again.

Limits: one replica, no prefix caching, requests are admitted in order. `foretell.scheduling` has arrivals and traces.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foretell.errors import InputError
from foretell.predictors.llm.engines import Engine
from foretell.predictors.llm.steps import Chunk
from foretell.units import KILO

_MOST_STEPS = 64  # of equal steps at a time: the mean context moves meanwhile


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens of a prompt and of its answer."""

    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class Served:
    """One request: when it came and when its first and last token did, in ms."""

    request: Request
    arrived_ms: float
    first_ms: float
    last_ms: float

    @property
    def ttft_ms(self) -> float:
        """From its arrival to its first token."""
        return self.first_ms - self.arrived_ms

    @property
    def tpot_ms(self) -> float:
        """The mean time between its tokens after the first."""
        return (self.last_ms - self.first_ms) / max(self.request.answer - 1, 1)


@dataclass(slots=True)
class _Running:
    number: int
    request: Request
    arrived_us: float
    done: int = 0  # tokens of the prompt that are computed
    generated: int = 0  # tokens that it had when it was sent back
    first_us: float | None = None
    ends: int = 0  # the step after which it ends
    began: int = 0  # the step in which it began to generate
    prompt: int = 0  # tokens to compute: those of the prompt and those that it had when it was sent back

    def __post_init__(self) -> None:
        self.prompt = self.request.prompt + self.generated


StepTime = Callable[[int, float, Sequence[Chunk]], float]


@dataclass
class ClosedLoop:
    """``step_us(batch, context, chunks)`` is the time of a step; ``capacity`` the tokens that the cache holds."""

    step_us: StepTime
    engine: Engine
    clients: int
    capacity: float
    max_requests: int = 2**31
    _queue: deque[_Running] = field(default_factory=deque)
    _prompts: deque[_Running] = field(default_factory=deque)
    _ends: list[tuple[int, int]] = field(default_factory=list)
    _active: dict[int, _Running] = field(default_factory=dict)
    _served: list[Served] = field(default_factory=list)
    _now_us: float = 0.0
    _step: int = 0
    _context: float = 0.0  # tokens in the cache of those that generate
    _reserved: float = 0.0
    _prompt_tokens: int = 0  # of all prompts that are admitted and not yet computed
    _waited: int = 0  # steps since the first prompt began to wait for others

    def run(self, requests: Sequence[Request]) -> list[Served]:
        """Serve all requests; all clients ask at the start."""
        for request in requests:
            if request.prompt + request.answer > self.capacity:
                raise InputError(
                    f"A request of {request.prompt + request.answer:,} tokens does not fit into a cache of "
                    f"{int(self.capacity):,}."
                )
        self._ahead = deque(_Running(number, request, 0.0) for number, request in enumerate(requests))
        for _ in range(min(self.clients, len(requests))):
            self._ask()
        while len(self._served) < len(requests):
            self._admit()
            if self._prompts and not (left := self._waits()):
                self._waited = 0
                self._prompt_step()
            else:
                steps = self._answer_steps(left if self._prompts else _MOST_STEPS)
                self._waited += steps if self._prompts else 0
        return self._served

    def _ask(self) -> None:
        if self._ahead:
            running = self._ahead.popleft()
            running.arrived_us = self._now_us
            self._queue.append(running)

    def _admit(self) -> None:
        while self._queue and len(self._active) + len(self._prompts) < self.max_requests:
            head = self._queue[0]
            if self.engine.reserves:
                needed, used = head.request.prompt + head.request.answer, self._reserved
            else:
                needed = head.prompt + 1
                used = self._context + self._prompt_tokens
            if used + needed > self.capacity and (self._active or self._prompts):
                return
            self._reserved += head.request.prompt + head.request.answer
            self._prompts.append(self._queue.popleft())
            self._prompt_tokens += head.prompt

    def _waits(self) -> int:
        """For how many steps prompts still wait for others to come; 0 where they do not."""
        if not self._active or self._prompt_tokens >= self.engine.wait_share * self.engine.token_budget:
            return 0
        return max(self.engine.wait_steps - self._waited, 0)

    def _prompt_step(self) -> None:
        """One step with prompts, and with the requests that generate where the engine mixes them."""
        batch = len(self._active) if self.engine.mixes else 0
        left = max(self.engine.token_budget - batch, 1)
        in_chunks = self.engine.chunks
        chunks: list[Chunk] = []
        taking: list[tuple[_Running, int]] = []
        for running in self._prompts:
            rest = running.prompt - running.done
            if not in_chunks and chunks and rest > left:
                break
            take = rest if not in_chunks or rest < left else left
            chunks.append(Chunk(take, running.done))
            taking.append((running, take))
            left -= take
            if left <= 0:
                break
        self._now_us += self.step_us(batch, self._context / batch if batch else 0.0, chunks)
        if batch:
            self._step += 1
            self._context += batch
        for running, take in taking:
            running.done += take
            if running.done == running.prompt:
                self._prompts.popleft()  # prompts are taken in order, and only the last one may be left in part
                self._prompt_tokens -= running.prompt
                self._start(running)
        self._end()
        self._make_room()

    def _start(self, running: _Running) -> None:
        """A prompt is done: its first token is there."""
        if running.first_us is None:
            running.first_us = self._now_us
        left = running.request.answer - running.generated - 1
        running.began, running.ends = self._step, self._step + left
        self._context += running.prompt + 1
        self._active[running.number] = running
        heapq.heappush(self._ends, (running.ends, running.number))

    def _answer_steps(self, most: int) -> int:
        """Steps of those that generate, until the next one ends or the cache is full; how many there were."""
        batch = len(self._active)
        ahead = max(self._ends[0][0] - self._step, 1)
        room = int((self.capacity - self._context) // batch)
        count = max(1, min(ahead, _MOST_STEPS, most, ahead if self.engine.reserves else room))
        mean = self._context / batch + count / 2
        self._now_us += count * self.step_us(batch, mean, ())
        self._step += count
        self._context += count * batch
        self._end()
        self._make_room()
        return count

    def _end(self) -> None:
        while self._ends and self._ends[0][0] <= self._step:
            _, number = heapq.heappop(self._ends)
            running = self._active.get(number)
            if running is None or running.ends > self._step:
                continue
            del self._active[number]
            tokens = running.request.prompt + running.request.answer
            self._context -= tokens
            self._reserved -= tokens
            assert running.first_us is not None
            times_ms = running.arrived_us / KILO, running.first_us / KILO, self._now_us / KILO
            self._served.append(Served(running.request, *times_ms))
            self._ask()

    def _make_room(self) -> None:
        """Send the youngest back while the next step would not fit."""
        if self.engine.reserves:
            return
        while len(self._active) > 1 and self._context + len(self._active) > self.capacity:
            number = max(self._active)
            running = self._active.pop(number)
            made = running.generated + 1 + self._step - running.began
            self._context -= running.request.prompt + made
            self._ends.remove((running.ends, number))
            heapq.heapify(self._ends)
            running.done, running.generated, running.prompt = 0, made, running.request.prompt + made
            self._reserved -= running.request.prompt + running.request.answer
            self._queue.appendleft(running)
