"""Profiling: NVIDIA's multi-process service (MPS), started for one campaign in its own folders and always ended."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from foretell.errors import MeasurementError

CONTROL = "nvidia-cuda-mps-control"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_TIMEOUT_S = 15.0
_POLL_S = 0.05
_MAX_LOG_CHARACTERS = 300


class MpsDaemon:
    """An MPS daemon. Processes that get :attr:`environment` before they first use the device become its clients."""

    def __init__(self, folder: Path, control: str = CONTROL, timeout_s: float = _TIMEOUT_S) -> None:
        self._folder = folder
        self._control = control
        self._timeout_s = timeout_s

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that make a process a client of this daemon."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }

    def client(self, percent: float) -> dict[str, str]:
        """The environment of a client that gets ``percent`` of the multiprocessors."""
        return {**self.environment, PERCENTAGE: f"{percent:g}"}

    def __enter__(self) -> "MpsDaemon":
        for folder in self.environment.values():
            Path(folder).mkdir(parents=True, exist_ok=True)
        try:
            code = self._call(["-d"], None)
        except (OSError, subprocess.TimeoutExpired) as error:
            self._quit()
            raise MeasurementError(
                f"Cannot start {self._control}: {error}. Slices and MPS groups need NVIDIA's multi-process service."
            ) from error
        if code != 0:
            raise MeasurementError(f"{self._control} ended with code {code}: {self._log_text()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._quit()

    def _call(self, arguments: list[str], text: bytes | None) -> int:
        # not a pipe: the daemon inherits it, and we would wait for its end as long as the daemon lives
        with (self._folder / "control.log").open("ab") as log:
            return subprocess.run(
                [self._control, *arguments],
                env={**os.environ, **self.environment},
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                stdout=log,
                stderr=log,
                timeout=self._timeout_s,
                check=False,
            ).returncode

    def _quit(self) -> None:
        # read the process number first: the file may be gone once the daemon has quit
        process = self._daemon()
        with suppress(OSError, subprocess.TimeoutExpired):
            self._call([], b"quit\n")
        until = time.monotonic() + self._timeout_s / 3
        while process and _is_running(process) and time.monotonic() < until:
            time.sleep(_POLL_S)
        if process and _is_running(process):
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)

    def _daemon(self) -> int:
        """The process number of the daemon, or 0 if it has written none."""
        with suppress(OSError, ValueError):
            return int((self._folder / "pipe" / f"{CONTROL}.pid").read_text(encoding="utf-8"))
        return 0

    def _log_text(self) -> str:
        with suppress(OSError):
            text = (self._folder / "control.log").read_text(encoding="utf-8", errors="replace")
            return text.strip().replace("\n", " ")[-_MAX_LOG_CHARACTERS:]
        return ""


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"  # Z is a zombie: it has ended, but its parent has not waited for it
