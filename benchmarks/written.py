"""Cold start of ``foretell predict`` from a config.json: a language model that is written, beside the same one traced.

python benchmarks/written.py            exits 1 where a written model takes more than a fifth of a traced one's time
python benchmarks/written.py --no-trace     the written models alone, in a few seconds

Prints wall-clock and processor seconds from the start of the process to the answer, and the most memory of a process.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from foretell.frontends.huggingface.configs import load_config

LIMIT = 0.2
ROUNDS = 3
ARGUMENTS = ["--device", "h200", "--mode", "decode", "--dtype", "bf16", "--context", "1024"]
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61,
    "hidden_size": 7168, "max_position_embeddings": 163840,
    "rope_scaling": {
        "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
}  # fmt: skip
WRITE = "import sys; from foretell.cli.main import main; main(['predict', *sys.argv[1:]])"
TRACE = "from foretell.frontends.huggingface import frontend; frontend.plan = lambda *_: None;" + WRITE


def run(program: str, folder: Path) -> tuple[float, float, float]:
    """Wall-clock seconds, processor seconds and MiB of one prediction; one that does not fit ends with 1."""
    environment = dict(os.environ, FORETELL_CACHE=str(folder / "cache"))
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), *ARGUMENTS, "--no-cache"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 1)
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        for model, values in (
            ("Llama-2-7B", load_config("hf:meta-llama/Llama-2-7b-hf").values),
            ("DeepSeek-V3", DEEPSEEK_V3),
        ):
            folder = Path(name) / model
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(values))
            written = min(run(WRITE, folder) for _ in range(ROUNDS))
            print(f"{model}: written {written[0]:.2f} s, {written[1]:.2f} s of the processor, {written[2]:.0f} MiB")
            if "--no-trace" not in sys.argv and model == "Llama-2-7B":
                traced = run(TRACE, folder)
                print(f"{model}: traced {traced[0]:.2f} s, {traced[1]:.2f} s of the processor")
                ratios.append(written[0] / traced[0])
    sys.exit(any(ratio > LIMIT for ratio in ratios))


if __name__ == "__main__":
    main()
