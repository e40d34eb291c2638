"""Profiling: wild networks that choose: recommenders, tables of columns, and games."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, integers, network, numbers


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@network(
    "recommendation",
    "many-tables",
    lambda s: (numbers(13), integers(s["rows"], 26)),
    "rows=10000&width=16",
    "rows=200000&width=64",
)
class _ManyTables(Module):
    """Twenty-six tables, one gather each, all pairs of products by bmm."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(26))
        self.bottom, self.top = _mlp(13, 512, 256, width), _mlp(width + 351, 1024, 512, 256, 1)
        row, column = torch.tril_indices(27, 27, offset=-1)
        self.register_buffer("row", row)
        self.register_buffer("column", column)

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        x = self.bottom(dense)
        all_rows = torch.stack([x] + [table(rows[:, i]) for i, table in enumerate(self.tables)], dim=1)
        pairs = torch.bmm(all_rows, all_rows.transpose(1, 2))[:, self.row, self.column]
        return torch.sigmoid(self.top(torch.cat([x, pairs], dim=1)))[..., None]


@network(
    "recommendation", "factors", lambda s: (integers(s["rows"], 39),), "rows=100000&width=16", "rows=1000000&width=32"
)
class _Factors(Module):
    """One large table for all columns, a sum of squares, and a deep part beside it."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(rows, 1), nn.Embedding(rows, width)
        self.deep = nn.Sequential(
            nn.Linear(39 * width, 400),
            nn.BatchNorm1d(400),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(400, 400),
            nn.ReLU(),
            nn.Linear(400, 1),
        )

    def forward(self, rows: Tensor) -> Tensor:
        e = self.second(rows)
        pairs = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.first(rows).sum(1) + pairs + self.deep(e.flatten(1)))[..., None]


@network(
    "recommendation", "crosses", lambda s: (numbers(s["columns"]),), "columns=256&layers=3", "columns=1024&layers=6"
)
class _Crosses(Module):
    """Low-rank products with the input, layer by layer, mixed over four experts."""

    def __init__(self, columns: int, layers: int) -> None:
        super().__init__()
        self.v = nn.ParameterList(nn.Parameter(torch.randn(4, columns, 64) * columns**-0.5) for _ in range(layers))
        self.u = nn.ParameterList(nn.Parameter(torch.randn(4, 64, columns) * 0.1) for _ in range(layers))
        self.gate, self.out = nn.Linear(columns, 4), nn.Linear(columns, 2)

    def forward(self, x: Tensor) -> Tensor:
        x0 = x
        for u, v in zip(self.u, self.v):
            low = torch.tanh(torch.einsum("bd,edr->ber", x, v))
            x = x + x0 * torch.einsum("ber,erd,be->bd", low, u, self.gate(x).softmax(-1))
        return self.out(x)


@network(
    "recommendation",
    "interests",
    lambda s: (integers(50000, s["history"]), integers(50000, 1)),
    "width=32&history=50",
    "width=64&history=200",
)
class _Interests(Module):
    """What somebody bought, weighed by how it fits a candidate; a GRU reads the rest."""

    def __init__(self, width: int, history: int) -> None:
        super().__init__()
        self.items, self.gru = nn.Embedding(50000, width), nn.GRU(width, width, batch_first=True)
        self.weigh, self.out = _mlp(4 * width, 80, 40, 1), _mlp(3 * width, 200, 80, 2)

    def forward(self, history: Tensor, candidate: Tensor) -> Tensor:
        past, wanted = self.items(history), self.items(candidate)
        wide = wanted.expand_as(past)
        weights = self.weigh(torch.cat([past, wide, past - wide, past * wide], dim=-1))
        interest = (weights.softmax(1) * past).sum(1)
        state = self.gru(past)[1].squeeze(0)
        return self.out(torch.cat([interest, state, wanted.squeeze(1)], 1))


@network(
    "recommendation",
    "next-item",
    lambda s: (integers(20000, s["length"]),),
    "width=64&length=50",
    "width=128&length=200",
)
class _NextItem(Module):
    """Self-attention over what somebody saw; all items are scored by their embeddings."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(20000, width), nn.Parameter(torch.zeros(length, width))
        self.attend = nn.ModuleList(nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, width, 1)) for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, items: Tensor) -> Tensor:
        x = self.items(items) + self.places
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        for attend, feed in zip(self.attend, self.feed):
            x = x + attend(self.norm(x), x, x, attn_mask=mask, need_weights=False)[0]
            x = x + feed(x.transpose(1, 2)).transpose(1, 2)
        return x[:, -1] @ self.items.weight.t()


@network(
    "tabular",
    "column-tokens",
    lambda s: (numbers(s["columns"]), integers(100, 8)),
    "width=64&columns=24",
    "width=192&columns=100",
)
class _ColumnTokens(Module):
    """Every column a token: numbers scale a vector each, classes are looked up; pre-norm transformer blocks."""

    def __init__(self, width: int, columns: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.randn(columns, width) * 0.1) for _ in range(2))
        self.classes, self.cls = nn.Embedding(800, width), nn.Parameter(torch.zeros(1, 1, width))
        self.register_buffer("offsets", torch.arange(8) * 100)
        self.blocks = nn.ModuleList(nn.MultiheadAttention(width, 8, batch_first=True) for _ in range(3))
        self.feed = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(3))
        self.back = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))
        self.norms, self.out = nn.ModuleList(nn.LayerNorm(width) for _ in range(6)), nn.Linear(width, 2)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        tokens = x[..., None] * self.weight + self.bias
        h = torch.cat([self.cls.expand(x.shape[0], -1, -1), tokens, self.classes(classes + self.offsets)], dim=1)
        for i, (block, feed, back) in enumerate(zip(self.blocks, self.feed, self.back)):
            y = self.norms[2 * i](h)
            h = h + block(y, y, y, need_weights=False)[0]
            a, b = feed(self.norms[2 * i + 1](h)).chunk(2, dim=-1)
            h = h + back(a * F.gelu(b))
        return self.out(F.relu(h[:, 0]))


@network("tabular", "masked-steps", lambda s: (numbers(s["columns"]),), "width=32&columns=64", "width=128&columns=512")
class _MaskedSteps(Module):
    """Five steps, each choosing columns by a learned mask and gated layers."""

    def __init__(self, width: int, columns: int) -> None:
        super().__init__()
        self.norm, self.width = nn.BatchNorm1d(columns), width
        self.shared = nn.Linear(columns, 4 * width, bias=False)
        self.own = nn.ModuleList(nn.Linear(2 * width, 4 * width, bias=False) for _ in range(5))
        self.choose = nn.ModuleList(nn.Linear(width, columns, bias=False) for _ in range(5))
        self.norms, self.out = nn.ModuleList(nn.BatchNorm1d(4 * width) for _ in range(5)), nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        prior, total, a = torch.ones_like(x), x.new_zeros(x.shape[0], self.width), x[:, : self.width]
        for own, choose, norm in zip(self.own, self.choose, self.norms):
            mask = F.softmax(choose(a) * prior, dim=-1)
            prior = prior * (1.3 - mask)
            h = F.glu(norm(self.shared(mask * x)), dim=-1)
            h = (h + F.glu(own(h), dim=-1)) * 0.5**0.5
            d, a = h.chunk(2, dim=-1)
            total = total + F.relu(d)
        return self.out(total)


@network(
    "tabular",
    "residual-table",
    lambda s: (numbers(s["columns"]),),
    "width=256&depth=4&columns=50",
    "width=1024&depth=8&columns=300",
)
class _ResidualTable(Module):
    """Residual fully connected blocks over periodic embeddings of numbers."""

    def __init__(self, width: int, depth: int, columns: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.randn(columns, 8))
        self.stem, self.out = nn.Linear(16 * columns, width), nn.Linear(width, 1)
        self.norm = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.one, self.two = (
            nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth)),
            nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth)),
        )

    def forward(self, x: Tensor) -> Tensor:
        angle = 6.2831853 * self.frequency * x[..., None]
        h = self.stem(torch.cat([torch.cos(angle), torch.sin(angle)], -1).flatten(1))
        for norm, one, two in zip(self.norm, self.one, self.two):
            h = h + two(F.dropout(F.relu(one(norm(h))), 0.1, self.training))
        return self.out(F.relu(h)).unsqueeze(-1)


@network(
    "games",
    "board-tower",
    lambda s: (numbers(17, s["board"], s["board"]),),
    "width=64&blocks=5&board=9",
    "width=256&blocks=19&board=19",
)
class _BoardTower(Module):
    """A tower of residual blocks over a board, with a policy and a value."""

    def __init__(self, width: int, blocks: int, board: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(17, width, 3, padding=1, bias=False)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2 * blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2 * blocks + 1))
        self.policy, self.move = nn.Conv2d(width, 2, 1), nn.Linear(2 * board * board, board * board + 1)
        self.worth, self.value = nn.Conv2d(width, 1, 1), _mlp(board * board, 256, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.norms[0](self.stem(x)))
        for i in range(0, len(self.convs), 2):
            h = F.relu(self.norms[i + 1](self.convs[i](x)))
            x = F.relu(x + self.norms[i + 2](self.convs[i + 1](h)))
        return self.move(F.relu(self.policy(x)).flatten(1)), torch.tanh(self.value(F.relu(self.worth(x)).flatten(1)))


@network("games", "arcade", lambda s: (numbers(4, 84, 84),), "width=32&quantiles=1", "width=64&quantiles=51")
class _Arcade(Module):
    """Four frames of a game to a value and advantages, as distributions."""

    def __init__(self, width: int, quantiles: int) -> None:
        super().__init__()
        self.quantiles = quantiles
        self.convs = nn.ModuleList(
            [nn.Conv2d(4, width, 8, 4), nn.Conv2d(width, 2 * width, 4, 2), nn.Conv2d(2 * width, 2 * width, 3)]
        )
        self.value, self.advantage = _mlp(98 * width, 512, quantiles), _mlp(98 * width, 512, 18 * quantiles)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu(conv(x))
        x = x.flatten(1)
        value, advantage = self.value(x).unsqueeze(1), self.advantage(x).view(-1, 18, self.quantiles)
        return value + advantage - advantage.mean(1, keepdim=True)


@network(
    "games",
    "imagined-moves",
    lambda s: (numbers(32, 8, 8), integers(64, s["moves"])),
    "width=64&moves=3",
    "width=128&moves=5",
)
class _ImaginedMoves(Module):
    """A learned model of a game, unrolled over moves given as planes of one-hot squares."""

    def __init__(self, width: int, moves: int) -> None:
        super().__init__()
        self.look = nn.Conv2d(32, width, 3, padding=1)
        self.go = nn.ModuleList(
            [nn.Conv2d(width + 1, width, 3, padding=1), *(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))]
        )
        self.reward, self.policy = nn.Linear(width, 21), nn.Linear(64 * width, 64)

    def forward(self, board: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
        state, rewards, policies = F.relu(self.look(board)), [], []
        squares = torch.arange(64, device=board.device)
        for t in range(moves.shape[1]):
            plane = (moves[:, t, None] == squares).to(state.dtype).view(-1, 1, 8, 8)
            h = F.relu(self.go[0](torch.cat([state, plane], 1)))
            for layer in self.go[1:]:
                h = F.relu(h + layer(h))
            low, high = h.amin((1, 2, 3), keepdim=True), h.amax((1, 2, 3), keepdim=True)
            state = (h - low) / (high - low + 1e-3)
            rewards.append(self.reward(state.mean((2, 3))))
            policies.append(self.policy(state.flatten(1)))
        return torch.stack(policies, 1), torch.stack(rewards, 1)
