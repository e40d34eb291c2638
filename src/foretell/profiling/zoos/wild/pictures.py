"""Profiling: wild networks from pictures to pictures and points: super-resolution, poses, motion and depth, weather."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, network, numbers


@network(
    "super-resolution",
    "dense-sr",
    lambda s: (numbers(3, s["size"], s["size"]),),
    "width=32&blocks=4&size=64",
    "width=64&blocks=8&size=96",
)
class _DenseSr(Module):
    """Dense blocks of five convolutions, residuals in residuals, and upsampling by nearest neighbours."""

    def __init__(self, width: int, blocks: int, size: int) -> None:
        super().__init__()
        grow = width // 2
        self.stem, self.tail = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    *(nn.Conv2d(width + i * grow, grow, 3, 1, 1) for i in range(4)),
                    nn.Conv2d(width + 4 * grow, width, 3, 1, 1),
                ]
            )
            for _ in range(blocks)
        )
        self.up1, self.up2, self.out = (
            nn.Conv2d(width, width, 3, 1, 1),
            nn.Conv2d(width, width, 3, 1, 1),
            nn.Conv2d(width, 3, 3, 1, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        first = h = self.stem(x)
        for block in self.blocks:
            seen = [h]
            for layer in block[:-1]:
                seen.append(F.leaky_relu(layer(torch.cat(seen, 1)), 0.2))
            h = h + 0.2 * block[-1](torch.cat(seen, 1))
        h = first + self.tail(h)
        h = F.leaky_relu(self.up1(F.interpolate(h, scale_factor=2, mode="nearest")), 0.2)
        h = F.leaky_relu(self.up2(F.interpolate(h, scale_factor=2, mode="nearest")), 0.2)
        return self.out(h)


@network(
    "super-resolution",
    "shuffle-sr",
    lambda s: (numbers(3, s["size"], s["size"]),),
    "width=64&blocks=8&size=48",
    "width=128&blocks=16&size=96",
)
class _ShuffleSr(Module):
    """Residual blocks without norms, channel attention and pixel shuffle."""

    def __init__(self, width: int, blocks: int, size: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.one = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(blocks))
        self.two = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(blocks))
        self.gate = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width // 8), nn.ReLU(), nn.Linear(width // 8, width)) for _ in range(blocks)
        )
        self.up, self.out = nn.Conv2d(width, 16 * width // 4, 3, padding=1), nn.Conv2d(width // 4, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        big = F.interpolate(x, scale_factor=4, mode="bicubic", align_corners=False)
        h = s = self.stem(x)
        for one, two, gate in zip(self.one, self.two, self.gate):
            r = two(F.relu(one(h)))
            h = h + r * torch.sigmoid(gate(r.mean(dim=[2, 3])))[..., None, None]
        return self.out(F.pixel_shuffle(self.up(h + s), 4)) + big


@network(
    "super-resolution",
    "window-sr",
    lambda s: (numbers(3, s["size"], s["size"]),),
    "width=60&depth=4&size=64",
    "width=120&depth=6&size=128",
)
class _WindowSr(Module):
    """Attention in windows of 8 × 8 that are shifted by ``roll`` every second block."""

    def __init__(self, width: int, depth: int, size: int) -> None:
        super().__init__()
        self.heads, self.stem = 6, nn.Conv2d(3, width, 3, 1, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.proj = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(6, 64, 64)) for _ in range(depth))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(depth)
        )
        self.up = nn.Sequential(nn.Conv2d(width, 4 * 3, 3, 1, 1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).permute(0, 2, 3, 1)
        b, height, w, c = h.shape
        for i, (qkv, proj, feed) in enumerate(zip(self.qkv, self.proj, self.feed)):
            y = self.norms[2 * i](h)
            if i % 2:
                y = torch.roll(y, shifts=(-4, -4), dims=(1, 2))
            y = y.view(b, height // 8, 8, w // 8, 8, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 64, c)
            q, k, v = qkv(y).reshape(-1, 64, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
            attention = ((q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1) + self.bias[i]).softmax(-1)
            y = proj((attention @ v).transpose(1, 2).reshape(-1, 64, c))
            y = y.view(b, height // 8, w // 8, 8, 8, c).permute(0, 1, 3, 2, 4, 5).reshape(b, height, w, c)
            if i % 2:
                y = torch.roll(y, shifts=(4, 4), dims=(1, 2))
            h = h + y
            h = h + feed(self.norms[2 * i + 1](h))
        return self.up(h.permute(0, 3, 1, 2))


class _Hourglass(Module):
    """Down, deeper, and up again, by recursion."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.skip, self.inner, self.last = (nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.norm = nn.BatchNorm2d(width)
        self.deeper = _Hourglass(depth - 1, width) if depth > 1 else nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        low = self.last(self.deeper(F.relu(self.norm(self.inner(F.max_pool2d(x, 2))))))
        return F.relu(self.skip(x)) + F.interpolate(low, scale_factor=2)


@network(
    "pose",
    "hourglass",
    lambda s: (numbers(3, s["size"], s["size"]),),
    "width=64&stacks=2&size=128",
    "width=128&stacks=4&size=256",
)
class _Pose(Module):
    """Hourglasses in a row, each correcting the heat maps before it."""

    def __init__(self, width: int, stacks: int, size: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.glasses = nn.ModuleList(_Hourglass(4, width) for _ in range(stacks))
        self.heat = nn.ModuleList(nn.Conv2d(width, 17, 1) for _ in range(stacks))
        self.back = nn.ModuleList(nn.Conv2d(17, width, 1) for _ in range(stacks))

    def forward(self, x: Tensor) -> list[Tensor]:
        x, maps = self.stem(x), []
        for glass, heat, back in zip(self.glasses, self.heat, self.back):
            h = glass(x)
            maps.append(heat(h))
            x = x + h + back(maps[-1])
        return maps[::-1]


@network("pose", "branches", lambda s: (numbers(3, s["size"], s["size"]),), "width=18&size=128", "width=32&size=256")
class _Branches(Module):
    """Branches at three resolutions that exchange what they see; joints by a soft argmax."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.w = [width, 2 * width, 4 * width]
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, width, 3, 2, 1), nn.ReLU())
        self.split = nn.ModuleList([nn.Conv2d(width, 2 * width, 3, 2, 1), nn.Conv2d(2 * width, 4 * width, 3, 2, 1)])
        self.own = nn.ModuleList(nn.ModuleList(nn.Conv2d(w, w, 3, 1, 1) for w in self.w) for _ in range(4))
        self.mix = nn.ModuleList(nn.ModuleList(nn.Conv2d(sum(self.w), w, 1) for w in self.w) for _ in range(4))
        self.head = nn.Conv2d(width, 17, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one = self.stem(x)
        two = F.relu(self.split[0](one))
        maps = [one, two, F.relu(self.split[1](two))]
        for own, mix in zip(self.own, self.mix):
            maps = [m + F.relu(layer(m)) for m, layer in zip(maps, own)]
            every = []
            for size in [m.shape[-2:] for m in maps]:
                same = [F.interpolate(m, size=size, mode="bilinear", align_corners=False) for m in maps]
                every.append(torch.cat(same, 1))
            maps = [F.relu(layer(m)) for layer, m in zip(mix, every)]
        heat = self.head(maps[0])
        b, k, h, w = heat.shape
        share = heat.flatten(2).softmax(-1).view(b, k, h, w)
        xs = torch.linspace(-1, 1, w, device=x.device, dtype=x.dtype)
        ys = torch.linspace(-1, 1, h, device=x.device, dtype=x.dtype)
        return heat, torch.stack([torch.einsum("bkhw,w->bk", share, xs), torch.einsum("bkhw,h->bk", share, ys)], -1)


@network(
    "motion",
    "flow",
    lambda s: (numbers(3, s["size"], s["size"]), numbers(3, s["size"], s["size"])),
    "width=64&rounds=4&size=128",
    "width=128&rounds=8&size=256",
)
class _Flow(Module):
    """Optical flow: all pairs of pixels, looked up by ``grid_sample`` and improved by a convolutional GRU."""

    def __init__(self, width: int, rounds: int, size: int) -> None:
        super().__init__()
        self.rounds, self.width = rounds, width
        self.look = nn.Sequential(
            nn.Conv2d(3, width // 2, 7, 2, 3), nn.InstanceNorm2d(width // 2), nn.ReLU(),
            nn.Conv2d(width // 2, width, 3, 2, 1), nn.InstanceNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1),
        )  # fmt: skip
        self.context = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.gates = nn.Conv2d(2 * width + 2, 2 * width, 3, padding=1)
        self.new, self.delta = nn.Conv2d(2 * width + 2, width, 3, padding=1), nn.Conv2d(width, 2, 3, padding=1)
        self.read = nn.Conv2d(9, width, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        a, c = self.look(first), self.look(second)
        b, d, h, w = a.shape
        volume = torch.einsum("bdhw,bdij->bhwij", a, c).reshape(b * h * w, 1, h, w) / d**0.5
        state, context = torch.tanh(self.context(a)).split(self.width, dim=1)
        flow = torch.zeros(b, 2, h, w, device=a.device, dtype=a.dtype)
        ys, xs = torch.meshgrid(torch.arange(h, device=a.device), torch.arange(w, device=a.device), indexing="ij")
        base = torch.stack([xs, ys]).to(a.dtype)
        near = torch.arange(3, device=a.device) - 1
        window = torch.stack(torch.meshgrid(near, near, indexing="ij"), -1).to(a.dtype)
        for _ in range(self.rounds):
            place = (base + flow).permute(0, 2, 3, 1).reshape(b * h * w, 1, 1, 2) + window
            place = 2 * place / (w - 1) - 1
            cost = F.grid_sample(volume, place, align_corners=True).view(b, h, w, 9).permute(0, 3, 1, 2)
            x = torch.cat([F.relu(self.read(cost)) + context, flow], 1)
            z, r = torch.sigmoid(self.gates(torch.cat([state, x], 1))).chunk(2, 1)
            state = (1 - z) * state + z * torch.tanh(self.new(torch.cat([r * state, x], 1)))
            flow = flow + self.delta(state)
        return 8 * F.interpolate(flow, scale_factor=8, mode="bilinear", align_corners=True)


@network(
    "motion",
    "stereo",
    lambda s: (numbers(3, s["size"], 2 * s["size"]), numbers(3, s["size"], 2 * s["size"])),
    "width=16&shifts=16&size=64",
    "width=32&shifts=32&size=128",
)
class _Stereo(Module):
    """Depth from two pictures: a cost volume of shifted features, 3-D convolutions, an expected shift."""

    def __init__(self, width: int, shifts: int, size: int) -> None:
        super().__init__()
        self.shifts = shifts
        self.look = nn.Sequential(
            nn.Conv2d(3, width, 5, 2, 2), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1)
        )
        self.one = nn.Conv3d(2 * width, width, 3, padding=1)
        self.down, self.up = nn.Conv3d(width, 2 * width, 3, 2, 1), nn.ConvTranspose3d(2 * width, width, 4, 2, 1)
        self.norm, self.out = nn.BatchNorm3d(width), nn.Conv3d(width, 1, 3, padding=1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, c = self.look(left), self.look(right)
        slices = [torch.cat([a, F.pad(c, (d, 0))[..., : c.shape[-1]]], 1) for d in range(self.shifts)]
        h = F.relu(self.norm(self.one(torch.stack(slices, dim=2))))
        h = h + self.up(F.relu(self.down(h)))
        share = F.softmax(-self.out(h).squeeze(1), dim=1)
        shift = torch.arange(self.shifts, device=a.device, dtype=a.dtype).view(1, -1, 1, 1)
        depth = (share * shift).sum(1, keepdim=True)
        return F.interpolate(depth, scale_factor=4, mode="bilinear", align_corners=False) * 4


@network(
    "weather", "globe-unet", lambda s: (numbers(20, s["size"], 2 * s["size"]),), "width=32&size=32", "width=64&size=128"
)
class _GlobeUnet(Module):
    """A U-Net around the globe: circular in longitude, reflected at the poles, one step ahead."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        w = [20, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3) for a, b in zip(w, w[1:]))
        self.deep = nn.ModuleList(nn.Conv2d(b, b, 3) for b in w[1:])
        self.up = nn.ModuleList(nn.Conv2d(w[i] + w[i + 1], w[i], 3) for i in (2, 1))
        self.out = nn.Conv2d(width, 20, 1)

    def _around(self, x: Tensor) -> Tensor:
        x = F.pad(x, (1, 1, 0, 0), mode="circular")
        return F.pad(x, (0, 0, 1, 1), mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        h, skips = x, []
        for i, (down, deep) in enumerate(zip(self.down, self.deep)):
            h = F.leaky_relu(down(self._around(h)), 0.1)
            h = F.leaky_relu(deep(self._around(h)), 0.1)
            if i < 2:
                skips.append(h)
                h = F.avg_pool2d(h, 2)
        for up in self.up:
            h = torch.cat([F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False), skips.pop()], 1)
            h = F.leaky_relu(up(self._around(h)), 0.1)
        return x + self.out(h)
