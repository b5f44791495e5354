"""The front door: a workflow is one model of the Open Inference Protocol v2, over HTTP/1.1.

`http` speaks HTTP and knows nothing of inference, `tensors` turns bytes into values and back, `oip` has the routes,
and `backend` says what the front needs from the system behind it. Start it with `oip.start`.
"""
