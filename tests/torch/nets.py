"""Functions that make torch modules; workers import this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import torch
from torch import nn


class Tower(nn.Module):
    """Rows of matrix products: long enough for several kernels, and slow for no other reason."""

    def __init__(self, layers: int, rows: int, width: int) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(7)
        self._rows = rows
        self.first = nn.Parameter(torch.randn(3, width, generator=chance))
        self.layers = nn.ParameterList(
            torch.randn(width, width, generator=chance) / width**0.5 for _ in range(layers)
        )

    def forward(self, x: Any) -> Any:
        y = x.unsqueeze(1).expand(-1, self._rows, 3) @ self.first
        for weights in self.layers:
            y = (y @ weights).tanh()
        return y.mean(1)[:, :3]


class Several(nn.Module):
    """Two inputs of different types, two outputs; it changes an input in place."""

    def forward(self, x: Any, times: Any) -> Any:
        x.add_(1)
        return {"product": x * times.unsqueeze(1), "total": x.sum(1)}


class Choice(nn.Module):
    """Cannot be traced."""

    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Positives(nn.Module):
    """How many it gives back depends on values."""

    def forward(self, x: Any) -> Any:
        return x[x[:, 0] > 0]


class Picky(nn.Module):
    """Takes no noughts."""

    def forward(self, x: Any) -> Any:
        return torch.linalg.inv(torch.diag_embed(x)).sum(2)


def picky() -> nn.Module:
    return Picky()


def tower() -> nn.Module:
    return Tower(layers=16, rows=192, width=512)


def small() -> nn.Module:
    return Tower(layers=4, rows=2, width=8)


def several() -> nn.Module:
    return Several()


def choice() -> nn.Module:
    return Choice()


def positives() -> nn.Module:
    return Positives()


def scaled(path: str) -> nn.Module:
    module = nn.Linear(3, 1, bias=False)
    module.weight.data = torch.from_numpy(np.load(Path(path)))
    return module


def no_module() -> str:
    return "a text"


def broken() -> nn.Module:
    raise OSError("the disk is gone")
