"""LitServe: one API that runs everything, with its own batching."""

import base64
import json

import litserve
import numpy as np
from fastapi import Response
from shared import MOST, PORT, WAIT_S, Whole, picture


class Api(litserve.LitAPI):
    def setup(self, device):
        self.whole = Whole()

    def decode_request(self, request):
        return picture(base64.b64decode(request["x"]))

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, batch):
        return self.whole(batch)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return Response(json.dumps(output.tolist()), media_type="application/json")


if __name__ == "__main__":
    api = Api(max_batch_size=MOST, batch_timeout=WAIT_S)
    litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60).run(
        host="127.0.0.1", port=PORT, log_level="error", generate_client_file=False
    )
