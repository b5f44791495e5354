"""Ray Serve: a deployment for each model, with its own batching; an ingress that asks them."""

import asyncio
import json
import time

import numpy as np
import ray
from ray import serve
from ray.serve.config import HTTPOptions
from shared import MOST, PORT, QUEUE, WAIT_S, WHICH, picture, run, session
from starlette.requests import Request
from starlette.responses import Response

CPU = {"num_cpus": 0.1}


@serve.deployment(num_replicas=1, max_ongoing_requests=MOST * 4, ray_actor_options=CPU)
class Model:
    def __init__(self, name):
        self.model = session(name)

    @serve.batch(max_batch_size=MOST, batch_wait_timeout_s=WAIT_S)
    async def ask(self, pictures):
        return list(run(self.model, np.stack(pictures)))


@serve.deployment(num_replicas=1, max_ongoing_requests=MOST, max_queued_requests=QUEUE, ray_actor_options=CPU)
class One(Model.func_or_class):
    async def __call__(self, request: Request):
        return Response(json.dumps((await self.ask(picture(await request.body()))).tolist()))


@serve.deployment(num_replicas=1, max_ongoing_requests=MOST, max_queued_requests=QUEUE, ray_actor_options=CPU)
class Front:
    def __init__(self, clean, kind, grade):
        self.clean, self.kind, self.grade = clean, kind, grade

    async def __call__(self, request: Request):
        cleaned = await self.clean.ask.remote(picture(await request.body()))
        found = await asyncio.gather(self.kind.ask.remote(cleaned), self.grade.ask.remote(cleaned))
        return Response(json.dumps(np.concatenate(found).tolist()))


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=PORT))
    if WHICH == "one":
        serve.run(One.bind("one"), route_prefix="/")
    else:
        models = [Model.options(name=name).bind(name) for name in ("clean", "kind", "grade")]
        serve.run(Front.bind(*models), route_prefix="/")
    print("ready", flush=True)
    while True:
        time.sleep(60)
