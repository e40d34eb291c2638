"""Profiling: wild networks that say what is where: detectors, and one class a pixel."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, network, numbers


class _Block(Module):
    """A residual block with an optional stride and dilation."""

    def __init__(self, before: int, after: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, dilation, dilation, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, dilation, dilation, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.down = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 or before != after else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.down is None else self.down(x)
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        out += identity
        return F.relu(out)


def _stem(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    )


@network(
    "detection",
    "pyramid-detector",
    lambda s: (numbers(3, s["size"], s["size"]),),
    "width=32&size=256",
    "width=64&size=512",
)
class _PyramidDetector(Module):
    """A feature pyramid with heads that share their weights over five levels."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.stem = _stem(width)
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.ModuleList(
            nn.Sequential(_Block(a, b, 2 if i else 1), _Block(b, b))
            for i, (a, b) in enumerate(zip([width, *widths], widths))
        )
        self.lateral = nn.ModuleList(nn.Conv2d(w, 128, 1) for w in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(128, 128, 3, padding=1) for _ in widths)
        self.tower = nn.ModuleList(nn.Conv2d(128, 128, 3, padding=1) for _ in range(3))
        self.classes, self.boxes = nn.Conv2d(128, 9 * 20, 3, padding=1), nn.Conv2d(128, 9 * 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, maps = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        levels = [lateral(m) for lateral, m in zip(self.lateral, maps)]
        for i in range(len(levels) - 1, 0, -1):
            levels[i - 1] = levels[i - 1] + F.interpolate(levels[i], size=levels[i - 1].shape[-2:], mode="nearest")
        levels = [smooth(level) for smooth, level in zip(self.smooth, levels)]
        levels.append(F.max_pool2d(levels[-1], 1, 2))
        classes, boxes = [], []
        for level in levels:
            for layer in self.tower:
                level = F.relu(layer(level))
            classes.append(self.classes(level).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 20))
            boxes.append(self.boxes(level).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4))
        scores, deltas = torch.cat(classes, dim=1), torch.cat(boxes, dim=1)
        return torch.cat([scores, deltas], dim=2), scores.sigmoid()


class _Csp(Module):
    """Half of the channels pass through residual blocks, all meet again."""

    def __init__(self, before: int, after: int, count: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after), nn.SiLU())
        half = after // 2
        self.inner = nn.ModuleList(
            nn.Sequential(nn.Conv2d(half, half, 3, padding=1, bias=False), nn.BatchNorm2d(half), nn.SiLU())
            for _ in range(count)
        )
        self.two = nn.Sequential(nn.Conv2d((2 + count) * half, after, 1, bias=False), nn.BatchNorm2d(after), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.one(x).chunk(2, 1))
        for layer in self.inner:
            parts.append(parts[-1] + layer(parts[-1]))
        return self.two(torch.cat(parts, 1))


@network(
    "detection", "one-look", lambda s: (numbers(3, s["size"], s["size"]),), "width=16&size=320", "width=32&size=640"
)
class _OneLook(Module):
    """A detector of one stage: partial blocks, pooled pyramid, a path down and up, boxes from distributions."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        w = [width, 2 * width, 4 * width, 8 * width, 16 * width]
        self.stem = nn.Conv2d(3, w[0], 3, 2, 1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in zip(w, w[1:]))
        self.mix = nn.ModuleList(_Csp(b, b, 1 + (i > 0)) for i, b in enumerate(w[1:]))
        self.squeeze, self.spread = nn.Conv2d(w[4], w[3], 1), nn.Conv2d(4 * w[3], w[4], 1)
        self.up4, self.up3 = _Csp(w[4] + w[3], w[3], 1), _Csp(w[3] + w[2], w[2], 1)
        self.down3, self.down4 = nn.Conv2d(w[2], w[2], 3, 2, 1), nn.Conv2d(w[3], w[3], 3, 2, 1)
        self.out4, self.out5 = _Csp(w[2] + w[3], w[3], 1), _Csp(w[3] + w[4], w[4], 1)
        self.heads = nn.ModuleList(nn.Conv2d(c, 64 + 20, 1) for c in (w[2], w[3], w[4]))

    def forward(self, x: Tensor) -> Tensor:
        x, kept = F.silu(self.stem(x)), []
        for down, mix in zip(self.down, self.mix):
            x = mix(F.silu(down(x)))
            kept.append(x)
        y = [self.squeeze(x)]
        for _ in range(3):
            y.append(F.max_pool2d(y[-1], 5, 1, 2))
        p5 = self.spread(torch.cat(y, 1))
        p4 = self.up4(torch.cat([F.interpolate(p5, scale_factor=2), kept[2]], 1))
        p3 = self.up3(torch.cat([F.interpolate(p4, scale_factor=2), kept[1]], 1))
        n4 = self.out4(torch.cat([self.down3(p3), p4], 1))
        n5 = self.out5(torch.cat([self.down4(n4), p5], 1))
        flat = [head(level).flatten(2) for head, level in zip(self.heads, (p3, n4, n5))]
        box, score = torch.cat(flat, 2).split((64, 20), 1)
        places = torch.arange(16, device=x.device, dtype=x.dtype)
        box = torch.einsum("bkdn,d->bkn", box.view(x.shape[0], 4, 16, -1).softmax(2), places)
        return torch.cat((box, score.sigmoid()), 1)


@network(
    "detection", "queries", lambda s: (numbers(3, s["size"], s["size"]),), "width=192&size=256", "width=256&size=512"
)
class _Queries(Module):
    """Objects as queries to ``nn.Transformer`` over a picture's features."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_stem(48), _Block(48, 96, 2), _Block(96, 192, 2), nn.Conv2d(192, width, 1))
        side = size // 16
        self.rows, self.columns = (nn.Parameter(torch.rand(side, width // 2)) for _ in range(2))
        self.queries = nn.Parameter(torch.rand(100, width))
        self.transformer = nn.Transformer(width, 8, 3, 3, 4 * width, batch_first=True)
        self.classes, self.boxes = nn.Linear(width, 92), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        b, _, height, w = h.shape
        place = torch.cat(
            [self.columns[:w].unsqueeze(0).repeat(height, 1, 1), self.rows[:height].unsqueeze(1).repeat(1, w, 1)],
            dim=-1,
        )
        tokens = h.flatten(2).permute(0, 2, 1) + place.flatten(0, 1).unsqueeze(0)
        found = self.transformer(tokens, self.queries.unsqueeze(0).repeat(b, 1, 1))
        return self.classes(found), self.boxes(found).sigmoid()


@network(
    "segmentation", "dilated", lambda s: (numbers(3, s["size"], s["size"]),), "width=32&size=256", "width=64&size=512"
)
class _Dilated(Module):
    """Dilated blocks and a pyramid of dilations (1, 6, 12, 18) with a picture-wide mean."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.stem, self.low = _stem(width), _Block(width, width)
        self.body = nn.Sequential(
            _Block(width, 2 * width, 2), _Block(2 * width, 4 * width, 1, 2), _Block(4 * width, 4 * width, 1, 4)
        )
        inner = 2 * width
        self.branches = nn.ModuleList(
            nn.Conv2d(4 * width, inner, 1 if d == 1 else 3, padding=0 if d == 1 else d, dilation=d)
            for d in (1, 6, 12, 18)
        )
        self.whole, self.merge = nn.Conv2d(4 * width, inner, 1), nn.Conv2d(5 * inner, inner, 1)
        self.lateral = nn.Conv2d(width, 48, 1)
        self.head = nn.Sequential(
            nn.Conv2d(inner + 48, inner, 3, padding=1), nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, 21, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        low = self.low(self.stem(x))
        h = self.body(low)
        parts = [F.relu(branch(h)) for branch in self.branches]
        whole = F.relu(self.whole(h.mean((2, 3), keepdim=True)))
        parts.append(F.interpolate(whole, size=h.shape[-2:], mode="bilinear", align_corners=False))
        h = F.relu(self.merge(torch.cat(parts, dim=1)))
        h = F.interpolate(h, size=low.shape[-2:], mode="bilinear", align_corners=False)
        h = self.head(torch.cat([h, self.lateral(low)], dim=1))
        return F.interpolate(h, size=x.shape[-2:], mode="bilinear", align_corners=False)


@network(
    "segmentation",
    "pooled-pyramid",
    lambda s: (numbers(3, s["size"], s["size"]),),
    "width=32&size=192",
    "width=64&size=384",
)
class _PooledPyramid(Module):
    """Features pooled to 1, 2, 3 and 6 bins, brought back and concatenated."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_stem(width), _Block(width, 2 * width), _Block(2 * width, 4 * width, 1, 2))
        self.bins = (1, 2, 3, 6)
        self.squeeze = nn.ModuleList(nn.Conv2d(4 * width, width, 1, bias=False) for _ in self.bins)
        self.head = nn.Sequential(nn.Conv2d(8 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.Conv2d(2 * width, 19, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        out = [h]
        for size, squeeze in zip(self.bins, self.squeeze):
            pooled = F.relu(squeeze(F.adaptive_avg_pool2d(h, size)))
            out.append(F.interpolate(pooled, h.shape[2:], mode="bilinear", align_corners=True))
        return F.interpolate(self.head(torch.cat(out, 1)), scale_factor=4, mode="bilinear", align_corners=True)


@network(
    "segmentation",
    "nested-unet",
    lambda s: (numbers(3, s["size"], s["size"]),),
    "width=16&size=128",
    "width=32&size=256",
)
class _NestedUnet(Module):
    """A U-Net whose skips are U-Nets: every node reads all earlier ones of its level."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        w = [width * 2**i for i in range(4)]
        self.nodes = nn.ModuleDict()
        for j in range(4):
            for i in range(4 - j):
                before = (3 if i == 0 else w[i - 1]) if j == 0 else j * w[i] + w[i + 1]
                self.nodes[f"{i}{j}"] = nn.Sequential(
                    nn.Conv2d(before, w[i], 3, padding=1), nn.BatchNorm2d(w[i]), nn.ReLU(True),
                    nn.Conv2d(w[i], w[i], 3, padding=1), nn.BatchNorm2d(w[i]), nn.ReLU(True),
                )  # fmt: skip
        self.heads = nn.ModuleList(nn.Conv2d(width, 2, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        found: dict[str, Tensor] = {}
        for j in range(4):
            for i in range(4 - j):
                if j == 0:
                    entering = x if i == 0 else F.max_pool2d(found[f"{i - 1}0"], 2)
                else:
                    up = F.interpolate(found[f"{i + 1}{j - 1}"], scale_factor=2, mode="bilinear", align_corners=True)
                    entering = torch.cat([found[f"{i}{k}"] for k in range(j)] + [up], 1)
                found[f"{i}{j}"] = self.nodes[f"{i}{j}"](entering)
        return torch.stack([head(found[f"0{j + 1}"]) for j, head in enumerate(self.heads)]).mean(0)
