"""Lab: a grid of encoders, as chapter 6 of the thesis has it: batch sizes × lengths × fp32, fp16 and 4-bit weights.

    PYTHONPATH=src:out/packages python3 -m lab.campaigns.serving.encoder_grid OUT.jsonl --seconds 45 [--dry]

4-bit is what the thesis used: NF4 weights by bitsandbytes (blocks of 64), which are unpacked to fp16 before each
product. A forward pass is captured and replayed; memory is the peak of the allocator; power is read while it is
replayed for half a second. Each encoder and precision gets the same time, and its settings come in random order.
"""

import argparse
import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretell.profiling.zoos.hf_architectures import architecture
from lab.campaigns.serving.measure import read_lines

BATCHES, LENGTHS, DTYPES = (1, 4, 16, 64, 256), (16, 64, 128, 384, 512), ("fp32", "fp16", "nf4")
_MOST_TOKENS = 32768
_ENERGY_S, _ENERGY_SHARE = 0.6, 0.25
Row = dict[str, Any]


def encoders() -> Iterator[str]:
    """The nine encoders of the thesis, as specs whose layers their arguments determine."""
    for hidden, layers in ((768, 12), (1024, 24)):
        yield str(architecture("bert", hidden, layers, hidden // 64, hidden * 4, 30522))
        yield str(architecture("roberta", hidden, layers, hidden // 64, hidden * 4, 50265, max_position_embeddings=514))
    yield str(architecture("xlm-roberta", 768, 12, 12, 3072, 250002, max_position_embeddings=514))
    yield str(architecture("distilbert", 768, 6, 12, 3072, 30522))
    for hidden, layers in ((768, 6), (768, 12), (1024, 24)):
        yield str(architecture("deberta-v2", hidden, layers, hidden // 64, hidden * 4, 128100))


def settings(spec: str) -> list[Row]:
    """The grid of one encoder, shuffled; whether energy is measured is part of the draw."""
    draw = random.Random(spec)
    rows = [
        {"spec": spec, "batch_size": batch, "tokens": tokens, "dtype": dtype}
        for batch in BATCHES
        for tokens in LENGTHS
        for dtype in DTYPES
        if batch * tokens <= _MOST_TOKENS
    ]
    draw.shuffle(rows)
    return [{**row, "with_energy": draw.random() < _ENERGY_SHARE} for row in rows]


def quantised(model: Any) -> Any:
    """The model with every linear layer's weight in NF4, in place; biases, norms and embeddings stay."""
    import bitsandbytes
    import torch

    class Linear4Bit(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, linear: Any) -> None:
            super().__init__()
            packed, self.state = bitsandbytes.functional.quantize_4bit(
                linear.weight.data.contiguous(), blocksize=64, quant_type="nf4"
            )
            self.register_buffer("packed", packed)
            self.bias = linear.bias

        def forward(self, x: Any) -> Any:
            return bitsandbytes.matmul_4bit(x, self.packed.t(), quant_state=self.state, bias=self.bias)

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear:
                setattr(module, name, Linear4Bit(child))
    return model


def build(spec: str, dtype: str, device: str) -> Any:
    """The model in eval mode on the device, made there."""
    import torch

    from foretell.profiling.zoos.huggingface import EncoderZoo

    zoo = EncoderZoo()
    zoo.prepare()
    with torch.device(device):
        model = zoo.build(spec).model.to(torch.float32 if dtype == "fp32" else torch.float16)
    return quantised(model) if dtype == "nf4" else model


def measure(row: Row, model: Any, vocabulary: int, runtime: Any) -> Row:
    """The row with its time, memory and perhaps energy, or with an error."""
    import torch

    from foretell.profiling.runtimes.cuda import CaptureError
    from foretell.profiling.steps import Step

    tokens = torch.randint(0, vocabulary, (row["batch_size"], row["tokens"]), device=runtime.device)
    step = Step(lambda: model(input_ids=tokens), lambda: None)
    try:
        runtime.reset_memory()
        memory, _ = runtime.warm_up(step, 2)
        try:
            measured = runtime.measure(step, energy=row["with_energy"], eager=False)
        except CaptureError:  # the sum of an uncaptured run's kernels, and no energy
            measured, _ = runtime.measure_uncaptured(step, model)
        kept = ("latency_ms", "latency_cv", "latency_source", "energy_j", "power_w", "clock_mhz")
        result = {name: measured[name] for name in kept if measured.get(name) is not None}
        return {**row, "memory_mib": memory["memory_mib"], **result}
    except Exception as error:  # noqa: BLE001 - the line says what failed, and the grid goes on
        torch.cuda.synchronize()
        return {**row, "error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def run(out: Path, seconds: float, known: set[tuple[Any, ...]]) -> int:
    """Measure until the time is over, the same time for each encoder and precision; 4-bit comes first."""
    import torch

    from foretell.processes.device_lock import DeviceLock
    from foretell.profiling.campaign.plan import Measuring
    from foretell.profiling.runtimes.cuda import CudaRuntime

    until, count = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode(), out.open("a") as file:
        lock = DeviceLock(Path(folder), 0)
        lock.open()
        runtime = CudaRuntime(lock, Measuring(energy_s=_ENERGY_S, tries=1))
        runtime.open(tracing=False)
        turns = [(spec, dtype) for dtype in reversed(DTYPES) for spec in encoders()]
        for number, (spec, dtype) in enumerate(turns):
            stop = time.monotonic() + (until - time.monotonic()) / (len(turns) - number)
            runtime.clear()
            try:
                model = build(spec, dtype, runtime.device)
            except Exception as error:  # noqa: BLE001 - as above
                file.write(json.dumps({"spec": spec, "dtype": dtype, "error": str(error)[:200]}) + "\n")
                continue
            runtime.clear()
            vocabulary = model.config.vocab_size
            for row in settings(spec):
                if row["dtype"] != dtype or _name(row) in known:
                    continue
                if time.monotonic() > stop:
                    break
                file.write(json.dumps(measure(row, model, vocabulary, runtime)) + "\n")
                file.flush()
                count += 1
            del model
            gc.collect()
    return count


def _name(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("spec", "batch_size", "tokens", "dtype"))


def main(argv: list[str] | None = None) -> None:
    """Measure the grid, or with ``--dry`` build the smallest encoder on a CPU and run it once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--known", type=Path, action="append", default=[], help="files whose rows are not repeated")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args(argv)
    if options.dry:
        import torch

        for dtype in DTYPES:
            model = build(next(encoders()), dtype, "cpu").to(torch.float32 if dtype != "nf4" else torch.float16)
            with torch.inference_mode():
                states = model(input_ids=torch.randint(0, 100, (2, 16))).last_hidden_state
            sys.stdout.write(
                f"{dtype}: {tuple(states.shape)}, mean of squares {float(states.float().square().mean())}\n"
            )
        return
    lines = [json.loads(line) for file in options.known for line in read_lines(file)]
    known = {_name(line) for line in lines if "latency_ms" in line}
    sys.stdout.write(f"{run(options.out, options.seconds, known)} settings measured\n")


if __name__ == "__main__":
    main()
