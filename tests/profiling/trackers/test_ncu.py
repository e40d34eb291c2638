import pytest

from foretell.errors import MeasurementError
from foretell.profiling.trackers import ncu as tracker_ncu
from foretell.profiling.trackers.ncu import (
    DURATION,
    MARKER,
    OCCUPANCY,
    call_name,
    error_text,
    find_ncu,
    read_counters,
    split_ranges,
)

# Handwritten after the documented layouts of Nsight Compute 2025.3.
DETAILS = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "vectorized_elementwise_kernel" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value"
"0","4711","python3.12","127.0.0.1","void gemm<(int)4, float>(T1, ""x"")","1","7","(128, 1, 1)","(24, 3, 1)","0","9.0",\
"Command line profiler metrics","gpu__time_duration.sum","ns","1,632"
"0","4711","python3.12","127.0.0.1","void gemm<(int)4, float>(T1, ""x"")","1","7","(128, 1, 1)","(24, 3, 1)","0","9.0",\
"Command line profiler metrics","sm__warps_active.avg.pct_of_peak_sustained_active","%","43.21"
"1","4711","python3.12","127.0.0.1","relu","1","7","(256, 1, 1)","(1, 1, 1)","0","9.0",\
"Command line profiler metrics","gpu__time_duration.sum","us","2.5"
"1","4711","python3.12","127.0.0.1","relu","1","7","(256, 1, 1)","(1, 1, 1)","0","9.0",\
"Command line profiler metrics","sm__warps_active.avg.pct_of_peak_sustained_active","%","12"
"2","4711","python3.12","127.0.0.1","cut","1","7","(256, 1, 1)","(1, 1, 1)","0","9.0",\
"Command line profiler metrics","gpu__time_duration.sum","us","2.5"
"3","4711","python3.12","127.0.0.1","torn","1","7","(256, 1
"""

RAW = f"""==PROF== Connected to process 4711
"ID","Kernel Name","Block Size","Grid Size","{DURATION}","{OCCUPANCY}"
"","","block","block","ns","%"
"0","gemm","(128, 1, 1)","(24, 3, 1)","1632","43.21"
"1","relu","(256, 1, 1)","(1, 1, 1)","2500","12"
"""


@pytest.mark.parametrize("text", [DETAILS, RAW], ids=["details", "raw"])
def test_both_layouts_are_read_and_half_a_kernel_is_dropped(text):
    gemm, relu = read_counters(text.splitlines(keepends=True))
    assert (gemm.duration_us, gemm.occupancy_pct, gemm.grid, gemm.block) == (1.632, 43.21, (24, 3, 1), (128, 1, 1))
    assert (relu.name, relu.duration_us, relu.occupancy_pct) == ("relu", 2.5, 12.0)


def test_quotes_inside_a_kernel_name_survive():
    assert read_counters(DETAILS.splitlines())[0].name == 'void gemm<(int)4, float>(T1, "x")'


def test_a_text_without_a_table_has_no_kernels():
    assert read_counters(["==ERROR== nothing\n", '"1","2"\n']) == []


def _kernels(names):
    header = f'"ID","Kernel Name","Block Size","Grid Size","{DURATION}","{OCCUPANCY}"'
    rows = [f'"{number}","{name}","(1, 1, 1)","(1, 1, 1)","1","1"' for number, name in enumerate(names)]
    return read_counters([header, '"","","","","ns","%"', *rows])


def test_kernels_between_two_markers_belong_together():
    mark = f"void at::native::vectorized_elementwise_kernel<4, at::native::{MARKER}_kernel_cuda(...)>"
    names = ["stray", mark, "a", "b", mark, "between", mark, mark, mark, "c", mark, mark, "open"]
    assert [[kernel.name for kernel in kernels] for kernels in split_ranges(_kernels(names))] == [["a", "b"], [], ["c"]]


def test_a_kernel_knows_its_innermost_call():
    column = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    header = f'"ID","{column}","Kernel Name","Block Size","Grid Size","{DURATION}","{OCCUPANCY}"'
    named = "1  " + "  ".join(f'""<default domain>:{call_name(number)}:none:none:none""' for number in (7, 12))
    rows = [f'"{number}","{ranges}","a","(1, 1, 1)","(1, 1, 1)","1","1"' for number, ranges in enumerate((named, ""))]
    kernels = read_counters([header, '"","","","","","ns","%"', *rows])
    assert [kernel.call for kernel in kernels] == [12, None]


def test_complaints_of_ncu_become_one_line():
    message = error_text(["==PROF== fine\n", "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"])
    assert "ERR_NVGPUCTRPERM" in message
    assert "\n" not in message
    assert error_text(["==PROF== fine\n"]) == ""


def test_a_machine_without_ncu_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(tracker_ncu, "_INSTALL_PATTERNS", ())
    with pytest.raises(MeasurementError, match="Nsight Compute"):
        find_ncu()


def test_ncu_is_found_where_nsight_is_installed(monkeypatch, tmp_path):
    (tmp_path / "2025.3.1").mkdir()
    (tmp_path / "2025.3.1" / "ncu").touch()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(tracker_ncu, "_INSTALL_PATTERNS", (f"{tmp_path}/*/ncu",))
    assert find_ncu() == f"{tmp_path}/2025.3.1/ncu"
