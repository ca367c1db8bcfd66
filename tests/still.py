"""Chance that takes nothing off a wait, for tests that know each time."""

from random import Random


class Still(Random):
    """Draws 0 wherever a fraction is drawn; so there is no jitter."""

    def random(self):
        return 0.0
