"""A small convolutional network on generated images. Much arithmetic for few parameters: it scales with workers.

torchrun --standalone --nproc-per-node=2 examples/train_cnn.py --checkpoints /tmp/cnn
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from training import arguments, generator_of, train

CLASSES, PIXELS = 10, 32


class Cnn(nn.Module):
    """Four convolutions and a linear layer; [batch, 3, pixels, pixels] -> [batch, classes]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [3, width, width, 2 * width, 2 * width]
        layers: list[nn.Module] = []
        for n, (before, after) in enumerate(pairwise(widths)):
            layers += [nn.Conv2d(before, after, 3, stride=1 + n // 3, padding=1), nn.GroupNorm(4, after), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.features(images).mean((2, 3)))
        return scores


def make_image(step: int, sample: int) -> tuple[Tensor, int]:
    """Noise with a brighter stripe whose place is the class."""
    generator = generator_of(step, sample)
    label = int(torch.randint(CLASSES, (), generator=generator))
    image = torch.randn(3, PIXELS, PIXELS, generator=generator)
    image[:, 3 * label : 3 * label + 3] += 1.0
    return image, label


def make_batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
    """This worker's images and labels."""
    images, labels = zip(*(make_image(step, n) for n in samples), strict=True)
    return torch.stack(images), torch.tensor(labels)


if __name__ == "__main__":
    args = arguments(__doc__, steps=500, batch=48, size=16)
    torch.manual_seed(0)
    train(args, Cnn(args.size), make_batch)
