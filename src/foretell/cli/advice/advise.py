"""Cli: ``foretell advise``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from foretell.cli import options
from foretell.errors import InputError
from foretell.rendering.terminal.numbers import ABSENT, cell
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working

if TYPE_CHECKING:
    from foretell.advisors.placement import Advice, Choice
    from foretell.workflows.advise import TrainingAdvice
    from foretell.workflows.serving.advise_llm import LlmAdvice, LlmChoice

_SHOWN_FRONT = 8
_UNITS = {"usd": ("$", "cost"), "energy": ("kWh", "energy"), "carbon": ("kg CO₂e", "carbon")}
_EXTRAPOLATED, _RISK, _EXTRA = "≈", "!", "+"


@click.command()
@options.model
@click.option("--slo-ms", type=float, help="The longest latency allowed.")
@click.option("--rate", type=float, help="Requests a second.")
@click.option("--budget", type=float, help="Dollars an hour for all instances.")
@click.option("--max-batch", type=int, help="The largest batch size [256].")
@click.option("objective", "--by", default="usd", help="Rank by usd, energy or carbon.")
@click.option("--devices", "-d", default="all", help="Names separated by commas, or all.")
@click.option("--clouds", default="", help="Names separated by commas [all].")
@click.option("--region", help="A cloud's region.")
@click.option("--country", help="Use the power grid of this country [the region's].")
@click.option("--market", default="on-demand", help="on-demand or spot.")
@click.option("--pue", type=float, help="Energy of the data centre over that of the devices [1].")
@click.option("--prices", type=options.PATH, help="A file of your own prices, in addition to those in the package.")
@click.option("--dtype", default="fp16", help="fp32, fp16, bf16, …; in training fp16 and bf16 mean autocast.")
@click.option("mig", "--mig/--no-mig", default=True, help="Try MIG slices too.")
@click.option("--shared", is_flag=True, help="Try two and three copies on one GPU under MPS too.")
@click.option("--train", is_flag=True, help="Advise on training for --steps, not on serving.")
@click.option("--steps", type=click.IntRange(min=1), default=100000, help="Training steps.")
@click.option("--batch-size", "-b", type=int, default=32, help="Items in a batch, in training.")
@click.option("--optimizer", default="sgd", help="sgd or adamw, in training.")
@click.option("--llm", "is_llm", is_flag=True, help="Advise on a language model as engines serve it.")
@click.option("--input-tokens", type=int, default=1024, help="Tokens of a prompt, with --llm.")
@click.option("--output-tokens", type=int, default=256, help="Tokens of an answer, with --llm.")
@click.option("--ttft-ms", type=float, help="The longest time to a first token, with --llm.")
@click.option("--tpot-ms", type=float, help="The longest time between tokens, with --llm.")
@click.option("--weights", default="published,fp8,int4", help="Precisions to try, with --llm; separated by commas.")
@click.option("--engine", default="paged", help="paged, vllm, sglang or trtllm, with --llm.")
@options.inputs
@click.option("--most", type=click.IntRange(min=1), default=8, help="Rows of the table.")
@options.reading
@options.as_json
def run(
    model: str,
    slo_ms: float | None,
    rate: float | None,
    budget: float | None,
    max_batch: int | None,
    objective: str,
    devices: str,
    clouds: str,
    region: str | None,
    country: str | None,
    market: str,
    pue: float | None,
    prices: Path | None,
    dtype: str,
    mig: bool,
    shared: bool,
    train: bool,
    steps: int,
    batch_size: int,
    optimizer: str,
    is_llm: bool,
    input_tokens: int,
    output_tokens: int,
    ttft_ms: float | None,
    tpot_ms: float | None,
    weights: str,
    engine: str,
    inputs: tuple[str, ...],
    most: int,
    trust: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Recommend where to serve or train MODEL: device, slice, batch size, instance, and what it costs."""
    from foretell.advisors.placement import Requirements
    from foretell.workflows.advise import Renting, advise_serving, advise_training

    renting = Renting(options.words(clouds), region, country, market, pue, prices)  # type: ignore[arg-type]
    if is_llm:
        _refuse_beside_llm(slo_ms, max_batch, shared, train)
        from foretell.workflows.serving.advise_llm import advise_llm

        with working(f"Looking for a place for {model}") as say:
            advised = advise_llm(
                model, input_tokens=input_tokens, output_tokens=output_tokens, ttft_ms=ttft_ms, tpot_ms=tpot_ms,
                rate=rate, budget=budget, by=objective, weights=options.words(weights), engine=engine,  # type: ignore[arg-type]
                devices=options.words(devices), renting=renting,
                progress=lambda part: say(f"Looking at {part} for {model}"),
            )  # fmt: skip
        _show_llm(advised, most, as_json=as_json)
        return
    if ttft_ms is not None or tpot_ms is not None:
        raise InputError("--ttft-ms and --tpot-ms are limits of a language model; add --llm, or give --slo-ms.")
    common: dict[str, Any] = {
        "devices": options.words(devices), "dtype": dtype, "input_shape": list(inputs) or None, "trust": trust,
        "use_cache": not no_cache, "memory_limit_gib": memory_limit_gib, "timeout_s": timeout_s,
    }  # fmt: skip
    if train:
        if any(value is not None for value in (slo_ms, rate, budget, max_batch)):
            raise InputError(
                "--slo-ms, --rate, --budget and --max-batch are for serving. Leave them out, or leave out --train."
            )
        if shared:
            raise InputError("--shared is for serving: two trainings on one GPU are asked with foretell share.")
        with working(f"Looking for a place to train {model}"):
            trained = advise_training(model, steps, renting, batch_size=batch_size, optimizer=optimizer, **common)
        _show_training(trained, model, steps, most, as_json=as_json)
        return
    requirements = Requirements(slo_ms, rate, budget, max_batch, objective=objective)  # type: ignore[arg-type]
    with working(f"Looking for a place for {model}") as show:

        def on_place(done: int, places: int) -> None:
            show(f"Looking for a place for {model}: {done} of {places}")

        placement = advise_serving(model, requirements, renting, mig=mig, shared=shared, on_place=on_place, **common)
    if as_json:
        click.echo(json.dumps(placement.to_dict(), indent=1))
        return
    _show(placement, model, most)


def _show(placement: "Advice", model: str, most: int) -> None:
    if not placement.choices:
        click.echo(f"{printable(model)}: no place meets the requirements")
    else:
        _table(
            f"{printable(model)}: the best of {len(placement.choices)} places; $, kWh and kg CO₂e a million inferences",
            ("where", "instance", "batch", "ms", "items/s a GPU", "$", "kWh", "kg CO₂e", "instances", ""),
            [_row(choice) for choice in placement.choices[:most]],
        )
        click.echo(
            f"{_EXTRAPOLATED} extrapolated: device not measured   "
            f"{_RISK} the upper end of the latency interval exceeds --slo-ms"
        )
        front = placement.front[:_SHOWN_FRONT]
        unit = _UNITS[placement.objective][0]
        fast = (
            f"{_ms(choice)} ms {cell(choice.ranked)} {unit} ({choice.candidate.place}, batch "
            f"{choice.candidate.batch_size})"
            for choice in front
        )
        more = f" · {len(placement.front) - len(front)} more in --json" if len(placement.front) > len(front) else ""
        click.echo(f"latency against {_UNITS[placement.objective][1]}: " + printable(" · ".join(fast)) + more)
        for note in dict.fromkeys(choice.offer.note for choice in placement.choices[:most] if choice.offer.note):
            click.echo(f"{_EXTRA} {note}")
        for note in placement.notes:
            click.echo(printable(note))
    if placement.refused:
        click.echo(printable(placement.exclusions))


def _refuse_beside_llm(slo_ms: float | None, max_batch: int | None, shared: bool, train: bool) -> None:
    given = (("--slo-ms", slo_ms is not None), ("--max-batch", max_batch is not None), ("--shared", shared),
             ("--train", train))  # fmt: skip
    for name, is_given in given:
        if is_given:
            raise InputError(f"{name} does not go with --llm; use --ttft-ms, --tpot-ms, --rate and --budget.")


def _show_llm(advice: "LlmAdvice", most: int, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(advice.to_dict(), indent=1, allow_nan=False))
        return
    click.echo(printable(advice.heading()))
    if advice.choices:
        _table(
            f"the best of {len(advice.choices)} places, {advice.input_tokens:,} + {advice.output_tokens:,} tokens",
            ("where", "instance", "requests", "first ms", "token ms", "tokens/s", "$ a million", "copies", ""),
            [_llm_row(choice) for choice in advice.choices[:most]],
        )
        click.echo(
            f"{_EXTRAPOLATED} extrapolated: device not measured   {_RISK} the upper end of an interval breaks a limit"
        )
        for note in dict.fromkeys(note for one in advice.choices[:most] for note in one.prediction.warnings):
            click.echo(printable(note))
    if advice.refused:
        click.echo(printable(advice.exclusions))


def _llm_row(choice: "LlmChoice") -> list[str]:
    one = choice.prediction
    marks = ((_EXTRAPOLATED, one.extrapolated), (_RISK, choice.at_risk))
    return [
        choice.place, choice.instance, str(one.concurrency), cell(one.ttft_ms), cell(one.tpot_ms),
        cell(one.tokens_per_s), cell(choice.usd_per_million_tokens), str(choice.copies),
        " ".join(mark for mark, holds in marks if holds),
    ]  # fmt: skip


def _ms(choice: "Choice") -> str:
    return cell(choice.candidate.latency_ms)


def _row(choice: "Choice") -> list[str]:
    candidate, cost = choice.candidate, choice.cost
    marks = ((_EXTRAPOLATED, not candidate.calibrated), (_RISK, choice.at_risk), (_EXTRA, bool(choice.offer.note)))
    return [
        candidate.place, choice.offer.name, str(candidate.batch_size), _ms(choice), cell(candidate.items_per_s),
        _usd(choice), cell(choice.kwh_per_million), cell(cost.kg_co2e_per_million),
        ABSENT if choice.fleet is None else f"{choice.fleet.instances.value:g}",
        " ".join(mark for mark, holds in marks if holds),
    ]  # fmt: skip


def _usd(choice: "Choice") -> str:
    """Dollars for a million inferences; with --rate, idle time of the rented instances is included."""
    return cell(choice.usd_per_million)


def _show_training(advice: "TrainingAdvice", model: str, steps: int, most: int, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(advice.to_dict(), indent=1))
        return
    rows = [
        [
            choice.prediction.device, choice.offer.name, cell(choice.prediction.latency_ms), cell(choice.cost.hours),
            cell(choice.cost.usd), cell(choice.cost.kwh), cell(choice.cost.kg_co2e), choice.offer.note,
        ]
        for choice in advice.choices[:most]
    ]  # fmt: skip
    head = ("device", "instance", "ms a step", "hours", "$", "kWh", "kg CO₂e", "")
    _table(f"{printable(model)}: {steps:,} steps, the cheapest of {len(advice.choices)} places", head, rows)
    for refusal in advice.refused:
        click.echo(f"not {printable(refusal.place)}: {printable(refusal.reason)}")


def _table(title: str, head: tuple[str, ...], rows: list[list[str]]) -> None:
    from rich import box
    from rich.table import Table

    from foretell.rendering.terminal.prediction import console

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for name in head:
        table.add_column(name, justify="left" if name in ("where", "instance", "device", "") else "right")
    for row in rows:
        table.add_row(*map(printable, row))
    console().print(table)
