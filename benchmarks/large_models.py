"""Peak memory of reading large models from their configuration alone, and exactness of their parameters.

python benchmarks/large_models.py       exits 1 where memory passes 1.5 GB or a count is off
"""

import json
import resource
import subprocess
import sys
import time

LIMIT_BYTES = 1.5e9
EXACT = {
    "hf:meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "hf:meta-llama/Llama-3.1-8B": 8_030_261_248,
    "hf:mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
}
MODES = {"prefill": ["--input", "512"], "decode": ["--context", "512"]}


def child(model: str, mode: str) -> None:
    """Read one model in this process and print what it took."""
    from foretell import load_graph
    from foretell.graph import graph_costs

    started = time.perf_counter()
    graph = load_graph(
        model,
        mode=mode,
        dtype="bf16",
        use_cache=False,
        **({"input_shape": "512"} if mode == "prefill" else {"context": 512}),
    )
    cost = graph_costs(graph).total
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        json.dumps(
            {
                "parameters": graph.parameter_count,
                "macs": cost.macs,
                "bytes_read": cost.bytes_read,
                "nodes": len(graph.nodes),
                "peak_bytes": peak,
                "seconds": time.perf_counter() - started,
            }
        )
    )


def main() -> None:
    failed = False
    print("| model | mode | parameters | GMACs | GB read | nodes | peak GB | s |\n|---|---|---|---|---|---|---|---|")
    for model, exact in EXACT.items():
        for mode in MODES:
            done = subprocess.run([sys.executable, __file__, model, mode], check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            bad = found["parameters"] != exact or found["peak_bytes"] > LIMIT_BYTES
            failed = failed or bad
            print(
                f"| {model} | {mode} | {found['parameters']:,}{' (!)' if bad else ''} "
                f"| {found['macs'] / 1e9:,.1f} | {found['bytes_read'] / 1e9:.2f} "
                f"| {found['nodes']} | {found['peak_bytes'] / 1e9:.2f} | {found['seconds']:.0f} |",
                flush=True,
            )
    sys.exit(failed)


if __name__ == "__main__":
    child(*sys.argv[1:]) if len(sys.argv) > 1 else main()
