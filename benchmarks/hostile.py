"""Archives that try to write, read, start or reach something, read as ``foretell predict`` reads them.

python benchmarks/hostile.py              exits 1 where one of them succeeds
python benchmarks/hostile.py --control    also loads them without a cage, to show that the attacks are real

Each archive is read twice: as a user's would be, and in the cage without the check that refuses it before. A folder
with a bait is watched meanwhile (inotify): any file that is opened, changed or added there counts.
"""

import argparse
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from attacks.archives import Hostile, make_all  # noqa: E402
from attacks.watching import Watch  # noqa: E402
from foretell.errors import ForetellError, InputError, UntrustedModelError  # noqa: E402
from foretell.frontends.caged import read_caged  # noqa: E402
from foretell.frontends.request import ModelRequest  # noqa: E402
from foretell.workflows.workload import load_graph  # noqa: E402

LEAST = 200
LOAD = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
for path in sys.stdin.read().splitlines():
    try:
        torch.jit.load(path, map_location="cpu")
    except Exception:
        pass
"""


def read_as_a_user(archive: Hostile) -> str:
    try:
        load_graph(archive.path, input_shape=None if archive.path.suffix == ".pt2" else "3", use_cache=False)
    except UntrustedModelError:
        return "untrusted"
    except ForetellError as error:
        return type(error).__name__
    return "read"


def read_in_the_cage(archive: Hostile) -> str:
    """Load an archive in the cage without any check; it runs its code, and then asks for its inputs."""
    try:
        request = ModelRequest(str(archive.path), memory_limit_gib=4, timeout_s=120)
        read_caged("foretell.frontends.torch.torchscript:load_script", request)
    except InputError:
        return "loaded"
    except ForetellError as error:
        return type(error).__name__
    return "read"


def show(title: str, count: int, outcomes: Counter[str], seen: Counter[str], intact: bool) -> bool:
    words = ", ".join(f"{name} {n}" for name, n in outcomes.most_common())
    print(f"{title}: {count} archives ({words})")
    held = not seen and intact
    print(f"    reached the bait: {'nothing' if held else dict(seen)}")
    return held


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", action="store_true")
    control = parser.parse_args().control
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name, Watch(Path(name) / "bait") as watch:
        archives = make_all(Path(name) / "archives", watch.bait)
        loadable = [archive for archive in archives if archive.loadable]
        watch.seen()
        outcomes = Counter(map(read_as_a_user, archives))
        held = show("as a user reads them", len(archives), outcomes, watch.seen(), watch.intact())
        watch.seen()
        with ThreadPoolExecutor(2) as pool:
            outcomes = Counter(pool.map(read_in_the_cage, loadable))
        held &= show("in the cage, unchecked", len(loadable), outcomes, watch.seen(), watch.intact())
        watch.seen()
        if control:
            text = "\n".join(str(archive.path) for archive in loadable)
            subprocess.run([sys.executable, "-c", LOAD], input=text, text=True, check=False, stdout=subprocess.DEVNULL)
            show("without a cage", len(loadable), Counter(), watch.seen(), watch.intact())
    sys.exit(0 if held and len(archives) >= LEAST else 1)


if __name__ == "__main__":
    main()
