"""How? Which configurations a stage may run in, and what each budget of time buys of them.

Pure: this package reads state and answers; it has no clock, no randomness and no effects. Implementations that are
not ours live in `lab.rivals`; `wiring` chooses.
"""

from .space import Space

__all__ = ["Space"]
