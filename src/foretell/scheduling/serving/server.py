"""Scheduling: serving: one server of a language model: continuous batching, step by step, equal steps taken together.

Idea: a request that generates is not touched between its first and its last token. All of them advance together by a
tick, so the server keeps one number of ticks, the tick at which each request ends (a heap), and sums: of their
contexts, and of how many will need a new block of KV cache at which tick. A step with a chunk of a prompt is simulated
by itself. Steps that only generate, in which nothing can change, are taken as one stretch: until the next request ends,
or the cache would be full. The time of such a step is taken to be a line between the first and the last, which is exact
where it is linear in the context. When a request arrives meanwhile, the stretch is cut at the end of the running step.

The rules are those of vLLM's scheduler (v1): every step has a budget of tokens; requests that run come first, a token
for each that generates, then chunks of prompts; what is left admits requests in the order of their arrival. When there
is no block for a token, the request admitted last loses its blocks, goes back to the head of the queue, and is computed
again. SGLang computes prompts in steps of their own, before anything is generated; TensorRT-LLM admits a request only
when the blocks of its whole answer are there.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from foretell.errors import InputError
from foretell.scheduling.serving.totals import ServingTotals


class StepTime(Protocol):
    """How long one step takes, in seconds.

    ``prefill_tokens`` tokens of prompts are computed, and ``decode_requests`` requests generate a token each. A context
    is a sum over these tokens: of the tokens that each attends to, itself included. So a prompt of n tokens from the
    beginning has a prefill context of n (n + 1) / 2, and a request with n tokens in its cache adds n + 1 to the decode
    context.
    """

    def __call__(
        self, prefill_tokens: int, prefill_context: float, decode_requests: int, decode_context: float, /
    ) -> float:
        """The seconds of one step."""
        ...


StepPower = StepTime
"""The mean power of such a step, in watts."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How an engine makes steps.

    Attributes:
        token_budget: The most tokens of a step (vLLM's max_num_batched_tokens).
        max_requests: The most requests that run at once (max_num_seqs).
        mixed: Whether prompts and generation share steps; if not, prompts come first.
        reserved: The share of the blocks that running requests may still need which must be free before another is
            admitted. 0 may preempt, 1 never does.
        block_tokens: Tokens of a block of KV cache.
    """

    token_budget: int = 8192
    max_requests: int = 256
    mixed: bool = True
    reserved: float = 0.0
    block_tokens: int = 16

    def check(self) -> None:
        """Refuse what no engine could do."""
        if self.token_budget < 1 or self.max_requests < 1 or self.block_tokens < 1:
            raise InputError("The token budget, the most requests and the tokens of a block must be at least 1.")
        if self.mixed and self.max_requests > self.token_budget:
            raise InputError(
                f"{self.max_requests:,} requests do not fit in a step of {self.token_budget:,} tokens; "
                f"raise the token budget to {self.max_requests:,} or allow fewer requests."
            )
        if not 0 <= self.reserved <= 1:
            raise InputError(f"The reserved share is {self.reserved}; it must be between 0 and 1.")


# SGLang reserves 0.7 of what answers may need when it starts (init_new_token_ratio), and less later
ENGINES = {
    "vllm": Rules(),
    "sglang": Rules(mixed=False, reserved=0.7, block_tokens=1),
    "trtllm": Rules(reserved=1.0, block_tokens=32),
}


class Live:
    """A request that waits or runs."""

    __slots__ = (
        "arrival_s", "blocks", "computed", "counts", "decoding", "end_tick", "first_s", "generated", "input_tokens",
        "offset", "output_tokens", "ready", "target",
    )  # fmt: skip

    def __init__(self, arrival_s: float, input_tokens: int, output_tokens: int, counts: bool) -> None:
        self.arrival_s = arrival_s
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.counts = counts
        self.first_s = math.nan
        self.generated = 0
        self.target = input_tokens  # tokens to compute before it generates
        self.computed = 0
        self.blocks = 0  # of its own, without those of a shared prefix
        self.decoding = False
        self.offset = 0  # tokens in its cache less the ticks of the server, while it generates
        self.end_tick = 0
        self.ready = False  # whether its cache comes from another server


class Server:
    """One replica. `begin` plans a step or a stretch and says when it ends; `finish` applies it.

    ``hands_over`` says that requests leave after their first token (a server that only computes prompts).
    """

    def __init__(
        self,
        rules: Rules,
        blocks: int,
        step_time: StepTime,
        totals: ServingTotals,
        *,
        power: StepPower | None = None,
        prefix_share: float = 0.0,
        hands_over: bool = False,
    ) -> None:
        self.rules = rules
        self.blocks = blocks
        self.version = 0
        self.waiting: deque[Live] = deque()
        self.running: dict[Live, None] = {}  # in the order of admission
        self.busy = False
        self._step_time = step_time
        self._power = power
        self._totals = totals
        self._prefix_share = prefix_share
        self._hands_over = hands_over
        self._free = blocks
        self._prefix_tokens = 0  # of the longest prefix in the cache, whole blocks
        self._prefilling: list[Live] = []
        self._chunks: list[tuple[Live, int]] = []
        self._tick = 0
        self._decoding = 0
        self._offsets = 0  # sum of the offsets of those that generate
        self._phases = [0] * rules.block_tokens  # how many of them have which offset, modulo the block
        self._promised = 0  # blocks that all running requests will have at their end
        self._ends: list[tuple[int, int, Live]] = []
        self._pushed = 0
        self._ticks = 0  # of the step or stretch under way
        self._begin_s = self._first_s = self._slope_s = 0.0
        self._watts = 0.0

    @property
    def in_flight(self) -> int:
        """Requests that wait or run here."""
        return len(self.waiting) + len(self.running)

    def add(self, request: Live) -> None:
        """Let a request wait."""
        self.check(request)
        self.waiting.append(request)

    def check(self, request: Live) -> None:
        """Refuse a request that could never run."""
        tokens = request.input_tokens + request.output_tokens
        if self._blocks_for(tokens) > self.blocks:
            raise InputError(
                f"A request of {tokens:,} tokens does not fit in a KV cache of "
                f"{self.blocks * self.rules.block_tokens:,}; use more GPUs, fewer bytes a token, or shorter requests."
            )

    def interrupt(self, now_s: float) -> float | None:
        """Cut the stretch under way at the end of the step that runs now; the new end, or None if nothing changes.

        Called before a request is added. Where others wait already, or no more may run, one more changes nothing.
        """
        if self._ticks <= 1 or self._chunks or self.waiting or len(self.running) >= self.rules.max_requests:
            return None
        ticks = self._ticks_until(now_s - self._begin_s)
        if ticks >= self._ticks:
            return None
        self._free += self._growth(self._ticks) - self._growth(ticks)
        self._ticks = ticks
        self.version += 1
        return self._begin_s + self._seconds(ticks)

    def begin(self, now_s: float) -> float | None:
        """Plan what runs next; when it ends, or None if there is nothing to do."""
        self.version += 1
        self.busy = False
        self._chunks = []
        self._ticks = 0
        self._admit_ready()
        mixed = self.rules.mixed
        preempted = False
        if mixed or not (self._prefilling or self.waiting):
            preempted = self._grow(1)
        tokens, context = self._plan_prompts(self.rules.token_budget - (self._decoding if mixed else 0), preempted)
        if not mixed and not tokens and self._decoding:
            # prompts wait and none fits
            if self._prefilling or self.waiting:
                self._grow(1)
        elif not mixed and tokens:
            return self._start(now_s, self._step_time(tokens, context, 0, 0.0), tokens, context, 0)
        if tokens:
            seconds = self._step_time(tokens, context, self._decoding, self._context(0))
            return self._start(now_s, seconds, tokens, context, 1 if self._decoding else 0)
        if not self._decoding:
            if self.waiting:
                raise RuntimeError(f"{len(self.waiting)} requests wait, and an idle server does not admit them")
            return None
        return self._start_stretch(now_s)

    def finish(self, now_s: float) -> list[Live]:
        """Apply the step or stretch that ends now; the requests that leave this server."""
        totals, ticks, left = self._totals, self._ticks, []
        passed_s = now_s - self._begin_s
        totals.busy_s += passed_s
        totals.steps += max(ticks, 1)
        totals.stretches += 1
        if totals.energy_j is not None:
            totals.energy_j += self._watts * passed_s
        if ticks:
            self._tick += ticks
            totals.generated_tokens += ticks * self._decoding
            while self._ends and self._ends[0][0] <= self._tick:
                end_tick, _, request = heapq.heappop(self._ends)
                if request.decoding and request.end_tick == end_tick:
                    self._stop(request)
                    self._remove(request)
                    left.append(request)
        for request, chunk in self._chunks:
            request.computed += chunk
            totals.prefilled_tokens += chunk
            if request.computed < request.target:
                continue
            self._prefilling.remove(request)
            request.generated += 1
            totals.generated_tokens += 1
            if math.isnan(request.first_s):
                request.first_s = now_s
            if request.generated >= request.output_tokens or self._hands_over:
                self._remove(request)
                left.append(request)
            else:
                self._generate(request, request.target)
        self._chunks = []
        self._ticks = 0
        return left

    def _admit_ready(self) -> None:
        """Admit requests whose cache another server computed."""
        while self.waiting and self.waiting[0].ready and len(self.running) < self.rules.max_requests:
            request = self.waiting[0]
            blocks = self._blocks_for(request.target)
            if not self._has_room(request, blocks):
                return
            self.waiting.popleft()
            request.ready = False
            request.blocks = blocks
            self._free -= blocks
            self.running[request] = None
            self._promised += self._final_blocks(request)
            self._generate(request, request.target)

    def _plan_prompts(self, budget: int, preempted: bool) -> tuple[int, float]:
        """Give what is left of a step to prompts; their tokens, and the sum of what these attend to."""
        tokens, context = 0, 0.0
        for request in list(self._prefilling):
            if budget <= 0:
                break
            if request not in self.running:
                continue  # it was preempted for the one before
            chunk = min(request.target - request.computed, budget)
            need = self._blocks_for(request.computed + chunk) - self._cached_blocks(request) - request.blocks
            while need > self._free and request in self.running:
                self._preempt()
                preempted = True
            if request not in self.running:
                break
            budget, tokens = budget - chunk, tokens + chunk
            context += chunk * (request.computed + (chunk + 1) / 2)
            self._take(request, need, chunk)
        while self.waiting and not preempted and budget > 0 and len(self.running) < self.rules.max_requests:
            request = self.waiting[0]
            if request.ready:
                break
            hit, added = self._cached(request)
            chunk = min(request.target - hit, budget)
            need = self._blocks_for(hit + chunk) - (hit + added) // self.rules.block_tokens
            if not self._has_room(request, max(need, 0) + added // self.rules.block_tokens):
                if not self.running and self._forget(0):
                    continue
                break
            self.waiting.popleft()
            self._prefix_tokens += added
            self._free -= added // self.rules.block_tokens
            request.computed = hit
            self._totals.cached_tokens += hit
            self.running[request] = None
            self._promised += self._final_blocks(request)
            self._prefilling.append(request)
            budget, tokens = budget - chunk, tokens + chunk
            context += chunk * (hit + (chunk + 1) / 2)
            self._take(request, max(need, 0), chunk)
        return tokens, context

    def _take(self, request: Live, need: int, chunk: int) -> None:
        request.blocks += max(need, 0)
        self._free -= max(need, 0)
        self._chunks.append((request, chunk))

    def _cached(self, request: Live) -> tuple[int, int]:
        """Tokens of a request that are in the cache, and tokens that it will add to the shared prefix."""
        tokens = self._prefix(request)
        return min(tokens, self._prefix_tokens), max(tokens - self._prefix_tokens, 0)

    def _prefix(self, request: Live) -> int:
        """The shared prefix of a request: whole blocks, and never all of it."""
        if not self._prefix_share:
            return 0
        size = self.rules.block_tokens
        return int(min(self._prefix_share * request.input_tokens, request.input_tokens - 1)) // size * size

    def _forget(self, tokens: int) -> bool:
        """Keep only so many tokens of the shared prefix; whether that frees blocks."""
        freed = max(self._prefix_tokens - tokens, 0) // self.rules.block_tokens
        self._prefix_tokens -= freed * self.rules.block_tokens
        self._free += freed
        return freed > 0

    def _cached_blocks(self, request: Live) -> int:
        return self._prefix(request) // self.rules.block_tokens

    def _final_blocks(self, request: Live) -> int:
        return self._blocks_for(request.input_tokens + request.output_tokens) - self._cached_blocks(request)

    def _has_room(self, request: Live, blocks: int) -> bool:
        if blocks > self._free:
            return False
        if not self.rules.reserved or not self.running:
            return True
        held = self.blocks - self._free - self._prefix_tokens // self.rules.block_tokens
        growth = self._promised + self._final_blocks(request) - held
        return self.rules.reserved * growth <= self._free

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.rules.block_tokens)

    def _generate(self, request: Live, length: int) -> None:
        """From the next tick on a request generates."""
        request.decoding = True
        request.offset = length - self._tick
        request.end_tick = self._tick + request.output_tokens - request.generated
        self._decoding += 1
        self._offsets += request.offset
        self._phases[request.offset % self.rules.block_tokens] += 1
        self._pushed += 1
        heapq.heappush(self._ends, (request.end_tick, self._pushed, request))

    def _stop(self, request: Live) -> None:
        """A request generates no more; what it has in its cache is counted."""
        length = request.offset + self._tick
        request.decoding = False
        request.generated = request.output_tokens - (request.end_tick - self._tick)
        request.blocks = self._blocks_for(length) - self._cached_blocks(request)
        self._decoding -= 1
        self._offsets -= request.offset
        self._phases[request.offset % self.rules.block_tokens] -= 1

    def _remove(self, request: Live) -> None:
        del self.running[request]
        self._free += request.blocks
        self._promised -= self._final_blocks(request)
        request.blocks = 0

    def _preempt(self) -> None:
        """Send the request that was admitted last back to the head of the queue; it is computed again."""
        request = next(reversed(self.running))
        if len(self.running) == 1 and self._forget(self._prefix(request)):
            return
        if request.decoding:
            self._stop(request)
            # its last token is not in the cache yet: it is computed with the rest, which is computed again
            request.target = request.input_tokens + request.generated
            self._totals.recomputed_tokens += request.target - 1
        else:
            self._prefilling.remove(request)
            self._totals.recomputed_tokens += request.computed
        self._remove(request)
        request.computed = 0
        request.ready = False
        self.waiting.appendleft(request)
        self._totals.preemptions += 1

    def _grow(self, ticks: int) -> bool:
        """Take the blocks of some ticks, and preempt while there are too few; whether that was necessary."""
        preempted = False
        while self._decoding and (growth := self._growth(ticks)) > self._free:
            self._preempt()
            preempted = True
        if self._decoding:
            self._free -= growth
        return preempted

    def _growth(self, ticks: int) -> int:
        """How many blocks those that generate need in the next ticks, each when its last block is full."""
        size = self.rules.block_tokens
        turns, rest = divmod(ticks, size)
        return turns * self._decoding + sum(self._phases[-(self._tick + tick) % size] for tick in range(rest))

    def _context(self, ticks: int) -> float:
        """What those that generate attend to after some ticks: their caches and themselves."""
        return self._offsets + self._decoding * (self._tick + ticks + 1)

    def _start(self, now_s: float, seconds: float, tokens: int, context: float, ticks: int) -> float:
        if not (0 < seconds < math.inf):
            raise InputError(f"A step takes {seconds} s; a step time must be a number above 0.")
        self.busy = True
        self._begin_s, self._first_s, self._slope_s, self._ticks = now_s, seconds, 0.0, ticks
        if self._power is not None:
            self._watts = self._power(tokens, context, self._decoding if ticks else 0, self._context(0) if ticks else 0)
        return now_s + seconds

    def _start_stretch(self, now_s: float) -> float:
        """As many steps as nothing changes in; the blocks of the first tick are taken already."""
        while not (self._ends[0][2].decoding and self._ends[0][2].end_tick == self._ends[0][0]):
            heapq.heappop(self._ends)  # it was preempted
        ticks = self._ends[0][0] - self._tick
        first = self._growth(1)
        if self._growth(ticks) - first > self._free:
            # growth rises with the ticks: the most that fit
            low, high = 1, ticks
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self._growth(middle) - first <= self._free else (low, middle)
            ticks = low
        self._free -= self._growth(ticks) - first
        begin_s = self._step_time(0, 0.0, self._decoding, self._context(0))
        self._start(now_s, begin_s, 0, 0.0, ticks)
        if ticks > 1:
            last_s = self._step_time(0, 0.0, self._decoding, self._context(ticks - 1))
            if not (0 < last_s < math.inf):
                raise InputError(f"A step takes {last_s} s; a step time must be a number above 0.")
            self._slope_s = (last_s - begin_s) / (ticks - 1)
            if self._power is not None:
                self._watts = self._power(0, 0.0, self._decoding, self._context(ticks // 2))
        return now_s + self._seconds(ticks)

    def _seconds(self, ticks: int) -> float:
        """How long the first ticks of a stretch take."""
        return ticks * self._first_s + self._slope_s * ticks * (ticks - 1) / 2

    def _ticks_until(self, passed_s: float) -> int:
        """The ticks of a stretch after which at least this time has passed."""
        half = self._slope_s / 2
        linear = self._first_s - half
        if abs(half) * self._ticks < 1e-9 * self._first_s:
            ticks = math.ceil(passed_s / self._first_s)
        else:
            root = linear * linear + 4 * half * passed_s
            ticks = math.ceil((math.sqrt(max(root, 0.0)) - linear) / (2 * half))
        ticks = min(max(ticks, 1), self._ticks)
        # rounding may be off by one
        while ticks > 1 and self._seconds(ticks - 1) >= passed_s:
            ticks -= 1
        while ticks < self._ticks and self._seconds(ticks) < passed_s:
            ticks += 1
        return ticks
