"""Profiling: streams whose kernels run on only some of the multiprocessors (CUDA green contexts), in one process."""

import ctypes
from typing import Any

import torch

from foretell.errors import MeasurementError

_NON_BLOCKING = 1
_CHECK_SIZE = 4096
_CHECK_REPLAYS = 5
_MIN_SLOWDOWN = 1.5


class GreenStreams:
    """One stream for each number of multiprocessors; ``main`` is the stream of the whole device."""

    def __init__(self, main: Any, total: int) -> None:
        self._main = main
        self._total = total
        self._contexts: list[Any] = []  # a context must outlive its stream
        self._streams: dict[int, Any] = {total: main}

    def stream(self, sm_count: int) -> Any:
        """The stream that is limited to ``sm_count`` multiprocessors."""
        if sm_count not in self._streams:
            self._streams[sm_count] = self._create(sm_count)
        return self._streams[sm_count]

    def _create(self, sm_count: int) -> Any:
        kind = getattr(torch.cuda, "green_contexts", torch.cuda)
        context = kind.GreenContext.create(num_sms=sm_count, device_id=0)
        self._contexts.append(context)
        context.set_context()
        try:
            # The context's own stream is a default stream, which cannot be captured. So make another one while the
            # context is current: a stream belongs to the context that is current when it is made.
            handle = ctypes.c_void_p()
            code = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING)
        finally:
            context.pop_context()
            torch.cuda.set_stream(self._main)
        if code != 0 or not handle.value:
            raise MeasurementError(f"No stream for {sm_count} multiprocessors: the driver says {code}.")
        return torch.cuda.ExternalStream(handle.value, device=torch.device("cuda", 0))

    def check(self, sm_count: int) -> float:
        """How much slower a large product is on ``sm_count`` multiprocessors; raise an error if it is not slower."""
        matrix = torch.randn(_CHECK_SIZE, _CHECK_SIZE, device="cuda", dtype=torch.float16)
        limited_ms, full_ms = (self._product_ms(matrix, self.stream(count)) for count in (sm_count, self._total))
        slowdown = limited_ms / full_ms
        if slowdown < _MIN_SLOWDOWN:
            raise MeasurementError(
                f"{sm_count} of {self._total} multiprocessors are only {slowdown:.2f} times slower: nothing is limited."
            )
        return slowdown

    def _product_ms(self, matrix: Any, stream: Any) -> float:
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.mm(matrix, matrix)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            product = torch.mm(matrix, matrix)
            graph.capture_end()
            graph.replay()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(_CHECK_REPLAYS):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            duration_ms = float(begin.elapsed_time(end)) / _CHECK_REPLAYS
            del product
            graph.reset()
        return duration_ms
