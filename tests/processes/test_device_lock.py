import subprocess
import sys
import threading
import time

from foretell.processes.device_lock import HOLDING, DeviceLock, open_state


def _open(folder, worker):
    device_lock = DeviceLock(folder, worker)
    device_lock.open()
    return device_lock


def test_many_prepare_and_one_times(tmp_path):
    """Sixty entries of four workers: nobody is ever inside while another is alone."""
    inside, trouble, lock = set(), [], threading.Lock()

    def work(worker):
        device_lock = _open(tmp_path, worker)
        for number in range(15):
            kind = "alone" if (number + worker) % 3 == 0 else "shared"
            with getattr(device_lock, kind)():
                with lock:
                    others = {other for other in inside if other[0] != worker}
                    if others and (kind == "alone" or any(other[1] == "alone" for other in others)):
                        trouble.append((worker, kind, others))
                    inside.add((worker, kind))
                time.sleep(0.001)
                with lock:
                    inside.discard((worker, kind))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not trouble
    assert not any(thread.is_alive() for thread in threads)


def test_preparing_processes_yield_to_those_that_time(tmp_path):
    mine, other = _open(tmp_path, 0), _open(tmp_path, 1)
    order = []

    def wait_and_time():
        with other.alone():
            order.append("timed")

    with mine.shared():
        thread = threading.Thread(target=wait_and_time)
        thread.start()
        while not mine.is_requested():
            time.sleep(0.001)
        assert not order
        while not order:  # it may still be on its way to the gate
            mine.step_aside()
        order.append("went on")
    thread.join(120)
    assert order == ["timed", "went on"]
    assert not mine.is_requested()


def test_a_dead_holder_blocks_nobody(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from foretell.processes.device_lock import DeviceLock\n"
        "t = DeviceLock(Path(sys.argv[1]), 3); t.open()\n"
        "with t.alone():\n    print('in', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"in\n"
    state = open_state(tmp_path)
    assert state[3] == HOLDING
    process.kill()
    process.wait()
    process.stdout.close()
    with _open(tmp_path, 0).alone():
        assert state[0] == HOLDING


def test_waiting_timers_run_before_anyone_prepares_again(tmp_path):
    order, gathered = [], threading.Barrier(4)
    preparing = _open(tmp_path, 0)

    def timed(worker):
        device_lock = _open(tmp_path, worker)
        gathered.wait(120)
        with device_lock.alone():
            order.append("timed")
            time.sleep(0.02)

    def prepare():
        device_lock = _open(tmp_path, 9)
        while not device_lock.is_requested():
            time.sleep(0.001)
        with device_lock.shared():
            order.append("prepared")

    threads = [threading.Thread(target=timed, args=(worker,)) for worker in (1, 2, 3)]
    threads.append(threading.Thread(target=prepare))
    with preparing.shared():
        for thread in threads:
            thread.start()
        gathered.wait(120)
        while not preparing.is_requested():
            time.sleep(0.001)
        assert not order
    for thread in threads:
        thread.join(120)
    assert order == ["timed", "timed", "timed", "prepared"]
