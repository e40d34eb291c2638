"""cli: ``foretell data graphs`` and ``foretell data link``: graphs of what was measured, and whose each kernel is."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from foretell.cli import options
from foretell.cli.printable import printable
from foretell.cli.progress import working

Folder = Annotated[Path, typer.Option("--store", help="A folder of Parquet files.")]
_GRAPHS = "graphs"
_WORST = 20


def make_graphs(
    store: Folder = Path("data"),
    journal: Annotated[Path, typer.Option("--journal", help="Where graphs are kept until all are made.")] = Path(
        "out/graphs"
    ),
    again: Annotated[bool, typer.Option("--again", help="Try once more what failed before.")] = False,
    as_json: options.Json = False,
) -> None:
    """Make the graphs of all measured models that the store lacks; can be stopped and called again."""
    from foretell.workflows import graphs

    keys = graphs.measured_keys(store)

    def tell(number: int, total: int, key: Any, error: str) -> None:
        what = f"{error}" if error else f"{key.spec} {key.mode}"
        typer.echo(printable(f"{number} of {total}: {what}"), err=True)

    counts = graphs.collect_graphs(keys, journal, done=graphs.stored_keys(store), again=again, tell=tell)
    path = graphs.write_graphs(journal, store / _GRAPHS)
    found = {"needed": len(keys), "made": counts["ok"], "failed": counts["build_error"], "file": str(path or "")}
    typer.echo(json.dumps(found, indent=1) if as_json else ", ".join(f"{key} {value}" for key, value in found.items()))


def link_kernels(store: Folder = Path("data"), as_json: options.Json = False) -> None:
    """Tie every traced kernel to the node of its model's graph, and show how much of the time was tied."""
    from foretell.workflows import link

    with working(f"Linking the traces of {store}"):
        links, summary = link.link_store(store, store)
        link.write_links(links, store / _GRAPHS)
    found: dict[str, Any] = {"traces": len(summary.worst), "linked": len(links)}
    found |= {"tied": link.tied_share(summary.total_us), "total": _shares(summary.total_us)}
    found["by_mode"] = {mode: _shares(times) for mode, times in sorted(summary.by_mode.items())}
    found["by_family"] = {family: link.tied_share(times) for family, times in sorted(summary.by_family.items())}
    found["untied"] = dict(summary.untied.most_common(_WORST))
    found["worst"] = [{"share": share, "mode": mode, "spec": spec} for share, mode, spec in summary.worst_first(_WORST)]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    typer.echo(f"{len(links)} of {len(summary.worst)} traces linked; {found['tied']:.2%} of kernel time has a node")
    for mode, shares in found["by_mode"].items():
        typer.echo(f"  {mode}: " + ", ".join(f"{fate} {share:.2%}" for fate, share in shares.items() if share))
    for row in found["worst"]:
        typer.echo(printable(f"  {row['share']:.1%} not tied: {row['spec'][:80]} {row['mode']}"))


def _shares(times: Any) -> dict[str, float]:
    whole = sum(times.values()) or 1.0
    return {fate: time / whole for fate, time in times.most_common()}


def add_commands(app: typer.Typer) -> None:
    """Add both commands to ``foretell data``."""
    app.command("graphs")(make_graphs)
    app.command("link")(link_kernels)
