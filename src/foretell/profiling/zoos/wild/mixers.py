"""Profiling: wild networks that mix a sequence in other ways: linear attention, states, experts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, integers, network, numbers


@network(
    "linear-attention",
    "kernel-attention",
    lambda s: (numbers(s["length"], s["width"]),),
    "width=128&depth=4&length=1024",
    "width=512&depth=6&length=4096",
)
class _KernelAttention(Module):
    """Softmax replaced by elu + 1: keys and values are summed first, einsum of three operands at the end."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.heads = width // 32
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        for qkv, feed, norm in zip(self.qkv, self.feed, self.norm):
            q, k, v = (part.reshape(b, n, self.heads, -1) for part in qkv(norm(x)).chunk(3, -1))
            q, k = F.elu(q) + 1, (F.elu(k) + 1) / n
            kv = torch.einsum("bnhd,bnhe->bhde", k, v)
            z = 1 / (torch.einsum("bnhd,bhd->bnh", q, k.sum(dim=1)) + 1e-4)
            x = x + torch.einsum("bnhd,bhde,bnh->bnhe", q, kv, z).reshape(b, n, d)
            x = x + feed(x)
        return x


@network(
    "linear-attention",
    "retention",
    lambda s: (integers(10000, s["length"]),),
    "width=256&depth=4&length=256",
    "width=512&depth=8&length=1024",
)
class _Retention(Module):
    """Attention without softmax under a mask that decays with distance; groups are normalised, outputs gated."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(10000, width), width // 64
        self.qkvg = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(depth))
        self.proj = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.groups = nn.ModuleList(nn.GroupNorm(self.heads, width) for _ in range(depth))
        self.out = nn.Linear(width, 10000)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        b, n, d = x.shape
        place = torch.arange(n, device=x.device)
        distance = (place[:, None] - place[None, :]).float()
        decay = 1 - 2.0 ** (-5 - torch.arange(self.heads, device=x.device).float())
        mask = torch.where(distance >= 0, decay[:, None, None] ** distance.clamp(min=0), 0.0).to(x.dtype)
        for qkvg, proj, group in zip(self.qkvg, self.proj, self.groups):
            q, k, v, g = torch.split(qkvg(F.layer_norm(x, (d,))), d, dim=-1)
            q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * mask * (d // self.heads) ** -0.5
            y = torch.einsum("bhij,bhjd->bihd", scores, v).reshape(b * n, d)
            x = x + proj(group(y).view(b, n, d) * F.silu(g))
        return self.out(x)


@network(
    "linear-attention",
    "fourier-mixer",
    lambda s: (integers(30000, s["length"]),),
    "width=256&depth=4&length=256",
    "width=768&depth=8&length=512",
)
class _FourierMixer(Module):
    """Attention replaced by the real part of a Fourier transform over places and channels."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(30000, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth)
        )
        self.out = nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for i, feed in enumerate(self.feed):
            mixed = torch.fft.fft(torch.fft.fft(x.float(), dim=-1), dim=-2).real / x.shape[-2] ** 0.5
            x = self.norms[2 * i](x + mixed.to(x.dtype) / x.shape[-1] ** 0.5)
            x = self.norms[2 * i + 1](x + feed(x))
        return self.out(x.mean(1))


@network(
    "state-space",
    "diagonal-states",
    lambda s: (numbers(s["length"], 16),),
    "width=128&depth=4&length=1024",
    "width=256&depth=6&length=4096",
)
class _DiagonalStates(Module):
    """Diagonal states as one long convolution, done by Fourier transforms."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.stem, self.out = nn.Linear(16, width), nn.Linear(width, 10)
        self.rate = nn.ParameterList(nn.Parameter(torch.rand(width, 16)) for _ in range(depth))
        self.turn = nn.ParameterList(nn.Parameter(torch.rand(width, 16)) for _ in range(depth))
        self.mix = nn.ParameterList(nn.Parameter(torch.randn(width, 16)) for _ in range(depth))
        self.gate = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        n = h.shape[1]
        times = torch.arange(n, device=x.device).float() / n
        for rate, turn, mix, gate, norm in zip(self.rate, self.turn, self.mix, self.gate, self.norm):
            damped = torch.exp(-rate.float().exp()[..., None] * times) * torch.cos(
                6.28 * turn.float()[..., None] * times
            )
            kernel = torch.einsum("cs,csl->cl", mix.float(), damped)
            u = norm(h).transpose(1, 2).float()
            y = torch.fft.irfft(torch.fft.rfft(u, n=2 * n) * torch.fft.rfft(kernel, n=2 * n), n=2 * n)[..., :n]
            h = h + F.glu(gate(F.gelu(y.transpose(1, 2).to(h.dtype) / n**0.5)), dim=-1)
        return self.out(h.mean(1))


@network(
    "state-space",
    "selective-loop",
    lambda s: (numbers(s["length"], s["width"]),),
    "width=128&depth=2&length=32",
    "width=256&depth=2&length=96",
)
class _SelectiveLoop(Module):
    """A selective state space written as a loop over time, with einsum in each step."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.depth, inner = depth, 2 * width
        self.entry = nn.ModuleList(nn.Linear(width, 2 * inner, bias=False) for _ in range(depth))
        self.conv = nn.ModuleList(nn.Conv1d(inner, inner, 4, groups=inner, padding=3) for _ in range(depth))
        self.choose = nn.ModuleList(nn.Linear(inner, 33, bias=False) for _ in range(depth))
        self.step = nn.ModuleList(nn.Linear(1, inner) for _ in range(depth))
        self.rate = nn.ParameterList(nn.Parameter(torch.rand(inner, 16)) for _ in range(depth))
        self.leave = nn.ModuleList(nn.Linear(inner, width, bias=False) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(self.depth):
            u, gate = self.entry[i](x).chunk(2, dim=-1)
            u = F.silu(self.conv[i](u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            delta, b, c = self.choose[i](u).split([1, 16, 16], dim=-1)
            delta = F.softplus(self.step[i](delta))
            keep = torch.exp(-torch.einsum("bld,dn->bldn", delta, self.rate[i].exp()))
            bring = torch.einsum("bld,bln,bld->bldn", delta, b, u)
            state, outputs = torch.zeros_like(bring[:, 0]), []
            for t in range(x.shape[1]):
                state = keep[:, t] * state + bring[:, t]
                outputs.append(torch.einsum("bdn,bn->bd", state, c[:, t]))
            x = x + self.leave[i](torch.stack(outputs, 1) * F.silu(gate))
        return x


@network(
    "state-space",
    "gated-sum",
    lambda s: (integers(256, s["length"]),),
    "width=256&depth=4&length=512",
    "width=512&depth=8&length=2048",
)
class _GatedSum(Module):
    """A recurrence with decays, in logarithms and by ``cumsum``, over bytes."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.bytes, self.out = nn.Embedding(256, width), nn.Linear(width, 256)
        self.parts = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.bytes(tokens)
        for parts, norm in zip(self.parts, self.norms):
            value, decay, gate = parts(norm(x)).chunk(3, -1)
            total = torch.cumsum(F.logsigmoid(decay.float() + 4), dim=1).clamp(min=-8)
            y = torch.cumsum(value.float() * torch.exp(-total), dim=1) * torch.exp(total)
            x = x + torch.sigmoid(gate) * y.to(x.dtype) / x.shape[1] ** 0.5
        return self.out(x)


@network(
    "experts",
    "capacity-experts",
    lambda s: (numbers(s["length"], s["width"]),),
    "width=256&experts=8&length=128",
    "width=512&experts=16&length=512",
)
class _CapacityExperts(Module):
    """Two experts a token with a fixed capacity: places by ``cumsum``, dispatch and return by einsum."""

    def __init__(self, width: int, experts: int, length: int) -> None:
        super().__init__()
        self.experts, self.capacity = experts, 2 * length // experts
        self.route = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * width**-0.5)
        self.norm, self.attend = nn.LayerNorm(width), nn.MultiheadAttention(width, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x, x, x, need_weights=False)[0]
        share = self.route(self.norm(x)).softmax(-1)
        best, index = share.topk(2, dim=-1)
        names, seats = torch.arange(self.experts, device=x.device), torch.arange(self.capacity, device=x.device)
        chosen = (index[..., None] == names).to(x.dtype)
        place = torch.cumsum(chosen.flatten(1, 2).float(), dim=1).view(chosen.shape) * chosen.float() - 1
        seat = (place[..., None] == seats).to(x.dtype)
        send = seat.sum(2)
        back = torch.einsum("btk,btkec->btec", best, seat)
        inside = torch.einsum("btec,btd->ebcd", send, x)
        hidden = F.gelu(torch.einsum("ebcd,edf->ebcf", inside, self.up))
        return x + torch.einsum("btec,ebcf,efd->btd", back, hidden, self.down)


@network(
    "experts",
    "soft-experts",
    lambda s: (numbers(s["length"], s["width"]),),
    "width=256&experts=16&length=196",
    "width=768&experts=32&length=196",
)
class _SoftExperts(Module):
    """Experts see weighted means of all tokens and answer to all of them; every product is an einsum."""

    def __init__(self, width: int, experts: int, length: int) -> None:
        super().__init__()
        self.keys = nn.ParameterList(nn.Parameter(torch.randn(width, experts, 4) * width**-0.5) for _ in range(3))
        self.up = nn.ParameterList(nn.Parameter(torch.randn(experts, width, width) * width**-0.5) for _ in range(3))
        self.down = nn.ParameterList(nn.Parameter(torch.randn(experts, width, width) * width**-0.5) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for keys, up, down in zip(self.keys, self.up, self.down):
            scores = torch.einsum("btd,des->btes", F.normalize(x, dim=-1), F.normalize(keys, dim=0))
            slots = torch.einsum("btd,btes->besd", x, scores.softmax(dim=1))
            answers = torch.einsum("besf,efd->besd", F.relu(torch.einsum("besd,edf->besf", slots, up)), down)
            x = x + torch.einsum("besd,btes->btd", answers, scores.flatten(2).softmax(-1).view_as(scores))
        return x
