"""The state of the system as the policies see it: requests, the work waiting in queues, and the workers.

The Controller owns these objects and is the only one to change them; the five answers (plan, place, scale, device,
predict) read them. They are plain slotted classes rather than frozen records because they are touched for every
event of every request.
"""

from .graph import CompiledGraph, CompiledNode, compile_graphs
from .queue import Queue
from .request import OUTCOMES, Item, Request
from .run_batch import NEVER_NS, RunBatch
from .slice import Slice
from .worker import Batch, Cluster, Worker
from .worker_spec import Config, WorkerRow, WorkerSpec

__all__ = [
    "NEVER_NS", "OUTCOMES", "Batch", "Cluster", "CompiledGraph", "CompiledNode", "Config", "Item", "Queue", "Request",
    "RunBatch", "Slice", "Worker", "WorkerRow", "WorkerSpec", "compile_graphs",
]  # fmt: skip
