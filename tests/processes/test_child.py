import json
import os
import subprocess
import sys
import time

from foretell.processes.child import short
from foretell.profiling.zoos.registry import preload

SPEAKER = """
import gc, os
from foretell.processes.child import stop_garbage_collection, redirect_output
say = redirect_output()
print("a model prints", flush=True)
os.write(1, b"a library writes")
stop_garbage_collection()
say({"event": "ready", "collects": gc.isenabled(), "frozen": gc.get_freeze_count() > 0})
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c",
    "import time; from foretell.processes.child import die_with_parent; die_with_parent(); print(flush=True); "
    "time.sleep(600)"], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
"""


def test_what_others_print_does_not_come_between_messages():
    done = subprocess.run([sys.executable, "-c", SPEAKER], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"event": "ready", "collects": False, "frozen": True}
    assert "a model prints" in done.stderr
    assert "a library writes" in done.stderr


def test_it_dies_with_its_parent():
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=True)
    until = time.monotonic() + 120
    while _runs(int(done.stdout)):
        assert time.monotonic() < until
        time.sleep(0.01)


def _runs(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_zoo_that_is_not_there_does_not_end_a_process():
    preload(["absent", "synthetic"])


def test_errors_are_short():
    assert short(RuntimeError("x" * 1000)) == "RuntimeError: " + "x" * (300 - len("RuntimeError: "))


def test_a_process_of_many_has_one_thread_and_writes_into_its_folder(tmp_path):
    code = (
        "import os, sys, tempfile; from pathlib import Path; from foretell.processes.child import configure_libraries; "
        "configure_libraries(Path(sys.argv[1])); "
        "print(os.environ['OMP_NUM_THREADS'], tempfile.mkdtemp(), os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    threads, folder, cache = done.stdout.split()
    assert threads == "1"
    assert folder.startswith(str(tmp_path))
    assert cache == str(tmp_path / "inductor")
