"""Profiling: wild networks of fields in space: radiance, operators between functions, and the weather."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, integers, network, numbers


def _waves(x: Tensor, count: int) -> Tensor:
    """Sines and cosines of a place at powers of two."""
    scaled = x[..., None] * (2.0 ** torch.arange(count, device=x.device)).to(x.dtype)
    return torch.cat([x, torch.sin(scaled).flatten(-2), torch.cos(scaled).flatten(-2)], dim=-1)


def _along_rays(density: Tensor, colour: Tensor) -> Tensor:
    """The colour of each ray: what is seen of each sample through those before it."""
    alpha = 1 - torch.exp(-F.softplus(density) / density.shape[-1])
    clear = torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha + 1e-4], -1), -1)[..., :-1]
    return torch.einsum("brs,brs,brsc->brc", alpha, clear, colour)


@network(
    "radiance",
    "nerf",
    lambda s: (numbers(s["rays"], 6),),
    "width=128&rays=128&samples=32",
    "width=256&rays=512&samples=64",
)
class _Nerf(Module):
    """Rays through a scene that eight layers remember, with a skip and a view."""

    def __init__(self, width: int, rays: int, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.layers = nn.ModuleList(nn.Linear(63 if i == 0 else width + (63 if i == 4 else 0), width) for i in range(8))
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.view, self.colour = nn.Linear(width + 27, width // 2), nn.Linear(width // 2, 3)

    def forward(self, rays: Tensor) -> Tensor:
        origin, way = rays.split(3, dim=-1)
        depth = torch.linspace(0, 1, self.samples, device=rays.device, dtype=rays.dtype)
        points = _waves(origin[:, :, None] + way[:, :, None] * depth[:, None], 10)
        h = points
        for i, layer in enumerate(self.layers):
            h = F.relu(layer(torch.cat([h, points], -1) if i == 4 else h))
        view = _waves(F.normalize(way, dim=-1), 4)[:, :, None].expand(-1, -1, self.samples, -1)
        colour = torch.sigmoid(self.colour(F.relu(self.view(torch.cat([self.feature(h), view], -1)))))
        return _along_rays(self.density(h).squeeze(-1), colour)


@network(
    "radiance",
    "hashed-grids",
    lambda s: (numbers(s["points"], 3),),
    "levels=8&rows=16384&points=2048",
    "levels=16&rows=524288&points=16384",
)
class _HashedGrids(Module):
    """Corners of cells at many scales, hashed into tables; eight gathers a level, blended, and a small network."""

    def __init__(self, levels: int, rows: int, points: int) -> None:
        super().__init__()
        self.rows, self.tables = rows, nn.ModuleList(nn.Embedding(rows, 2) for _ in range(levels))
        self.net = nn.Sequential(nn.Linear(2 * levels, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        x, features = torch.sigmoid(x.float()), []
        for level, table in enumerate(self.tables):
            scaled = x * (16 * 1.4**level)
            corner = scaled.floor()
            share = scaled - corner
            base, total = corner.long(), 0
            for dx in (0, 1):
                for dy in (0, 1):
                    for dz in (0, 1):
                        a, b, c = base[..., 0] + dx, (base[..., 1] + dy) * 2654435761, (base[..., 2] + dz) * 805459861
                        row = torch.remainder(a ^ b ^ c, self.rows)
                        weight = torch.ones_like(share[..., 0])
                        for axis, bit in enumerate((dx, dy, dz)):
                            weight = weight * (share[..., axis] if bit else 1 - share[..., axis])
                        total = total + weight[..., None].to(table.weight.dtype) * table(row)
            features.append(total)
        return self.net(torch.cat(features, dim=-1))


@network(
    "radiance",
    "three-planes",
    lambda s: (numbers(s["rays"], 6), numbers(96, s["plane"], s["plane"])),
    "rays=256&samples=24&plane=64",
    "rays=1024&samples=48&plane=128",
)
class _ThreePlanes(Module):
    """Points on rays looked up in three planes of features by ``grid_sample``."""

    def __init__(self, rays: int, samples: int, plane: int) -> None:
        super().__init__()
        self.samples = samples
        self.refine, self.net = (
            nn.Conv2d(32, 32, 3, padding=1),
            nn.Sequential(nn.Linear(32, 64), nn.Softplus(), nn.Linear(64, 4)),
        )

    def forward(self, rays: Tensor, planes: Tensor) -> Tensor:
        b, r, _ = rays.shape
        p = self.refine(planes.reshape(b * 3, 32, *planes.shape[2:]))
        origin, way = rays.chunk(2, -1)
        depth = torch.linspace(-1, 1, self.samples, device=rays.device, dtype=rays.dtype)[:, None]
        xyz = torch.tanh(origin[:, :, None] + way[:, :, None] * depth).reshape(b, -1, 3)
        sides = torch.stack([xyz[..., :2], xyz[..., 1:], xyz[..., ::2]], dim=1).flatten(0, 1).unsqueeze(1)
        found = F.grid_sample(p, sides, align_corners=False).view(b, 3, 32, -1).mean(1)
        rgb, density = self.net(found.transpose(1, 2)).view(b, r, self.samples, 4).split([3, 1], dim=-1)
        return _along_rays(density.squeeze(-1), torch.sigmoid(rgb))


@network(
    "operators",
    "fourier-line",
    lambda s: (numbers(s["points"], 2),),
    "width=32&modes=16&points=1024",
    "width=64&modes=32&points=8192",
)
class _FourierLine(Module):
    """A function on a line to another: products of its lowest frequencies, and local mixing."""

    def __init__(self, width: int, modes: int, points: int) -> None:
        super().__init__()
        self.modes, self.lift = modes, nn.Linear(2, width)
        self.weights = nn.ParameterList(nn.Parameter(torch.rand(width, width, modes, 2) / width) for _ in range(4))
        self.local = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(4))
        self.one, self.two = nn.Linear(width, 128), nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x).permute(0, 2, 1)
        n = h.shape[-1]
        for i, (weight, local) in enumerate(zip(self.weights, self.local)):
            spectrum = torch.fft.rfft(h.float(), norm="ortho")[..., : self.modes]
            mixed = torch.einsum("bim,iom->bom", spectrum, torch.view_as_complex(weight.float()))
            full = F.pad(mixed, (0, n // 2 + 1 - self.modes))
            h = torch.fft.irfft(full, n=n, norm="ortho").to(h.dtype) + local(h)
            h = F.gelu(h) if i < 3 else h
        return self.two(F.gelu(self.one(h.permute(0, 2, 1))))


@network(
    "operators",
    "fourier-plane",
    lambda s: (numbers(3, s["size"], s["size"]),),
    "width=32&modes=12&size=64",
    "width=64&modes=20&size=128",
)
class _FourierPlane(Module):
    """A flow on a plane, one step: two corners of the spectrum are multiplied."""

    def __init__(self, width: int, modes: int, size: int) -> None:
        super().__init__()
        self.width, self.modes, self.lift = width, modes, nn.Conv2d(3, width, 1)
        self.corners = nn.ParameterList(
            nn.Parameter(torch.rand(width, width, modes, modes, 2) / width) for _ in range(8)
        )
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(4))
        self.out = nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        h, m = self.lift(x), self.modes
        b, c, height, w = h.shape
        for i, local in enumerate(self.local):
            spectrum = torch.fft.rfft2(h.float(), norm="ortho")
            out = torch.zeros(b, c, height, w // 2 + 1, dtype=torch.cfloat, device=x.device)
            low, high = (torch.view_as_complex(self.corners[2 * i + j].float()) for j in range(2))
            out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], low)
            out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], high)
            h = F.gelu(torch.fft.irfft2(out, s=(height, w), norm="ortho").to(h.dtype) + local(h))
        return self.out(h)


@network(
    "operators",
    "branch-trunk",
    lambda s: (numbers(s["sensors"]), numbers(s["points"], 2)),
    "width=128&sensors=100&points=1000",
    "width=512&sensors=1000&points=5000",
)
class _BranchTrunk(Module):
    """One network reads a function at sensors, one the places asked for; their product is the answer."""

    def __init__(self, width: int, sensors: int, points: int) -> None:
        super().__init__()
        self.branch = nn.ModuleList(nn.Linear(sensors if i == 0 else width, width) for i in range(4))
        self.trunk = nn.ModuleList(nn.Linear(2 if i == 0 else width, width) for i in range(4))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, values: Tensor, places: Tensor) -> Tensor:
        for layer in self.branch[:-1]:
            values = F.gelu(layer(values))
        for layer in self.trunk:
            places = torch.tanh(layer(places))
        return (torch.einsum("bw,bpw->bp", self.branch[-1](values), places) + self.bias)[..., None]


@network(
    "weather",
    "adaptive-fourier",
    lambda s: (numbers(20, s["size"], 2 * s["size"]),),
    "width=256&depth=4&size=64",
    "width=512&depth=8&size=256",
)
class _AdaptiveFourier(Module):
    """Patches of the globe mixed in their spectrum by blocks of small complex networks with soft shrinkage."""

    def __init__(self, width: int, depth: int, size: int) -> None:
        super().__init__()
        self.width, self.patch = width, nn.Conv2d(20, width, 8, 8)
        shape = (2, 8, width // 8, width // 8)
        self.first, self.second = (
            nn.ParameterList(nn.Parameter(torch.randn(shape) * 0.05) for _ in range(depth)) for _ in range(2)
        )
        self.feed = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )
        self.out = nn.Linear(width, 20 * 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).permute(0, 2, 3, 1)
        b, height, w, c = h.shape
        for first, second, feed in zip(self.first, self.second, self.feed):
            z = torch.fft.rfft2(h.float(), dim=(1, 2), norm="ortho").view(b, height, w // 2 + 1, 8, c // 8)
            re, im, f, s = z.real, z.imag, first.float(), second.float()
            a = F.relu(torch.einsum("...ni,nio->...no", re, f[0]) - torch.einsum("...ni,nio->...no", im, f[1]))
            d = F.relu(torch.einsum("...ni,nio->...no", im, f[0]) + torch.einsum("...ni,nio->...no", re, f[1]))
            real = torch.einsum("...ni,nio->...no", a, s[0]) - torch.einsum("...ni,nio->...no", d, s[1])
            imaginary = torch.einsum("...ni,nio->...no", d, s[0]) + torch.einsum("...ni,nio->...no", a, s[1])
            z = torch.view_as_complex(F.softshrink(torch.stack([real, imaginary], dim=-1), 0.01))
            h = h + torch.fft.irfft2(z.reshape(b, height, w // 2 + 1, c), s=(height, w), dim=(1, 2), norm="ortho").to(
                h.dtype
            )
            h = h + feed(h)
        y = self.out(h).view(b, height, w, 8, 8, 20)
        return torch.einsum("bhwpqc->bchpwq", y).reshape(b, 20, 8 * height, 8 * w)


@network(
    "weather",
    "mesh-forecast",
    lambda s: (numbers(s["cells"], 32), integers(366)),
    "width=64&cells=2048&mesh=256",
    "width=128&cells=16384&mesh=1024",
)
class _MeshForecast(Module):
    """Cells of a grid tell a coarse mesh, the mesh talks to itself, and tells the cells."""

    def __init__(self, width: int, cells: int, mesh: int) -> None:
        super().__init__()
        self.mesh, cell, edge = mesh, torch.arange(cells), torch.arange(8 * mesh)
        self.register_buffer("home", cell % mesh)
        self.register_buffer("sender", edge % mesh)
        self.register_buffer("receiver", (edge * 31 + 7) % mesh)
        self.day = nn.Embedding(366, width)
        self.stem, self.tell, self.back = nn.Linear(32, width), nn.Linear(width, width), nn.Linear(2 * width, width)
        self.edges = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(4)
        )
        self.norms, self.out = nn.ModuleList(nn.LayerNorm(width) for _ in range(4)), nn.Linear(width, 32)

    def forward(self, x: Tensor, day: Tensor) -> Tensor:
        h = F.silu(self.stem(x) + self.day(day)[:, None])
        told = self.tell(h)
        m = torch.zeros_like(told[:, : self.mesh]).index_add(1, self.home, told) * (self.mesh / x.shape[1])
        for edges, norm in zip(self.edges, self.norms):
            e = edges(torch.cat([m[:, self.sender], m[:, self.receiver]], -1))
            m = norm(m + torch.zeros_like(e[:, : self.mesh]).index_add(1, self.receiver, e) / math.sqrt(8))
        return x + self.out(F.silu(self.back(torch.cat([h, m[:, self.home]], -1))))
