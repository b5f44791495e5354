"""What two fronts serve with the same workers; and another application, which must not join them."""

from __future__ import annotations

from tests.live.apps import ITEM, double, fan, heavy, plain, positive, slow, wait_at_gate

from dovetail import App, workflow


@workflow(slo="1s")
def held(x: ITEM) -> ITEM:
    """A model's result, which is kept until the gate of twice the number is open."""
    return wait_at_gate(double(x))


@workflow(slo="1s")
def pace(x: ITEM) -> ITEM:
    """Some tens of milliseconds of a device, and nothing else."""
    return slow(x)


@workflow(slo="1s")
def later(x: ITEM) -> ITEM:
    """A model's result, which another model reads once the gate of the number is open."""
    return slow.when(positive(wait_at_gate(x)))(double(x))


app = App(plain, heavy, fan, held, pace, later)
other = App(plain)
