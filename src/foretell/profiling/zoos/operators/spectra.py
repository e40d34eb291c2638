"""Profiling: Fourier transforms and products of complex numbers.

Networks transform in single precision, because PyTorch has no transforms of bf16 and only powers of two in fp16. So the
operands are cast first, as users do it.
"""

import random
from types import MappingProxyType
from typing import Any

import torch

from foretell.profiling.zoos.operators.drawing import Call, Drawn, Kinds, Shape, draw_size

_LENGTHS = (32, 64, 100, 128, 192, 256, 400, 512, 1000, 1024, 2048, 4096, 8192, 16000)
_SIDES = (14, 16, 28, 32, 48, 56, 64, 96, 100, 128, 256)


def _batch(draw: random.Random) -> int:
    return draw.choice((1, 2, 4, 8, 16, 32))


def _rows(draw: random.Random) -> Shape:
    return _batch(draw), draw_size(draw, 1, 256), draw.choice(_LENGTHS)


def _forth(draw: random.Random) -> Drawn:
    kind, norm = draw.choice(("rfft", "rfft", "fft")), draw.choice((None, "ortho"))
    dim, padded = draw.choice((-1, -1, 1)), draw.random() < 0.2
    shape = _rows(draw)
    length = 2 * shape[dim] if padded else None

    def transform(signal: Any) -> Any:
        return torch.view_as_real(getattr(torch.fft, kind)(signal.float(), n=length, dim=dim, norm=norm))

    return Call(transform), [shape if dim == -1 else (shape[0], shape[2], shape[1])], 0


def _back(draw: random.Random) -> Drawn:
    batch, channels, length = _rows(draw)
    whole = draw.random() < 0.3

    def transform(spectrum: Any) -> Any:
        numbers = torch.view_as_complex(spectrum.float())
        if whole:
            return torch.fft.ifft(numbers).real
        return torch.fft.irfft(numbers, n=length)

    return Call(transform), [(batch, channels, length if whole else length // 2 + 1, 2)], 0


def _images(draw: random.Random) -> Drawn:
    side, last = draw.choice(_SIDES), draw.random() < 0.3
    channels = draw_size(draw, 1, 256)
    batch, kind = _batch(draw), draw.choice(("rfft2", "rfft2", "fft2", "irfft2"))
    shape: Shape = (batch, side, side, channels) if last else (batch, channels, side, side)
    dims = (1, 2) if last else (-2, -1)
    if kind == "irfft2":
        half = side // 2 + 1
        shape = (batch, side, half, channels, 2) if last else (batch, channels, side, half, 2)

    def transform(image: Any) -> Any:
        if kind == "irfft2":
            return torch.fft.irfft2(torch.view_as_complex(image.float()), s=(side, side), dim=dims, norm="ortho")
        return torch.view_as_real(getattr(torch.fft, kind)(image.float(), dim=dims, norm="ortho"))

    return Call(transform), [shape], 0


def _filter(draw: random.Random) -> Drawn:
    """A long convolution or a correlation: there, a product of spectra, and back."""
    batch, channels, length = _rows(draw)
    correlated = draw.random() < 0.4

    def convolve(signal: Any, kernel: Any) -> Any:
        one, two = torch.fft.rfft(signal.float(), n=2 * length), torch.fft.rfft(kernel.float(), n=2 * length)
        product = one * torch.conj(two) if correlated else one * two
        return torch.fft.irfft(product, n=2 * length)[..., :length].to(signal.dtype)

    return Call(convolve), [(batch, channels, length), (channels, length)], 0


def _modes(draw: random.Random) -> Drawn:
    """The mixing of a Fourier operator: the lowest modes of all channels times a complex matrix for each mode."""
    batch, width, modes = _batch(draw), draw.choice((16, 20, 32, 48, 64)), draw.choice((8, 12, 16, 24, 32))
    if draw.random() < 0.5:
        equation, kept = "bix,iox->box", [modes]
    else:
        equation, kept = "bixy,ioxy->boxy", [modes, modes]

    def mix(spectrum: Any, weight: Any) -> Any:
        product = torch.einsum(equation, torch.view_as_complex(spectrum.float()), torch.view_as_complex(weight.float()))
        return torch.view_as_real(product)

    macs = 4 * batch * width * width * modes ** len(kept)
    return Call(mix), [(batch, width, *kept, 2), (width, width, *kept, 2)], macs


def _product(draw: random.Random) -> Drawn:
    shape = (*_rows(draw), 2)
    kind = draw.choice(("mul", "mul", "add", "abs", "angle"))

    def compute(one: Any, two: Any) -> Any:
        one, two = torch.view_as_complex(one.float()), torch.view_as_complex(two.float())
        if kind == "mul":
            return torch.view_as_real(one * two)
        if kind == "add":
            return torch.view_as_real(one + two)
        return one.abs() * two.abs() if kind != "angle" else one.angle()

    return Call(compute), [shape, shape], 0


SPECTRA: Kinds = MappingProxyType({_forth: 25, _back: 18, _images: 20, _filter: 15, _modes: 12, _product: 10})
