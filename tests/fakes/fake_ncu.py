"""In place of ``ncu``: runs its program, then prints three kernels for each counted range, as ``--csv`` would.

What goes wrong is told by the environment: ``FAKE_NCU=refuse`` counts nothing, ``FAKE_NCU=torn`` prints no end.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

HEADER = (
    '"ID","Process ID","Process Name","Host Name",'
    '"thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",'
    '"Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name",'
    '"Metric Unit","Metric Value"'
)


def rows(number, name, duration_ns, occupancy):
    call = f'1  ""<default domain>:foretell-call-{"ab".index(name)}:none:none""' if name in "ab" else ""
    start = f'"{number}","1","python","127.0.0.1","{call}","{name}","1","7","(128, 1, 1)"'
    start += f',"({number + 1}, 1, 1)","0","9.0","x"'
    yield f'{start},"gpu__time_duration.sum","ns","{duration_ns}"'
    yield f'{start},"sm__warps_active.avg.pct_of_peak_sustained_active","%","{occupancy}"'


def main(arguments):
    mode = os.environ.get("FAKE_NCU", "")
    log = Path(arguments[arguments.index("--log-file") + 1])
    if mode == "refuse":
        log.write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission.\n")
        return 1
    program = arguments[arguments.index("--log-file") + 2 :]
    code = subprocess.run(program, check=False).returncode
    path = Path(json.loads(Path(program[-1]).read_text())["events"])
    events = [json.loads(line) for line in path.read_text().splitlines()]
    lines, number = ["==PROF== Connected to process 1", HEADER], 0
    for _ in [event for event in events if event["event"] == "open"]:
        for name, duration_ns, occupancy in (
            ("nextafter", 9, 1),
            ("a", 3000, 30),
            ("b", 1000, 50),
            ("nextafter", 9, 1),
        ):
            lines += rows(number, name, duration_ns, occupancy)
            number += 1
    if mode == "torn":
        lines = lines[: len(lines) - 3]
    log.write_text("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
