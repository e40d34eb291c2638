"""Profiling: wild networks over graphs with dense and scattered edges, clouds of points, and physics."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, integers, network, numbers


@network(
    "graphs",
    "dense-graph",
    lambda s: (numbers(s["nodes"], 32), numbers(s["nodes"], s["nodes"])),
    "width=64&nodes=64",
    "width=256&nodes=512",
)
class _DenseGraph(Module):
    """Convolutions over a weighted adjacency matrix that is normalised on the fly."""

    def __init__(self, width: int, nodes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32 if i == 0 else width, width, bias=False) for i in range(4))
        self.out = nn.Linear(width, 7)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        a = torch.sigmoid(edges) + torch.eye(x.shape[1], device=x.device, dtype=x.dtype)
        degree = a.sum(-1).rsqrt()
        a = torch.einsum("bi,bij,bj->bij", degree, a, degree)
        for layer in self.layers:
            x = F.relu(torch.bmm(a, layer(x)))
        return self.out(x.mean(1))


@network(
    "graphs",
    "attentive-graph",
    lambda s: (numbers(s["nodes"], 64), integers(2, s["nodes"], s["nodes"])),
    "width=16&nodes=100",
    "width=32&nodes=400",
)
class _AttentiveGraph(Module):
    """Attention over neighbours: sums of two scores by broadcasting, masked where there is no edge."""

    def __init__(self, width: int, nodes: int) -> None:
        super().__init__()
        self.heads, self.width = 8, width
        self.lift = nn.ModuleList([nn.Linear(64, 8 * width), nn.Linear(8 * width, 8 * width)])
        self.left, self.right = (
            nn.ParameterList(nn.Parameter(torch.randn(8, width)) for _ in range(2)) for _ in range(2)
        )
        self.out = nn.Linear(8 * width, 16)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        b, n, _ = x.shape
        for lift, left, right in zip(self.lift, self.left, self.right):
            h = lift(x).view(b, n, self.heads, self.width)
            one, two = (h * left).sum(-1), (h * right).sum(-1)
            scores = F.leaky_relu(one[:, :, None] + two[:, None], 0.2)
            scores = scores.masked_fill(edges[..., None] == 0, -1e4).softmax(dim=2)
            x = F.elu(torch.einsum("bijh,bjhd->bihd", scores, h).reshape(b, n, -1))
        return self.out(x)


@network(
    "graphs",
    "molecules",
    lambda s: (integers(100, s["atoms"]), integers(s["atoms"], 2, s["bonds"]), integers(5, s["bonds"])),
    "width=64&atoms=32&bonds=64",
    "width=256&atoms=128&bonds=512",
)
class _Molecules(Module):
    """Messages along bonds: gathered by atom, added with ``scatter_add`` and taken in by a ``GRUCell``."""

    def __init__(self, width: int, atoms: int, bonds: int) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(100, width), nn.Embedding(5, width)
        self.message = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.update, self.out = nn.GRUCell(width, width), nn.Linear(width, 12)

    def forward(self, atoms: Tensor, ends: Tensor, kinds: Tensor) -> Tensor:
        h, e = self.atoms(atoms), self.bonds(kinds)
        b, n, d = h.shape
        source, target = (index[..., None].expand(-1, -1, d) for index in ends.unbind(1))
        for _ in range(4):
            m = self.message(torch.cat([h.gather(1, source), h.gather(1, target), e], -1))
            total = torch.zeros(b, n, d, device=m.device, dtype=m.dtype).scatter_add(1, target, m)
            h = self.update(total.view(b * n, d), h.reshape(b * n, d)).view(b, n, d)
        return self.out(h.sum(1) / n)


@network(
    "graphs",
    "sparse-graph",
    lambda s: (numbers(s["nodes"], 64),),
    "width=64&nodes=1000&degree=8",
    "width=128&nodes=10000&degree=16",
)
class _SparseGraph(Module):
    """A fixed sparse graph: rows gathered by edge, summed with ``index_add``."""

    def __init__(self, width: int, nodes: int, degree: int) -> None:
        super().__init__()
        edge = torch.arange(nodes * degree)
        self.register_buffer("source", (edge * 7919 + 13) % nodes)
        self.register_buffer("target", edge % nodes)
        self.own = nn.ModuleList(nn.Linear(64 if i == 0 else width, width) for i in range(3))
        self.near = nn.ModuleList(nn.Linear(64 if i == 0 else width, width, bias=False) for i in range(3))
        self.degree = degree

    def forward(self, x: Tensor) -> Tensor:
        for own, near in zip(self.own, self.near):
            messages = torch.index_select(near(x), 1, self.source)
            total = torch.zeros_like(messages[:, : x.shape[1]]).index_add(1, self.target, messages)
            x = F.normalize(F.relu(own(x) + total / self.degree), dim=-1)
        return x


def _neighbours(x: Tensor, k: int) -> Tensor:
    """For each point, itself, its ``k`` nearest and the difference, as a picture of channels."""
    square = (x**2).sum(1, keepdim=True)
    index = (2 * x.transpose(2, 1) @ x - square - square.transpose(2, 1)).topk(k, dim=-1).indices
    b, c, n = x.shape
    near = x.transpose(1, 2).gather(1, index.reshape(b, n * k, 1).expand(-1, -1, c)).view(b, n, k, c)
    own = x.transpose(1, 2)[:, :, None].expand(-1, -1, k, -1)
    return torch.cat((near - own, own), dim=3).permute(0, 3, 1, 2)


@network("points", "edge-points", lambda s: (numbers(3, s["points"]),), "width=32&points=256", "width=64&points=1024")
class _EdgePoints(Module):
    """Convolutions over edges to the nearest points, found again in every layer."""

    def __init__(self, width: int, points: int) -> None:
        super().__init__()
        w = [3, width, width, 2 * width]
        self.convs = nn.ModuleList(nn.Conv2d(2 * a, b, 1, bias=False) for a, b in zip(w, w[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in w[1:])
        self.last, self.out = nn.Conv1d(4 * width, 512, 1), nn.Linear(1024, 40)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for conv, norm in zip(self.convs, self.norms):
            x = F.leaky_relu(norm(conv(_neighbours(x, 16))), 0.2).amax(dim=-1)
            kept.append(x)
        h = F.leaky_relu(self.last(torch.cat(kept, 1)), 0.2)
        return self.out(torch.cat((F.adaptive_max_pool1d(h, 1), F.adaptive_avg_pool1d(h, 1)), 1).flatten(1))


@network("points", "point-parts", lambda s: (numbers(3, s["points"]),), "width=64&points=512", "width=128&points=4096")
class _PointParts(Module):
    """A small network turns the cloud, shared layers see each point, the maximum of all is told to each."""

    def __init__(self, width: int, points: int) -> None:
        super().__init__()
        self.turn, self.angles = nn.ModuleList([nn.Conv1d(3, 64, 1), nn.Conv1d(64, 256, 1)]), nn.Linear(256, 9)
        w = [3, width, 2 * width, 8 * width]
        self.convs, self.norms = (
            nn.ModuleList(nn.Conv1d(a, b, 1) for a, b in zip(w, w[1:])),
            nn.ModuleList(nn.BatchNorm1d(b) for b in w[1:]),
        )
        self.head = nn.Sequential(nn.Conv1d(9 * width, 256, 1), nn.BatchNorm1d(256), nn.ReLU(), nn.Conv1d(256, 50, 1))

    def forward(self, x: Tensor) -> Tensor:
        t = x
        for layer in self.turn:
            t = F.relu(layer(t))
        matrix = self.angles(t.max(2)[0]).view(-1, 3, 3) + torch.eye(3, device=x.device, dtype=x.dtype)
        h, first = torch.bmm(matrix, x), None
        for conv, norm in zip(self.convs, self.norms):
            h = F.relu(norm(conv(h)))
            first = h if first is None else first
        whole = h.max(2, keepdim=True)[0].expand(-1, -1, x.shape[2])
        return self.head(torch.cat([first, whole], 1))


@network(
    "points", "vector-attention", lambda s: (numbers(s["points"], 3),), "width=32&points=256", "width=96&points=1024"
)
class _VectorAttention(Module):
    """Attention with one weight a channel over the nearest points, which know where they are."""

    def __init__(self, width: int, points: int) -> None:
        super().__init__()
        self.stem, self.qkv = nn.Linear(3, width), nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.place = nn.ModuleList(
            nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(2)
        )
        self.weigh = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(2)
        )
        self.out = nn.Linear(width, 13)

    def forward(self, xyz: Tensor) -> Tensor:
        b, n, _ = xyz.shape
        gap = (xyz[:, :, None] - xyz[:, None]).square().sum(-1)
        near = gap.topk(16, largest=False).indices.view(b, n * 16, 1)
        offset = xyz[:, :, None] - xyz.gather(1, near.expand(-1, -1, 3)).view(b, n, 16, 3)
        h = self.stem(xyz)
        for qkv, place, weigh in zip(self.qkv, self.place, self.weigh):
            q, k, v = qkv(h).chunk(3, -1)
            k, v = (t.gather(1, near.expand(-1, -1, t.shape[-1])).view(b, n, 16, -1) for t in (k, v))
            where = place(offset)
            weights = weigh(q[:, :, None] - k + where).softmax(dim=2)
            h = h + torch.einsum("bnkc,bnkc->bnc", weights, v + where)
        return self.out(h)


@network(
    "physics",
    "mesh-steps",
    lambda s: (numbers(s["nodes"], 12),),
    "width=64&nodes=500&rounds=4",
    "width=128&nodes=2000&rounds=8",
)
class _MeshSteps(Module):
    """A mesh that moves: edges and nodes update each other, residually, with norms everywhere."""

    def __init__(self, width: int, nodes: int, rounds: int) -> None:
        super().__init__()
        edge = torch.arange(6 * nodes)
        self.register_buffer("sender", edge % nodes)
        self.register_buffer("receiver", (edge % nodes + edge // nodes + 1) % nodes)
        self.node, self.edge, self.out = self._mlp(12, width), self._mlp(12, width), nn.Linear(width, 3)
        self.edges = nn.ModuleList(self._mlp(3 * width, width) for _ in range(rounds))
        self.nodes = nn.ModuleList(self._mlp(2 * width, width) for _ in range(rounds))

    def _mlp(self, before: int, width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(before, width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width))

    def forward(self, x: Tensor) -> Tensor:
        e = self.edge(x[:, self.sender] - x[:, self.receiver])
        h = self.node(x)
        for edges, nodes in zip(self.edges, self.nodes):
            e = e + edges(torch.cat([e, h[:, self.sender], h[:, self.receiver]], dim=-1))
            total = e.new_zeros(h.shape[0], h.shape[1], e.shape[-1]).index_add(1, self.receiver, e)
            h = h + nodes(torch.cat([h, total], dim=-1))
        return self.out(h)


@network(
    "physics",
    "informed",
    lambda s: (numbers(s["points"], 3),),
    "width=64&depth=6&points=1000",
    "width=256&depth=8&points=10000",
)
class _Informed(Module):
    """A field as a deep tanh network with gates, and its residual by finite differences in place and time."""

    def __init__(self, width: int, depth: int, points: int) -> None:
        super().__init__()
        self.u, self.v, self.stem = nn.Linear(3, width), nn.Linear(3, width), nn.Linear(3, width)
        self.layers, self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth)), nn.Linear(width, 1)

    def _field(self, x: Tensor) -> Tensor:
        u, v, h = torch.tanh(self.u(x)), torch.tanh(self.v(x)), torch.tanh(self.stem(x))
        for layer in self.layers:
            z = torch.tanh(layer(h))
            h = (1 - z) * u + z * v
        return self.out(h)

    def forward(self, x: Tensor) -> Tensor:
        axis = torch.eye(3, device=x.device, dtype=x.dtype) * 0.01
        centre = self._field(x)
        change = [(self._field(x + step) - centre) / 0.01 for step in axis]
        return change[2] + centre * change[0] + centre * change[1]


@network(
    "physics",
    "atoms",
    lambda s: (numbers(s["atoms"], 3), integers(20, s["atoms"])),
    "width=64&atoms=32",
    "width=128&atoms=96",
)
class _Atoms(Module):
    """Continuous filters from distances between all atoms, and an energy; vectors move with the atoms."""

    def __init__(self, width: int, atoms: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(20, width)
        self.register_buffer("centres", torch.linspace(0, 8, 32))
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(32, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(3)
        )
        self.entry, self.leave = (nn.ModuleList(nn.Linear(width, width) for _ in range(3)) for _ in range(2))
        self.energy = nn.Sequential(nn.Linear(width, width // 2), nn.Softplus(), nn.Linear(width // 2, 1))
        self.shift = nn.Linear(width, 1)

    def forward(self, xyz: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        h = self.kinds(kinds)
        for filters, entry, leave in zip(self.filters, self.entry, self.leave):
            gap = xyz[:, :, None] - xyz[:, None]
            distance = (gap.pow(2).sum(-1) + 1e-3).sqrt()
            w = filters(torch.exp(-2 * (distance[..., None] - self.centres) ** 2))
            m = torch.einsum("bijc,bjc,bij->bijc", w, entry(h), torch.exp(-distance))
            h = h + F.softplus(leave(m.sum(2)))
            xyz = xyz + (gap * self.shift(m)).mean(2)
        return self.energy(h).sum(1).unsqueeze(-1), xyz
