"""What lies between several ingresses and the workers that they share: messages that take time, and values that move.

Rules of this file
- A batch reaches its worker when its inputs have: a value is where it was made, and moving it costs time. Whatever
  else ingresses and workers say to each other takes `message_ns`, and nothing on one machine's way back.
- That a model has come or gone a worker tells the ingress on its own machine (the first, if there is none), in whose
  log it stands; the others read it in the state table.
- Host workers, which run ordinary Python, belong to one ingress each and are in no table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..control import BatchFailed, BatchFinished, Controller, Event, RunBatch
from ..place.transfer import Delays
from .state_table import Staleness, StateTable

__all__ = ["Network"]


class Network:
    """The ways between N ingresses and their workers."""

    def __init__(
        self,
        controllers: Iterable[Controller],
        delays: Delays,
        staleness: Staleness | None = None,
        *,
        message_ns: int = 2_000,
        input_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """`input_bytes` are those of a request's inputs, by workflow."""
        self.message_ns = message_ns
        self._controllers = list(controllers)
        for number, controller in enumerate(self._controllers):
            if controller.ingress != number:
                raise ValueError(f"ingress {number} has a controller that takes itself for {controller.ingress}")
        self._delays = delays
        self._input_bytes = input_bytes or {}
        self.table = StateTable(len(self._controllers), staleness or Staleness())
        #: Ingress -> the worker on its own machine, if it has one.
        self._own: dict[int, int] = {}
        #: Worker -> the ingress that hears of its models.
        self._told: dict[int, int] = {}
        #: (ingress, request) -> (node, index) -> worker that made the value.
        self._made: dict[tuple[int, int], dict[tuple[int, int], int]] = {}

    def join(self, worker: int, own_of: int | None) -> None:
        """A worker that all share; `own_of` is the ingress on its machine."""
        self.table.join(worker, own_of)
        self._told[worker] = own_of or 0
        if own_of is not None:
            self._own[own_of] = worker

    def join_host(self, worker: int, ingress: int) -> None:
        """A host worker of one ingress."""
        self._told[worker] = ingress

    # -- to workers ---------------------------------------------------------------------------------------------

    def inputs_ns(self, ingress: int, run: RunBatch) -> int:
        """When all inputs of a batch are with its worker, from now on."""
        requests, delays = self._controllers[ingress].requests, self._delays
        longest = 0
        for request, node, _index in run.items:
            graph = requests[request].graph
            made = self._made.get((ingress, request), {})
            for source in graph.nodes[node].node.sources():
                if source.node < 0:
                    if self._own.get(ingress) != run.worker:
                        longest = max(longest, delays.message_ns(self._input_bytes.get(graph.name, 0)))
                    continue
                nbytes = graph.nodes[source.node].node.out_bytes
                for (made_by, _), worker in made.items():
                    if made_by == source.node and worker != run.worker:
                        longest = max(longest, delays.result_ns(nbytes))
        return longest

    # -- from workers -------------------------------------------------------------------------------------------

    def heard(self, worker: int, event: Event) -> tuple[int, int]:
        """Which ingress hears of what a worker says, and after how long."""
        if isinstance(event, BatchFinished | BatchFailed):
            ingress = event.ingress
            if isinstance(event, BatchFinished):
                self._note(ingress, event.batch, worker)
        else:
            ingress = self._told[worker]
        return ingress, 0 if self._own.get(ingress) == worker else self.message_ns

    def _note(self, ingress: int, batch: int, worker: int) -> None:
        """The results of a batch are where it ran."""
        controller = self._controllers[ingress]
        ended = controller.batches.get(batch)
        for item in ended.items if ended is not None else ():
            if item.request.id in controller.requests:
                self._made.setdefault((ingress, item.request.id), {})[item.node, item.index] = worker

    def forget(self, ingress: int, request: int) -> None:
        """A request is answered: its values are of no use any more."""
        self._made.pop((ingress, request), None)
