"""How long does a tensor take to a worker process and its answer back? Ours against the ways of the standard library.

    python bench/ipc.py [--json]

One float32 tensor of 3 × 224 × 224 (0.6 MB) goes to a child process, which reads one number of every page and
answers with their sum. Front and children are held on two different CPUs, as in service; left alone, the kernel
puts both on one CPU in some rounds, where a doorbell is several times faster than between two. The
ways take turns in every round, so that a busy neighbour meets all of them; a figure is the median over rounds of
the round's median, with the spread over rounds. Results go to stdout, progress to stderr. Takes about ten seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import socket
import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dovetail.live.tensors.arena import Arena
from dovetail.live.tensors.codec import decode, encode
from dovetail.live.tensors.ref import Ref

SHAPE = (3, 224, 224)
ROUNDS = 21
TRIPS_PER_ROUND = 80
WARM_UP_TRIPS = 50
FLOATS_PER_PAGE = 1024

Tensor = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Way:
    """One way to a child process: `trip` sends the tensor and returns the child's answer."""

    name: str
    trip: Callable[[Tensor], float]
    stop: Callable[[], None]


def sum_of_pages(tensor: Tensor) -> float:
    """What the child does with the tensor: hardly anything, but it touches every page."""
    return float(tensor.reshape(-1)[::FLOATS_PER_PAGE].sum(dtype=np.float64))


def separate_cpus() -> tuple[set[int], set[int]]:
    """CPUs for the front and for the children: one each, or the only one there is."""
    cpus = sorted(os.sched_getaffinity(0))
    return {cpus[0]}, {cpus[-1]}


def arena_child(door: socket.socket) -> None:
    _, fds, _, _ = socket.recv_fds(door, 16, 1)
    arenas = {0: Arena.attach(0, fds[0])}
    read_ref = msgspec.msgpack.Decoder(Ref).decode
    while message := door.recv(4096):
        door.send(struct.pack("<d", sum_of_pages(decode(read_ref(message), arenas))))


def pipe_child(pipe: Connection) -> None:
    while (tensor := pipe.recv()) is not None:
        pipe.send(sum_of_pages(tensor))


def queue_child(tasks: Any, answers: Any) -> None:
    while (tensor := tasks.get()) is not None:
        answers.put(sum_of_pages(tensor))


def open_arena(spawn: Any, tensor: Tensor) -> list[Way]:
    """Ours twice: the tensor is copied into the arena, or lies there already, as a request body does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = spawn.Process(target=arena_child, args=(theirs,), daemon=True)
    child.start()
    theirs.close()
    arena = Arena.create(0)
    socket.send_fds(ours, [b"arena"], [arena.fd])
    write_ref = msgspec.msgpack.Encoder().encode
    in_place = encode(tensor, arena)

    def ring(ref: Ref) -> float:
        ours.send(write_ref(ref))
        answer: float = struct.unpack("<d", ours.recv(8))[0]
        return answer

    def copy_and_ring(tensor: Tensor) -> float:
        ref = encode(tensor, arena)
        answer = ring(ref)
        arena.free(ref.offset)
        return answer

    def stop() -> None:
        ours.close()  # the child reads the end of the stream
        child.join()
        arena.close()

    return [
        Way("arena + doorbell", copy_and_ring, stop),
        Way("arena + doorbell, tensor in place", lambda _: ring(in_place), lambda: None),
    ]


def open_pipe(spawn: Any) -> Way:
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=pipe_child, args=(theirs,), daemon=True)
    child.start()
    theirs.close()

    def trip(tensor: Tensor) -> float:
        ours.send(tensor)
        answer: float = ours.recv()
        return answer

    def stop() -> None:
        ours.send(None)
        child.join()

    return Way("multiprocessing.Pipe (pickle)", trip, stop)


def open_queue(spawn: Any) -> Way:
    tasks, answers = spawn.Queue(), spawn.Queue()
    child = spawn.Process(target=queue_child, args=(tasks, answers), daemon=True)
    child.start()

    def trip(tensor: Tensor) -> float:
        tasks.put(tensor)
        answer: float = answers.get()
        return answer

    def stop() -> None:
        tasks.put(None)
        child.join()

    return Way("multiprocessing.Queue (pickle)", trip, stop)


def median_trip_us(way: Way, tensor: Tensor, trips: int) -> float:
    expected = sum_of_pages(tensor)
    durations_ns = []
    for _ in range(trips):
        begin_ns = time.perf_counter_ns()
        answer = way.trip(tensor)
        durations_ns.append(time.perf_counter_ns() - begin_ns)
        if answer != expected:
            raise SystemExit(f"{way.name} answered {answer} instead of {expected}")
    return statistics.median(durations_ns) / 1_000


def measure() -> dict[str, Any]:
    """Every way in every round; the order turns by one each round."""
    tensor = np.random.default_rng(0).random(SHAPE, np.float32)
    spawn = multiprocessing.get_context("spawn")
    front_cpus, child_cpus = separate_cpus()
    os.sched_setaffinity(0, child_cpus)  # which the children inherit
    ways = [*open_arena(spawn, tensor), open_pipe(spawn), open_queue(spawn)]
    os.sched_setaffinity(0, front_cpus)
    try:
        for way in ways:
            median_trip_us(way, tensor, WARM_UP_TRIPS)
        rounds_us: dict[str, list[float]] = {way.name: [] for way in ways}
        for turn in track(range(ROUNDS), "rounds", console=Console(stderr=True), transient=True):
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                rounds_us[way.name].append(median_trip_us(way, tensor, TRIPS_PER_ROUND))
    finally:
        for way in ways:
            way.stop()
    ours_us = rounds_us[ways[0].name]
    return {
        "tensor_bytes": tensor.nbytes,
        "rounds": ROUNDS,
        "trips_per_round": TRIPS_PER_ROUND,
        "cpus": len(front_cpus | child_cpus),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ways": [
            {
                "name": name,
                "trip_us": spread(trips_us),
                "times_ours": spread([us / ours for us, ours in zip(trips_us, ours_us, strict=True)]),
            }
            for name, trips_us in rounds_us.items()
        ],
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def table_of(result: dict[str, Any]) -> Table:
    table = Table(
        title=f"round trip of {result['tensor_bytes'] / 1e6:.1f} MB to a child process",
        caption=f"median (min–max) of {result['rounds']} rounds of {result['trips_per_round']} trips; "
        f"on {result['cpus']} CPUs, load {result['load_1min']:.1f}",
    )
    table.add_column("way")
    table.add_column("µs", justify="right")
    table.add_column("times ours", justify="right")
    for way in result["ways"]:
        us, times = way["trip_us"], way["times_ours"]
        table.add_row(
            way["name"],
            f"{us['median']:.0f} ({us['min']:.0f}–{us['max']:.0f})",
            f"{times['median']:.1f} ({times['min']:.1f}–{times['max']:.1f})",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Round trip of a tensor to a child process, in four ways.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    as_json = parser.parse_args().json
    result = measure()
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        Console().print(table_of(result))


if __name__ == "__main__":
    main()
