"""Cold start of ``foretell predict`` as a ratio to importing onnx and onnxruntime, in one run.

python benchmarks/startup.py            exits 1 where the ratio is above 1.8, or torch was imported
"""

import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = Path(__file__).parents[1] / "examples" / "resnet50.onnx"
SOURCE = Path(__file__).parents[1] / "src" / "foretell"
LIMIT = 1.8
ROUNDS = 9
PREDICT = """
import sys
from foretell.cli.main import main
try:
    main(["predict", sys.argv[1]])
finally:
    assert "torch" not in sys.modules
"""


def seconds(arguments: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - started


def main() -> None:
    imports, cold, warm = [], [], []
    compileall.compile_dir(SOURCE, quiet=1)  # as pip does when it installs the package
    with tempfile.TemporaryDirectory() as folder:
        for i in range(ROUNDS):  # alternating, so that a noisy moment hits all three
            imports.append(seconds(["-c", "import onnx, onnxruntime"], dict(os.environ)))
            environment = {**os.environ, "FORETELL_CACHE": f"{folder}/{i}"}
            cold.append(seconds(["-c", PREDICT, str(MODEL)], environment))
            warm.append(seconds(["-c", PREDICT, str(MODEL)], environment))
    base = statistics.median(imports)
    print(f"import onnx, onnxruntime            {base:.3f} s")
    for name, times in (("predict, nothing cached", cold), ("predict, graph cached", warm)):
        print(f"{name:35} {statistics.median(times):.3f} s   {statistics.median(times) / base:.2f} times")
    sys.exit(1 if statistics.median(cold) > LIMIT * base else 0)


if __name__ == "__main__":
    main()
