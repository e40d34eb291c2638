"""Profiling: wild networks that make pictures: autoencoders, generators and their critics, sines of places."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, network, numbers


def _residual(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.GroupNorm(16, before),
        nn.SiLU(),
        nn.Conv2d(before, after, 3, padding=1),
        nn.GroupNorm(16, after),
        nn.SiLU(),
        nn.Conv2d(after, after, 3, padding=1),
    )


@network(
    "autoencoder", "vae-decoder", lambda s: (numbers(4, s["size"], s["size"]),), "width=64&size=16", "width=128&size=32"
)
class _VaeDecoder(Module):
    """Latents become a picture eight times as large."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        widths = [4 * width, 4 * width, 2 * width, width]
        self.stem = nn.Conv2d(4, widths[0], 3, padding=1)
        self.q, self.k, self.v = (nn.Conv2d(widths[0], widths[0], 1) for _ in range(3))
        self.blocks = nn.ModuleList(_residual(a, b) for a, b in zip([widths[0], *widths], widths))
        self.skips = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in zip([widths[0], *widths], widths))
        self.out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        h = self.stem(z)
        b, c, height, w = h.shape
        q, k, v = (layer(h).reshape(b, c, height * w) for layer in (self.q, self.k, self.v))
        weights = F.softmax(torch.bmm(q.permute(0, 2, 1), k) * c**-0.5, dim=2)
        h = h + torch.bmm(v, weights.permute(0, 2, 1)).reshape(b, c, height, w)
        for level, (block, skip) in enumerate(zip(self.blocks, self.skips)):
            h = skip(h) + block(h)
            if level < 3:
                h = F.interpolate(h, scale_factor=2.0, mode="nearest")
        return torch.tanh(self.out(F.silu(h)))


@network(
    "autoencoder",
    "vq-vae",
    lambda s: (numbers(3, s["size"], s["size"]),),
    "width=64&codes=512&size=64",
    "width=128&codes=2048&size=128",
)
class _VqVae(Module):
    """A picture through a codebook: distances, the nearest code, straight-through gradients."""

    def __init__(self, width: int, codes: int, size: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(2 * width, 64, 3, padding=1),
        )  # fmt: skip
        self.book = nn.Embedding(codes, 64)
        self.decode = nn.Sequential(
            nn.Conv2d(64, 2 * width, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encode(x).permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, 64)
        code = self.book.weight
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ code.t() + code.pow(2).sum(1)
        nearest = self.book(distance.argmin(dim=1)).view(z.shape)
        passed = z + (nearest - z).detach()
        return self.decode(passed.permute(0, 3, 1, 2)), (nearest - z.detach()).pow(2).mean(dim=(1, 2, 3))


@network("autoencoder", "beta-vae", lambda s: (numbers(1, 64, 64),), "width=32&latent=16", "width=128&latent=128")
class _BetaVae(Module):
    """A picture to a mean and a spread, a draw, and back."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.width = width
        channels = [1, width, width, 2 * width, 2 * width]
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in zip(channels, channels[1:]))
        self.stats, self.lift = nn.Linear(32 * width, 2 * latent), nn.Linear(latent, 32 * width)
        back = channels[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in zip(back, back[1:]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for layer in self.down:
            x = F.relu(layer(x))
        mean, spread = self.stats(x.flatten(1)).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * spread) if self.training else mean
        x = F.relu(self.lift(z)).view(-1, 2 * self.width, 4, 4)
        for layer in self.up[:-1]:
            x = F.relu(layer(x))
        return torch.sigmoid(self.up[-1](x)), mean, spread


@network("gan", "dcgan", lambda s: (numbers(128),), "width=64&size=64", "width=96&size=128")
class _Dcgan(Module):
    """Noise to a picture through transposed convolutions."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        count = size.bit_length() - 3
        widths = [width * 2 ** (count - 1 - i) for i in range(count)]
        layers: list[nn.Module] = [nn.ConvTranspose2d(128, widths[0], 4, bias=False)]
        for a, b in zip(widths, [*widths[1:], 3]):
            layers += [nn.BatchNorm2d(a), nn.ReLU(True), nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False)]
        self.net = nn.Sequential(*layers, nn.Tanh())

    def forward(self, z: Tensor) -> Tensor:
        return self.net(z[:, :, None, None])


class _StyledConv(Module):
    """A convolution whose input channels are scaled by a style and whose output is brought back to unit scale."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.style = nn.Linear(256, before)
        self.weight = nn.Parameter(torch.randn(after, before, 3, 3))
        self.noise = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        style = self.style(w) + 1
        scale = torch.rsqrt(torch.einsum("bi,oihw,bi->bo", style, self.weight.square(), style) + 1e-4)
        x = F.conv2d(x * style[:, :, None, None], self.weight, padding=1) * scale[:, :, None, None]
        noise = torch.randn(x.shape[0], 1, x.shape[2], x.shape[3], device=x.device, dtype=x.dtype)
        return F.leaky_relu(x + self.noise * noise, 0.2) * 2**0.5


@network("gan", "style-generator", lambda s: (numbers(256),), "width=128&size=64", "width=256&size=256")
class _StyleGenerator(Module):
    """A mapping network, styled convolutions and a sum of pictures at every scale."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.mapping = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))
        self.start = nn.Parameter(torch.randn(1, width, 4, 4))
        widths = [max(width >> max(level - 2, 0), 32) for level in range(size.bit_length() - 3)]
        pairs = list(zip([width, *widths], widths))
        self.first = nn.ModuleList(_StyledConv(a, b) for a, b in pairs)
        self.second = nn.ModuleList(_StyledConv(b, b) for _, b in pairs)
        self.colour = nn.ModuleList(nn.Conv2d(b, 3, 1) for _, b in pairs)

    def forward(self, z: Tensor) -> Tensor:
        w = z * torch.rsqrt(z.pow(2).mean(dim=1, keepdim=True) + 1e-6)
        for layer in self.mapping:
            w = F.leaky_relu(layer(w), 0.2)
        x, picture = self.start.expand(z.shape[0], -1, -1, -1), None
        for first, second, colour in zip(self.first, self.second, self.colour):
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = second(first(x, w), w)
            rgb = colour(x)
            if picture is not None:
                rgb = rgb + F.interpolate(picture, scale_factor=2, mode="bilinear", align_corners=False)
            picture = rgb
        return picture


@network(
    "gan",
    "cycle-generator",
    lambda s: (numbers(3, s["size"], s["size"]),),
    "width=32&blocks=4&size=128",
    "width=64&blocks=9&size=256",
)
class _CycleGenerator(Module):
    """A picture in another style: reflected borders and instance norms."""

    def __init__(self, width: int, blocks: int, size: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7)
        self.down = nn.ModuleList([nn.Conv2d(width, 2 * width, 3, 2, 1), nn.Conv2d(2 * width, 4 * width, 3, 2, 1)])
        self.blocks = nn.ModuleList(nn.Conv2d(4 * width, 4 * width, 3) for _ in range(2 * blocks))
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 3, 2, 1, 1), nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1)]
        )
        self.out = nn.Conv2d(width, 3, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.instance_norm(self.stem(F.pad(x, (3, 3, 3, 3), mode="reflect"))))
        for layer in self.down:
            x = F.relu(F.instance_norm(layer(x)))
        for one, two in zip(self.blocks[::2], self.blocks[1::2]):
            h = F.relu(F.instance_norm(one(F.pad(x, (1, 1, 1, 1), mode="reflect"))))
            x = x + F.instance_norm(two(F.pad(h, (1, 1, 1, 1), mode="reflect")))
        for layer in self.up:
            x = F.relu(F.instance_norm(layer(x)))
        return torch.tanh(self.out(F.pad(x, (3, 3, 3, 3), mode="reflect")))


@network("gan", "patch-critic", lambda s: (numbers(6, s["size"], s["size"]),), "width=64&size=128", "width=64&size=256")
class _PatchCritic(Module):
    """Judges patches of a pair of pictures at three scales; returns a score a picture and its features."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Conv2d(6, width, 4, 2, 1), nn.Conv2d(width, 2 * width, 4, 2, 1),
                    nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.Conv2d(4 * width, 1, 4, 1, 1),
                ]
            )
            for _ in range(3)
        )  # fmt: skip

    def forward(self, x: Tensor) -> list[Tensor]:
        scores, features = [], []
        for layers in self.scales:
            h = x
            for layer in layers[:-1]:
                h = F.leaky_relu(F.instance_norm(layer(h)), 0.2)
                features.append(h)
            scores.append(layers[-1](h).mean(dim=(1, 2, 3)))
            x = F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
        return [torch.stack(scores, dim=1).unsqueeze(-1), *features]


@network(
    "radiance",
    "sine-picture",
    lambda s: (numbers(s["points"], 2), numbers(64)),
    "width=128&points=1024",
    "width=256&points=16384",
)
class _SinePicture(Module):
    """Sines of linear layers, their frequencies and phases set by a code."""

    def __init__(self, width: int, points: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 if i == 0 else width, width) for i in range(5))
        self.code, self.out = (
            nn.Sequential(nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 10 * width)),
            nn.Linear(width, 3),
        )

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        style = self.code(code)[:, None].chunk(10, dim=-1)
        for i, layer in enumerate(self.layers):
            x = torch.sin((15 + style[2 * i]) * layer(x) + style[2 * i + 1])
        return self.out(x)
