"""Sentences that a user reads."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """The number with its noun, in the plural where it is not one: `1 host`, `2 hosts`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
