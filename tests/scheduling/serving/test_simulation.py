"""Serving: tokens are conserved, queueing theory holds, and steps taken together equal steps taken one by one."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from foretell.errors import InputError
from foretell.scheduling.serving import (
    ENGINES,
    Arrival,
    Deployment,
    Limits,
    Rules,
    ServingTotals,
    closed_loop,
    fixed_lengths,
    poisson_arrivals,
    remembered,
    simulate_serving,
)
from foretell.scheduling.serving.server import Server


def step(prefill_tokens: int, prefill_context: float, decode_requests: int, decode_context: float) -> float:
    """A step of a server that reads weights and caches: linear in everything."""
    return 5e-3 + 2e-5 * (prefill_tokens + decode_requests) + 1e-8 * prefill_context + 2e-8 * decode_context


def mixed_requests(count: int, rate: float, seed: int = 0) -> Iterator[Arrival]:
    """Poisson arrivals of requests with very different lengths."""
    rng = random.Random(seed)
    lengths = ((rng.randint(1, 1500), rng.choice((1, 2, 17, rng.randint(1, 400)))) for _ in range(count))
    return poisson_arrivals(lengths, rate, seed)


DEPLOYMENTS = {
    "vllm": Deployment(step, 200_000),
    "small budget": Deployment(step, 200_000, rules=Rules(token_budget=300, max_requests=16)),
    "preempting": Deployment(step, 4_000),
    "one request": Deployment(step, 2_000, rules=Rules(max_requests=1)),
    "sglang": Deployment(step, 6_000, rules=ENGINES["sglang"]),
    "trtllm": Deployment(step, 6_000, rules=ENGINES["trtllm"]),
    "prefix": Deployment(step, 5_000, prefix_share=0.5),
    "replicas": Deployment(step, 5_000, servers=3),
    "apart": Deployment(step, 5_000, servers=2, prefill_servers=2, transfer_time=lambda tokens: 1e-6 * tokens),
    "apart, preempting": Deployment(step, 2_500, prefill_servers=1),
}


@pytest.mark.parametrize("concurrency", [None, 1, 40])
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_no_token_is_lost(name: str, concurrency: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request ends, steps generate exactly what was asked for, and all blocks come back."""
    servers: list[Server] = []
    made = Server.__init__

    def remember(self: Server, *arguments: object, **options: object) -> None:
        made(self, *arguments, **options)  # type: ignore[arg-type]
        servers.append(self)

    monkeypatch.setattr(Server, "__init__", remember)
    ended: list[tuple[float, float, float, int, int]] = []
    requests = list(mixed_requests(400, 20.0))
    totals = simulate_serving(
        iter(requests), DEPLOYMENTS[name], concurrency=concurrency, on_done=lambda *own: ended.append(own)
    )
    assert totals.requests == len(ended) == 400
    assert sorted(own[3:] for own in ended) == sorted(request[1:] for request in requests)
    assert totals.generated_tokens == totals.output_tokens == sum(request[2] for request in requests)
    # whatever is computed again was computed before; a preempted request also computes the token it generated last
    asked = totals.input_tokens - totals.cached_tokens + totals.recomputed_tokens
    assert asked <= totals.prefilled_tokens <= asked + totals.preemptions
    assert all(arrival <= first <= end for arrival, first, end, _, _ in ended)
    for server in servers:
        assert not server.running
        assert not server.waiting
        held = server._prefix_tokens // server.rules.block_tokens
        assert server._free + held == server.blocks
        assert (server._decoding, server._offsets, server._promised, sum(server._phases)) == (0, 0, 0, 0)
    if "preempting" in name and concurrency != 1:
        assert totals.preemptions
    if name == "trtllm":
        assert not totals.preemptions


def one_by_one(arrivals: list[Arrival], rules: Rules, kv_tokens: int) -> list[tuple[float, float]]:
    """The same server token by token, with a block table for each request: slow and simple."""
    blocks, queue, waiting, running, now, ended = kv_tokens // rules.block_tokens, list(arrivals), [], [], 0.0, []
    held: dict[int, int] = {}

    def need(tokens: int) -> int:
        return math.ceil(tokens / rules.block_tokens)

    live = {}
    while queue or waiting or running:
        while queue and queue[0][0] <= now:
            arrival, inputs, outputs = queue.pop(0)
            number = len(live)
            live[number] = {"a": arrival, "in": inputs, "out": outputs, "gen": 0, "done": 0, "first": None}
            held[number] = 0
            waiting.append(number)
        if not waiting and not running:
            now = queue[0][0]
            continue
        budget, scheduled, preempted = rules.token_budget, {}, False
        # a token for each that generates, the oldest first; then chunks
        for number in sorted(
            running, key=lambda n: (live[n]["done"] < live[n]["in"] + live[n]["gen"] - 1, running.index(n))
        ):
            if number not in running or budget <= 0:
                continue
            own = live[number]
            tokens = min(own["in"] + own["gen"] - own["done"], budget)
            while need(own["done"] + tokens) - held[number] > blocks - sum(held.values()) and number in running:
                victim = running.pop()
                waiting.insert(0, victim)
                live[victim]["done"], held[victim], preempted = 0, 0, True
                budget += scheduled.pop(victim, 0)
            if number in running:
                held[number] = max(held[number], need(own["done"] + tokens))
                scheduled[number] = tokens
                budget -= tokens
        while waiting and not preempted and budget > 0 and len(running) < rules.max_requests:
            own = live[waiting[0]]
            tokens = min(own["in"] + own["gen"], budget)
            if need(tokens) > blocks - sum(held.values()):
                break
            number = waiting.pop(0)
            running.append(number)
            held[number], scheduled[number] = need(tokens), tokens
            budget -= tokens
        prefill = prefill_context = decode = decode_context = 0.0
        for number, tokens in scheduled.items():
            own = live[number]
            attended = tokens * (own["done"] + (tokens + 1) / 2)
            if own["gen"] and own["done"] == own["in"] + own["gen"] - 1:
                decode, decode_context = decode + 1, decode_context + attended
            else:
                prefill, prefill_context = prefill + tokens, prefill_context + attended
        now += step(int(prefill), prefill_context, int(decode), decode_context)
        for number, tokens in scheduled.items():
            own = live[number]
            own["done"] += tokens
            if own["done"] == own["in"] + own["gen"]:
                own["gen"] += 1
                own["first"] = own["first"] or now
                if own["gen"] == own["out"]:
                    running.remove(number)
                    held[number] = 0
                    ended.append((own["first"] - own["a"], now - own["a"]))
    return sorted(ended)


@pytest.mark.parametrize(
    ("rules", "kv_tokens"),
    [(Rules(), 100_000), (Rules(token_budget=256, max_requests=8), 100_000), (Rules(max_requests=12), 4_096)],
)
def test_stretches_equal_single_steps(rules: Rules, kv_tokens: int) -> None:
    """Times of every request are those of a simulation that makes every step by itself, also where it preempts."""
    arrivals = list(mixed_requests(120, 8.0, seed=3))
    ended: list[tuple[float, float]] = []
    totals = simulate_serving(
        iter(arrivals),
        Deployment(step, kv_tokens, rules=rules),
        on_done=lambda arrival, first, end, *_: ended.append((first - arrival, end - arrival)),
    )
    expected = one_by_one(arrivals, rules, kv_tokens)
    assert sorted(ended) == [pytest.approx(own, rel=1e-9, abs=1e-9) for own in expected]
    assert totals.stretches < 0.7 * totals.steps
    if kv_tokens < 10_000:
        assert totals.preemptions


def test_littles_law() -> None:
    """The mean number of requests is their rate times their mean time: two sums that share nothing but the events."""
    totals = simulate_serving(mixed_requests(2_000, 6.0), DEPLOYMENTS["vllm"])
    rate = totals.requests / totals.span_s
    assert totals.mean_in_system == pytest.approx(rate * totals.latency.mean_s, rel=1e-9)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_fixed_service_is_m_d_1(load: float) -> None:
    """One request at a time that takes a fixed time: mean waiting is that of M/D/1, within its confidence."""
    service_s, means = 0.02, []
    deployment = Deployment(lambda *_: service_s, 100, rules=Rules(max_requests=1))
    for seed in range(10):
        arrivals = poisson_arrivals(fixed_lengths(10, 1, 5_000), load / service_s, seed)
        means.append(simulate_serving(arrivals, deployment, warmup=200).ttft.mean_s - service_s)
    expected = load / (2 * (1 - load)) * service_s
    mean = sum(means) / len(means)
    error = math.sqrt(sum((own - mean) ** 2 for own in means) / (len(means) - 1) / len(means))
    assert abs(mean - expected) < 3.25 * error  # Student's t, 99 %, nine degrees of freedom
    assert error < 0.05 * expected


def test_batch_of_equal_requests_by_hand() -> None:
    """Four requests of 100 and 11 tokens at once: one step for the prompts, ten that generate."""
    totals = simulate_serving(closed_loop(fixed_lengths(100, 11, 4)), Deployment(step, 10_000), concurrency=4)
    first_s = step(400, 4 * 100 * 101 / 2, 0, 0)
    rest_s = sum(step(0, 0, 4, 4 * (101 + tick)) for tick in range(10))
    assert totals.ttft.mean_s == pytest.approx(first_s)
    assert totals.latency.mean_s == pytest.approx(first_s + rest_s)
    assert totals.tpot.mean_s == pytest.approx(rest_s / 10)
    assert (totals.steps, totals.stretches) == (11, 2)


def test_prefix_caching_and_split_servers_help() -> None:
    """A shared prefix shortens the first token; servers apart keep prompts out of the way of generation."""

    def run(deployment: Deployment) -> ServingTotals:
        return simulate_serving(poisson_arrivals(fixed_lengths(2_000, 100, 300), 8.0), deployment)

    together = run(Deployment(step, 100_000, servers=2))
    cached = run(Deployment(step, 100_000, servers=2, prefix_share=0.8))
    apart = run(Deployment(step, 100_000, prefill_servers=1))
    assert cached.ttft.mean_s < 0.8 * together.ttft.mean_s
    assert cached.cached_tokens == 298 * 1_600  # the first request of each server computes it
    assert apart.tpot.percentile_s(99) < together.tpot.percentile_s(99)


def test_transfer_delays_the_second_token() -> None:
    """The KV cache of a prompt takes its time between the first and the second token."""
    times = [
        simulate_serving(
            [(0.0, 100, 2)], Deployment(step, 1_000, prefill_servers=1, transfer_time=lambda tokens, s=s: s * tokens)
        ).latency.mean_s
        for s in (0.0, 0.01)
    ]
    assert times[1] - times[0] == pytest.approx(1.0)


def test_goodput_counts_requests_within_limits() -> None:
    """Limits that all keep, none keeps, and one that some keep."""

    def run(limits: Limits) -> ServingTotals:
        return simulate_serving(mixed_requests(300, 6.0), DEPLOYMENTS["vllm"], limits=limits)

    free = run(Limits())
    assert free.goodput_per_s == free.requests_per_s
    assert run(Limits(ttft_ms=1e-3)).good == 0
    median = run(Limits(ttft_ms=1e3 * free.ttft.percentile_s(50)))
    assert 0.4 < median.good / 300 < 0.6


def test_energy_is_power_times_time() -> None:
    """Busy and idle power, each over its time."""
    deployment = Deployment(step, 10_000, power=lambda *_: 500.0, idle_power_w=100.0)
    totals = simulate_serving(poisson_arrivals(fixed_lengths(10, 5, 50), 1.0), deployment)
    assert totals.energy_j == pytest.approx(500 * totals.busy_s + 100 * (totals.span_s - totals.busy_s))
    assert "energy_j_per_token" in totals.to_dict()
    assert "energy_j" not in simulate_serving([(0.0, 1, 1)], Deployment(step, 100)).to_dict()


def test_remembered_step_times_are_close() -> None:
    """Rounding the arguments moves the results by less than its resolution."""
    exact = simulate_serving(mixed_requests(300, 6.0), DEPLOYMENTS["vllm"])
    close = simulate_serving(mixed_requests(300, 6.0), replace(DEPLOYMENTS["vllm"], step_time=remembered(step)))
    assert close.latency.mean_s == pytest.approx(exact.latency.mean_s, rel=0.02)


@pytest.mark.parametrize(
    ("arrivals", "deployment", "options", "says"),
    [
        ([(0.0, 900, 200)], Deployment(step, 1_000), {}, "does not fit in a KV cache of 992"),
        ([(0.0, 0, 1)], Deployment(step, 1_000), {}, "at least 1"),
        ([(2.0, 1, 1), (1.0, 1, 1)], Deployment(step, 1_000), {}, "sort them"),
        ([], Deployment(step, 1_000, rules=Rules(token_budget=8)), {}, "raise the token budget to 256"),
        ([], Deployment(step, 1_000, servers=0), {}, "at least 1"),
        ([], Deployment(step, 1_000, prefix_share=1.0), {}, "below 1"),
        ([], Deployment(step, 1), {}, "does not fit"),
        ([], Deployment(step, 1_000), {"concurrency": 0}, "at least 1"),
        ([(0.0, 1, 1)], Deployment(lambda *_: math.nan, 1_000), {}, "above 0"),
    ],
)
def test_refusals(arrivals: list[Arrival], deployment: Deployment, options: dict[str, int], says: str) -> None:
    """One line says what would work."""
    with pytest.raises(InputError, match=says):
        simulate_serving(arrivals, deployment, **options)  # type: ignore[arg-type]


def test_nothing_to_do() -> None:
    """No request, no time."""
    totals = simulate_serving([], Deployment(step, 1_000))
    assert totals.to_dict()["requests"] == 0
    assert totals.span_s == totals.tokens_per_s == 0
