"""An application with a model that is like none of the catalogue."""

from tests.live.apps import _model

from dovetail import App, onnx, workflow

unlike = onnx(_model("double"), name="unlike")


@workflow(slo="1s")
def lonely(x):
    return unlike(x)


app = App(lonely)
