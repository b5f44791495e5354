"""BentoML: a service for each model, with its own batching; a front that asks them."""

import asyncio
import json

import bentoml
import numpy as np
from fastapi import FastAPI, Request, Response
from shared import MOST, QUEUE, SLO_MS, WHICH, picture, run, session

QUIET = {"logging": {"access": {"enabled": False}}}


def service(name):
    @bentoml.service(name=name, workers=1, traffic={"timeout": 60}, **QUIET)
    class Model:
        def __init__(self):
            self.model = session(name)

        @bentoml.api(batchable=True, max_batch_size=MOST, max_latency_ms=SLO_MS)
        def ask(self, x: np.ndarray) -> np.ndarray:
            return run(self.model, x)

    return Model


if WHICH == "one":
    One = service("one")
else:
    Clean, Kind, Grade = service("clean"), service("kind"), service("grade")


app = FastAPI()


@bentoml.service(name="front", workers=1, traffic={"timeout": 60, "max_concurrency": QUEUE}, **QUIET)
@bentoml.asgi_app(app)
class Front:
    if WHICH == "one":
        one = bentoml.depends(One)
    else:
        clean, kind, grade = bentoml.depends(Clean), bentoml.depends(Kind), bentoml.depends(Grade)

    @app.post("/ask")
    async def ask(self, request: Request) -> Response:
        x = picture(await request.body())[None]
        try:
            if WHICH == "one":
                found = await self.one.to_async.ask(x)
            else:
                clean = await self.clean.to_async.ask(x)
                parts = await asyncio.gather(self.kind.to_async.ask(clean), self.grade.to_async.ask(clean))
                found = np.concatenate(parts, axis=1)
        except bentoml.exceptions.BentoMLException:  # a service gives up what has waited too long
            return Response(status_code=503)
        return Response(json.dumps(found[0].tolist()), media_type="application/json")
