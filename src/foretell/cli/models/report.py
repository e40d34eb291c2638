"""Cli: ``foretell report``."""

from pathlib import Path

import click

from foretell.cli import options
from foretell.errors import InputError
from foretell.files import write_whole
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working
from foretell.units import size


@click.command()
@options.model
@click.option("--out", "-o", type=options.OutputFile(), default=Path("report.html"), help="The page to write.")
@click.option("--device", "-d", default="h200", help="The device that most of the report is about.")
@options.batch_size
@options.inputs
@options.dtype
@options.mode
@click.option("--optimizer", help="sgd (momentum) or adamw, in training.")
@options.context
@click.option(
    "--devices",
    default="",
    help="Devices to compare and to advise on, separated by commas, or all [a few to compare, all for advice].",
)
@click.option("--llm", "is_llm", is_flag=True, help="Report where to serve a language model, as advise --llm does.")
@click.option("--input-tokens", type=int, default=1024, help="Tokens of a prompt, with --llm.")
@click.option("--output-tokens", type=int, default=256, help="Tokens of an answer, with --llm.")
@click.option("--ttft-ms", type=float, help="The longest time to a first token, with --llm.")
@click.option("--tpot-ms", type=float, help="The longest time between tokens, with --llm.")
@click.option("--weights", default="published,fp8,int4", help="Precisions to try, with --llm; separated by commas.")
@click.option("--engine", default="paged", help="paged, vllm, sglang or trtllm, with --llm.")
@click.option("--slo-ms", type=float, help="The longest latency allowed.")
@click.option("--rate", type=float, help="Requests a second.")
@click.option("--budget", type=float, help="Dollars an hour for all instances.")
@click.option("--max-batch", type=int, help="The largest batch size [256].")
@click.option("--clouds", default="", help="Names separated by commas [all].")
@click.option("--region", help="A cloud's region.")
@click.option("--country", help="Use the power grid of this country [the region's].")
@click.option("--pue", type=float, help="Energy of the data centre over that of the devices [1].")
@click.option("--market", default="on-demand", help="on-demand or spot.")
@click.option("--prices", type=options.PATH, help="A file of your own prices, in addition to those in the package.")
@options.reading
@options.allow_unknown
def run(
    model: str,
    out: Path,
    device: str,
    batch_size: int,
    inputs: tuple[str, ...],
    dtype: str,
    mode: str,
    optimizer: str | None,
    context: int | None,
    devices: str,
    is_llm: bool,
    input_tokens: int,
    output_tokens: int,
    ttft_ms: float | None,
    tpot_ms: float | None,
    weights: str,
    engine: str,
    slo_ms: float | None,
    rate: float | None,
    budget: float | None,
    max_batch: int | None,
    clouds: str,
    region: str | None,
    country: str | None,
    pue: float | None,
    market: str,
    prices: Path | None,
    trust: bool,
    allow_unknown: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
) -> None:
    """Write all predictions for MODEL into one HTML page that needs no network."""
    from foretell.advisors.placement import Requirements
    from foretell.rendering.html.report import report_page
    from foretell.workflows.advise import Renting
    from foretell.workflows.report import gather

    renting = Renting(options.words(clouds), region, country, market, pue, prices)  # type: ignore[arg-type]
    if is_llm:
        _refuse_beside_llm(slo_ms, max_batch, inputs, mode)
        from foretell.workflows.serving.report_llm import report_llm

        with working(f"Writing a report of {model}") as say:
            text = report_llm(
                model, input_tokens=input_tokens, output_tokens=output_tokens, ttft_ms=ttft_ms, tpot_ms=tpot_ms,
                rate=rate, budget=budget, weights=options.words(weights), engine=engine,
                devices=options.words(devices) or ("all",), renting=renting,
                progress=lambda part: say(f"Looking at {part} for {model}"),
            )  # fmt: skip
        _write(out, text.encode())
        return
    if ttft_ms is not None or tpot_ms is not None:
        raise InputError("--ttft-ms and --tpot-ms are limits of a language model; add --llm, or give --slo-ms.")
    with working(f"Writing a report of {model}") as on_part:
        report = gather(
            model,
            device=device,
            batch_size=batch_size,
            input_shape=list(inputs) or None,
            dtype=dtype,
            mode=mode,
            optimizer=optimizer,
            context=context,
            devices=options.words(devices) or None,
            requirements=Requirements(slo_ms, rate, budget, max_batch),
            renting=renting,
            trust=trust,
            allow_unknown=allow_unknown,
            use_cache=not no_cache,
            memory_limit_gib=memory_limit_gib,
            timeout_s=timeout_s,
            on_part=on_part,
        )
        page = report_page(report).encode()
    _write(out, page)
    for part, why in report.missing.items():
        click.echo(f"note: the report lacks {part}: {printable(why)}", err=True)


def _write(out: Path, page: bytes) -> None:
    try:
        write_whole(out, page)
    except OSError as error:
        raise InputError(f"Cannot write {out}: {error.strerror}. Choose another --out.") from error
    click.echo(f"written: {printable(str(out))} ({size(len(page))})")


def _refuse_beside_llm(slo_ms: float | None, max_batch: int | None, inputs: tuple[str, ...], mode: str) -> None:
    given = (("--slo-ms", slo_ms is not None), ("--max-batch", max_batch is not None), ("--input", bool(inputs)),
             ("--mode", mode != "inference"))  # fmt: skip
    for name, is_given in given:
        if is_given:
            raise InputError(f"{name} does not go with --llm; use --ttft-ms, --tpot-ms, --rate and --budget.")
