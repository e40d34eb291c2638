"""Properties of predictions over measured models, batches, precisions and devices: how many hold, which do not.

python benchmarks/sane.py [MODELS] [DEVICE,…]      30 models of data/ on h200,a100,h100,l4; exits 1 on a violation
"""

import random
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from foretell.training.examples.graphs import read_graphs, stored_keys  # noqa: E402
from properties import check_model, count  # noqa: E402

BATCHES, DTYPES = (1, 8, 64), ("fp32", "bf16")
TRAINING_SHARE = 4


def main(models: int = 30, devices: str = "h200,a100,h100,l4") -> int:
    keys = sorted(key for key in stored_keys(ROOT / "data") if key.mode in ("inference", "training"))
    random.Random(1).shuffle(keys)
    training = [key for key in keys if key.mode == "training"][: models // TRAINING_SHARE]
    chosen = [key for key in keys if key.mode == "inference"][: models - len(training)] + training
    total: Counter[str] = Counter()
    broken: dict[str, list[str]] = {}
    for number, (key, _, graph) in enumerate(read_graphs(ROOT / "data", chosen), start=1):
        print(f"{number} of {len(chosen)}: {key.spec} {key.mode}", file=sys.stderr)
        for device in devices.split(","):
            for batch_size in BATCHES:
                for dtype in DTYPES:
                    count(check_model(graph, device, batch_size, dtype, key.mode), total, broken)
    for name, checks in total.items():
        cases = broken.get(name, [])
        print(f"{len(cases):6} of {checks:6} broken: {name}" + (f"; such as {cases[0]}" if cases else ""))
    return 1 if broken else 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(main(*([int(arguments[0])] if arguments else []), *arguments[1:2]))
