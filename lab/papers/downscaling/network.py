"""Lab: the U-Net of chapter 3 (temperature downscaling): ``foretell advise lab/papers/downscaling/network.py:build``.

The thesis shows it as a picture and counts 3,525,650 trainable and 3,360 other parameters; it names 56 filters, inputs
of 96 × 128 × 3 and two outputs of 96 × 128 × 1. A network of this kind has exactly these counts: two convolutions at
the first level, one at the next two and at the bottom, transposed convolutions of 2 × 2, two convolutions at each level
on the way up, a batch norm after each convolution of 3 × 3. Its largest operator is the 112 → 56 convolution at
96 × 128 that the thesis takes for its study.
"""

from typing import Any

from torch import cat, nn

FILTERS = 56
TRAINABLE, OTHERS = 3_525_650, 3_360


def build() -> nn.Module:
    """The network, untrained."""
    return _UNet()


class _UNet(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        widths = [FILTERS * 2**level for level in range(4)]
        self.down = nn.ModuleList(
            _convolutions(before, after, 2 if level == 0 else 1)
            for level, (before, after) in enumerate(zip([3, *widths], widths))
        )
        self.pool = nn.MaxPool2d(2)
        upwards = list(zip(widths[:0:-1], widths[-2::-1]))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(before, after, 2, 2) for before, after in upwards)
        self.up = nn.ModuleList(_convolutions(2 * after, after, 2) for _, after in upwards)
        self.temperature, self.elevation = nn.Conv2d(FILTERS, 1, 1), nn.Conv2d(FILTERS, 1, 1)

    def forward(self, x: Any) -> tuple[Any, Any]:
        """The temperature and the elevation at high resolution."""
        skips = []
        for level, down in enumerate(self.down):
            x = down(self.pool(x) if level else x)
            skips.append(x)
        for skip, rise, up in zip(skips[-2::-1], self.rise, self.up):
            x = up(cat([rise(x), skip], dim=1))
        return self.temperature(x), self.elevation(x)


def _convolutions(before: int, after: int, count: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number in range(count):
        layers += [nn.Conv2d(after if number else before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)
