"""Workflows: the workers of a plan on a Ray cluster: a task of Ray for each task, one core each.

Tables come back to this process, and only it writes files: whatever dies, a shard is complete or absent. Ray itself
does not repeat tasks; `predict_plan` does, in the same way as on one machine.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from foretell.errors import ForetellError, MeasurementError, ModelError
from foretell.processes.child import Message
from foretell.profiling.campaign.ray_cluster import connect
from foretell.workflows.many.task import run_task
from foretell.workflows.many.workers import Crash, Outcome

_QUEUED = 2  # tasks for each core: while one runs, the next one already waits on the cluster


class RayWorkers:
    """The cores of a cluster; machines may join and leave."""

    def __init__(self, address: str, count: int) -> None:
        self._address = address
        self._count = count
        self._ray: Any = None
        self._task: Any = None
        self._numbers: dict[Any, int] = {}

    def start(self) -> None:
        """Connect, or start a cluster here."""
        self._ray = connect(self._address, self._count, "cpu")
        self._task = self._ray.remote(num_cpus=1, max_retries=0)(run_task)

    def slots(self) -> int:
        """Two tasks for each core."""
        return _QUEUED * self.cores()

    def cores(self) -> int:
        """The cores of all machines."""
        count = int(self._ray.cluster_resources().get("CPU", 0))
        if count < 1:
            raise MeasurementError("The Ray cluster has no CPU: nothing could run. Look at: ray status")
        return count

    def submit(self, number: int, message: Message) -> None:
        """Send a task to the cluster."""
        self._numbers[self._task.remote(message)] = number

    def cancel(self, number: int) -> None:
        """Give up a task and end its process."""
        for reference in [reference for reference, own in self._numbers.items() if own == number]:
            del self._numbers[reference]
            with suppress(Exception):  # it may have ended in the meantime
                self._ray.cancel(reference, force=True)

    def wait(self, timeout_s: float) -> Iterator[tuple[int, Outcome]]:
        """Outcomes, as they come back."""
        if not self._numbers:
            return
        references = list(self._numbers)
        finished, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        if not finished:
            finished, _ = self._ray.wait(references, num_returns=1, timeout=timeout_s)
        for reference in finished:
            number = self._numbers.pop(reference)
            yield number, self._outcome(reference)

    def _outcome(self, reference: Any) -> Outcome:
        try:
            answer: bytes = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            # the task itself raised: it does so for what is wrong with the machine or the plan, never for a model
            cause = error.cause if isinstance(error.cause, ForetellError) else error
            raise ModelError(" ".join(str(cause).split())[-300:]) from error
        except self._ray.exceptions.RayError as error:
            return Crash(" ".join(str(error).split())[:200] or type(error).__name__)
        return answer

    def stop(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._ray is not None:
            self._ray.shutdown()
