"""MLServer: a runtime that runs everything, with its own adaptive batching."""

import base64

import numpy as np
from mlserver import MLModel
from mlserver.types import InferenceResponse, ResponseOutput
from shared import Whole, picture


class Runtime(MLModel):
    async def load(self) -> bool:
        self.whole = Whole()
        return True

    async def predict(self, payload):
        data = payload.inputs[0].data
        data = getattr(data, "root", data)
        texts = [data] if isinstance(data, (str, bytes)) else list(data)
        found = self.whole(np.stack([picture(base64.b64decode(text)) for text in texts]))
        output = ResponseOutput(name="y", shape=list(found.shape), datatype="FP32", data=found.ravel().tolist())
        return InferenceResponse(model_name=self.name, outputs=[output])
