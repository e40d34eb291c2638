"""Profiling: NVIDIA's multi-process service, started for one campaign in folders of its own and always ended."""

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
_PATIENCE_S = 15.0
_POLL_S = 0.05
_MAX_LOG_CHARACTERS = 300


class MpsDaemon:
    """Clients are the processes that get :attr:`environment` before they touch the device."""

    def __init__(self, folder: Path, control: str = CONTROL, patience_s: float = _PATIENCE_S) -> None:
        self._folder = folder
        self._control = control
        self._patience_s = patience_s

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process a client of this daemon."""
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
            raise MeasurementError(f"{self._control} ended with code {code}: {self._said()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._quit()

    def _call(self, arguments: list[str], text: bytes | None) -> int:
        # the daemon inherits what it is given: a pipe would keep us waiting for as long as it lives
        with (self._folder / "control.log").open("ab") as log:
            return subprocess.run(
                [self._control, *arguments],
                env={**os.environ, **self.environment},
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                stdout=log,
                stderr=log,
                timeout=self._patience_s,
                check=False,
            ).returncode

    def _quit(self) -> None:
        process = self._daemon()
        with suppress(OSError, subprocess.TimeoutExpired):
            self._call([], b"quit\n")
        until = time.monotonic() + self._patience_s / 3
        while process and _lives(process) and time.monotonic() < until:
            time.sleep(_POLL_S)
        if process and _lives(process):
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)

    def _daemon(self) -> int:
        """The daemon's process, 0 where it has not written it down."""
        with suppress(OSError, ValueError):
            return int((self._folder / "pipe" / f"{CONTROL}.pid").read_text(encoding="utf-8"))
        return 0

    def _said(self) -> str:
        with suppress(OSError):
            text = (self._folder / "control.log").read_text(encoding="utf-8", errors="replace")
            return text.strip().replace("\n", " ")[-_MAX_LOG_CHARACTERS:]
        return ""


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"  # ended, and nobody has asked how
