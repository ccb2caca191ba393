"""A small transformer on generated text. Many parameters for short lines: its gradients, not its arithmetic, take time.

torchrun --standalone --nproc-per-node=2 examples/train_transformer.py --checkpoints /tmp/transformer
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from training import arguments, generator_of, train

WORDS, LENGTH, HEADS = 8192, 16, 4


class Transformer(nn.Module):
    """Two causal blocks between an embedding and a linear layer; words [batch, length] -> [batch, length, words]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.place = nn.Parameter(torch.zeros(LENGTH, width))
        block = nn.TransformerEncoderLayer(width, HEADS, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of the next word at every place."""
        scores: Tensor = self.head(self.blocks(self.embed(words) + self.place, mask=self.mask, is_causal=True))
        return scores


def make_line(step: int, sample: int) -> Tensor:
    """Words of a line in which each follows from the one before, from a random first."""
    first = torch.randint(WORDS, (1,), generator=generator_of(step, sample))
    line = [first]
    for _ in range(LENGTH):
        line.append((line[-1] * 31 + 7) % WORDS)
    return torch.cat(line)


def make_batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
    """This worker's lines and the same lines shifted by a word."""
    lines = torch.stack([make_line(step, n) for n in samples])
    return lines[:, :-1], lines[:, 1:]


if __name__ == "__main__":
    args = arguments(__doc__, steps=500, batch=64, size=128)
    torch.manual_seed(0)
    train(args, Transformer(args.size), make_batch)
