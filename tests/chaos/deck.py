"""What is drawn from a deck happens: by luck of the draw only the order is left."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping


class Deck:
    """Cards by weight. The first ones are one of each kind, in any order; an empty deck is filled.

    A card that cannot be played just now is kept, and played as soon as it can be.
    """

    def __init__(self, chance: random.Random, weights: Mapping[str, int]) -> None:
        self._chance = chance
        self._weights = weights
        self._cards: list[str] = []

    def draw(self, can_be_played: Callable[[str], bool] = lambda _: True) -> str | None:
        """The next card that can be played; None: there is none in a whole deck."""
        for _ in range(2):
            for n, card in enumerate(self._cards):
                if can_be_played(card):
                    return self._cards.pop(n)
            self._cards += self._shuffled()
        return None

    def _shuffled(self) -> list[str]:
        firsts = list(self._weights)
        rest = [card for card, weight in self._weights.items() for _ in range(weight - 1)]
        self._chance.shuffle(firsts)
        self._chance.shuffle(rest)
        return firsts + rest
