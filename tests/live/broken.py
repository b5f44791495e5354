"""An application that can be imported in the front only."""

import sys

from dovetail import App, stage, tensor, workflow

if "dovetail.live.worker" in getattr(sys.modules["__main__"].__spec__, "name", ""):
    raise RuntimeError("this module works only in the front")


@stage
def same(items):
    return items


@workflow(slo="1s")
def echo(x: tensor("float32", 3)):
    return same(x)


app = App(echo)
