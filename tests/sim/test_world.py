"""Scenario files: what they mean, and where a mistake in them is reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dovetail.control import RequestArrived
from dovetail.errors import ScenarioError
from dovetail.profile import catalogue
from dovetail.profile.machine import HOST, this_machine
from dovetail.profile.record import Key, Measured
from dovetail.profile.store import ProfileStore
from dovetail.sim.arrivals import Gamma, Poisson, requests
from dovetail.sim.scenario.file import VERSION, Scenario, read_scenario
from dovetail.sim.scenario.world import World, build_world
from dovetail.units import MS, SECOND
from dovetail.workflow.app import load_target
from dovetail.workflow.graph import Source

ESG = '[[workflows]]\ncatalogue = "esg/image-classification"\n'
V100 = '[[devices]]\nkind = "v100"\n'
POISSON = '[[arrivals]]\nworkflow = "esg/image-classification"\nkind = "poisson"\nrate = 3\n'
#: The smallest scenario; mistakes are put into it line by line.
LEAST = f'duration = "5s"\n{ESG}{V100}{POISSON}'


def read(folder: Path, text: str) -> tuple[Scenario, World]:
    path = folder / "s.toml"
    path.write_text(text)
    scenario, file = read_scenario(path)
    return scenario, build_world(scenario, file)


def test_the_smallest_scenario(tmp_path: Path) -> None:
    scenario, world = read(tmp_path, LEAST)
    assert (scenario.seed, scenario.duration, scenario.warmup, scenario.target) == (1, 5 * SECOND, 0, 0.95)
    (graph,) = world.graphs
    assert graph.name == "esg/image-classification"
    assert graph.slo_ns == catalogue.workflow(graph.name).slo_ns
    assert [n.name for n in graph.nodes] == ["super-resolution", "segmentation", "classification"]
    assert [s.name for s in graph.stages] == ["esg/srgan", "esg/deeplabv3-resnet50", "esg/resnet50"]
    assert [p.spec.name for p in world.places] == ["v100-0"]
    assert world.places[0].spec.memory_bytes == catalogue.device("v100").memory_bytes
    model = catalogue.model("esg/srgan")
    assert world.entries[0].curve == model.curve("v100")
    assert world.entries[0].load_ns == model.load_ns("v100")
    assert graph.stages[0].weights_bytes == model.weights_bytes
    assert [s.process for s in world.streams] == [Poisson(3.0)]
    assert not any(world.draws)


def test_settings_override_the_catalogue(tmp_path: Path) -> None:
    text = (
        f'requests = 7\n{ESG}name = "mine"\nslo = "2s"\npriority = 3\n'
        '[[devices]]\nkind = "v100"\ncount = 2\nmemory = "2GB"\nusd_per_hour = 1.0\njoin = "1s"\nleave = "2s"\n'
        '[[devices]]\nkind = "a100"\nhost = 1\n'
        '[[arrivals]]\nworkflow = "mine"\nclass = 2\nkind = "gamma"\nrate = "30/min"\ncv = 2.5\ntimeout = "1s"\n'
        "[noise]\nspread = 0.25\n"
    )
    _, world = read(tmp_path, text)
    (graph,) = world.graphs
    assert (graph.name, graph.slo_ns, graph.priority) == ("mine", 2 * SECOND, 3)
    assert [p.spec.name for p in world.places] == ["v100-0-0", "v100-0-1", "a100-1-0", "host-1-0"]
    assert [(p.join_ns, p.leave_ns) for p in world.places[1:3]] == [(SECOND, 2 * SECOND), (0, None)]
    assert (world.places[0].spec.memory_bytes, world.places[0].spec.usd_per_hour) == (2 * 10**9, 1.0)
    assert {(e.kind, e.spread) for e in world.entries} == {("v100", 0.25), ("a100", 0.25)}
    (stream,) = world.streams
    assert (stream.process, stream.priority, stream.timeout_ns) == (Gamma(0.5, 2.5), 2, SECOND)


TWO_CLASSES = (
    'duration = "5s"\n'
    '[[workflows]]\nname = "quick"\nslo = "1s"\nstages = [{ name = "look", model = "resnet50" }]\n'
    '[[devices]]\nkind = "v100"\n'
    '[[devices]]\nkind = "v100"\nkernels = "never"\nhost = 1\n'
    '[[arrivals]]\nworkflow = "quick"\nkind = "poisson"\nrate = 3\n'
    '[[arrivals]]\nworkflow = "quick"\nkind = "poisson"\nrate = 3\nclass = 2\n'
)


def test_kernels_are_told_apart_where_they_are_known_two_classes_come_and_nobody_says_never(tmp_path: Path) -> None:
    _, world = read(tmp_path, TWO_CLASSES)
    assert list(world.sequences) == ["look"] and len(world.sequences["look"].kernels) == 175
    assert [(p.spec.name, p.spec.preempts) for p in world.places] == [
        ("v100-0-0", True),
        ("v100-1-0", False),
        ("host-1-0", False),
    ]
    _, one_class = read(tmp_path, TWO_CLASSES.replace("class = 2", "class = 1"))
    assert not one_class.sequences and not any(p.spec.preempts for p in one_class.places)
    _, unknown = read(tmp_path, TWO_CLASSES.replace('"resnet50"', '"vgg13"'))
    assert not unknown.sequences and not any(p.spec.preempts for p in unknown.places)


def test_workflows_of_the_catalogue_share_models_but_not_steps_on_the_host(tmp_path: Path) -> None:
    names = ["compass/translation", "compass/image-to-sound", "compass/question-answer"]
    text = 'duration = "5s"\n' + "".join(f'[[workflows]]\ncatalogue = "{n}"\n' for n in names)
    text += '[[devices]]\nkind = "l4"\nhost = 2\n' + POISSON.replace("esg/image-classification", names[0])
    _, world = read(tmp_path, text)
    translation, sound, _ = world.graphs
    assert [n.stage for n in translation.nodes if n.name.startswith("mt5")] == ["compass/mt5", "compass/mt5"]
    assert sum(s.name == "compass/mt5" for s in translation.stages) == 1
    hosts = {e.stage: e.latency_ns(1, 1, 100) for e in world.entries if e.kind == HOST}
    assert hosts == {"compass/translation/aggregate": MS, "compass/image-to-sound/aggregate": MS // 5}
    assert [s.kind for s in sound.stages if "aggregate" in s.name] == ["python"]


WRITTEN_OUT = """
duration = "5s"
[[workflows]]
name = "pages"
slo = "1s"
fanout = { detect = { mean = 3.0, max = 9 } }
condition = { join = 0.25 }
[[workflows.stages]]
name = "detect"
model = "resnet50"
batch = [4, 1, 4]
[[workflows.stages]]
name = "read"
after = ["detect"]
time = { batch = [1, 4], ms = [2.0, 3.0] }
weights = "20MB"
map = true
[[workflows.stages]]
name = "spell"
after = ["read"]
time = { batch = [1], ms = [0.5] }
host = true
map = true
[[workflows.stages]]
name = "join"
after = ["spell", "detect"]
time = { batch = [1], ms = [0.5] }
host = true
[[workflows.stages]]
name = "careful"
model = "resnet50"
when = "join"
[[devices]]
kind = "v100"
host = 1
[[arrivals]]
workflow = "pages"
kind = "poisson"
rate = 3
"""


def test_a_workflow_that_is_written_out(tmp_path: Path) -> None:
    _, world = read(tmp_path, WRITTEN_OUT)
    (graph,) = world.graphs
    nodes = {n.name: n for n in graph.nodes}
    index = {n.name: i for i, n in enumerate(graph.nodes)}
    assert nodes["read"].args == (Source(index["detect"]),)
    assert nodes["spell"].args == (Source(index["read"], each=True),), "item by item behind the other map"
    assert nodes["join"].args == (Source(index["spell"]), Source(index["detect"]))
    assert nodes["careful"].when == Source(index["join"])
    assert nodes["careful"].args == (Source(-1),)
    assert [n.mapped for n in graph.nodes] == [n.name in ("read", "spell") for n in graph.nodes]
    stages = {s.name: s for s in graph.stages}
    assert stages["detect"].batch == (1, 4)
    assert stages["read"].weights_bytes == 20 * 10**6
    times = {e.stage: e for e in world.entries}
    assert times["read"].latency_ns(4, 1, 100) == 3 * MS
    assert times["read"].latency_ns(4, 1, 50) == 6 * MS, "half a device takes twice as long"
    assert times["spell"].kind == HOST
    assert set(world.draws[0].nodes) == {index["detect"], index["join"]}


def test_without_after_each_stage_follows_the_one_above(tmp_path: Path) -> None:
    stages = ", ".join(f'{{ name = "{n}", time = {{ batch = [1], ms = [1.0] }} }}' for n in "abc")
    text = f'duration = "5s"\n[[workflows]]\nname = "w"\nslo = "1s"\nstages = [{stages}]\n{V100}'
    _, world = read(tmp_path, text + POISSON.replace("esg/image-classification", "w"))
    assert [n.args[0].node for n in world.graphs[0].nodes] == [-1, 0, 1]


APP = """
from dovetail import App, onnx, stage, tensor, workflow

@stage(batch=(1, 4), outputs=("lines", "boxes"))
def cut(pages): return [([1], [1]) for p in pages]

@stage
def read(lines): return lines

@workflow(slo="200ms")
def pages(page: tensor("uint8", -1)):
    lines, boxes = cut(page)
    return read.map(lines)

@workflow(slo="200ms")
def other(page: tensor("uint8", -1)): return read(page)

app = App(pages, other)
"""


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an application in it, and we are there."""
    (tmp_path / "simulated_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


OF_APP = """
duration = "1s"
[[workflows]]
app = "simulated_app:app"
workflow = "pages"
fanout = { cut = { mean = 2.0 } }
%s
[[devices]]
kind = "cpu"
host = 2
%s
[[arrivals]]
workflow = "pages"
kind = "poisson"
rate = 3
"""


def test_an_application_is_simulated_without_being_run(application: Path) -> None:
    _, world = read(application, OF_APP % ("", ""))
    assert [n.name for n in world.graphs[0].nodes] == ["cut", "read"]
    assert world.notes == tuple(
        f"stage {name!r} has no profile; it is taken to need 1 ms per item" for name in ("cut", "read")
    )


def test_times_of_an_application_may_stand_in_the_scenario(application: Path) -> None:
    _, world = read(application, OF_APP % ("time = { cut = { batch = [1], ms = [7.0] } }", ""))
    assert [e.stage for e in world.entries] == ["cut"]
    assert world.entries[0].latency_ns(2, 1, 100) == 14 * MS
    with pytest.raises(ScenarioError, match="there is no stage 'cutt'; there are: cut, read"):
        read(application, OF_APP % ("time = { cutt = { batch = [1], ms = [7.0] } }", ""))


def test_a_profile_store_gives_the_times_and_says_if_it_is_stale(application: Path) -> None:
    specs = {s.name: s for s in load_target("simulated_app:app").specs}
    identity = this_machine()
    store = ProfileStore(application / "profiles.sqlite")
    point = Measured(1, 1, 3 * MS, 3 * MS, 3 * MS, 0.1, 0.01, 50)
    store.put(Key.of(specs["cut"], identity), [point], 0)
    another = Key("read", HOST, "another function", "", identity.cpu, identity.cores, ())
    store.put(another, [point], 0)
    _, world = read(application, OF_APP % ("", 'profile = "profiles.sqlite"'))
    assert {(e.stage, e.kind, e.latency_ns(1, 1, 100), e.spread) for e in world.entries} == {
        ("cut", HOST, 3 * MS, 0.1),
        ("read", HOST, 3 * MS, 0.1),
    }
    assert [n for n in world.notes if "stale" in n and "'read'" in n and "function changed" in n]


def test_without_a_name_the_store_is_found_as_every_command_finds_it(
    application: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "simulated_app", raising=False)  # of another test, and of another folder
    cut = next(s for s in load_target("simulated_app:app").specs if s.name == "cut")
    point = Measured(1, 1, 3 * MS, 3 * MS, 3 * MS, 0.1, 0.01, 50)
    ProfileStore(application / "profiles.sqlite").put(Key.of(cut, this_machine()), [point], 0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    _, world = read(application, OF_APP % ("", ""))
    assert [(e.stage, e.latency_ns(1, 1, 100)) for e in world.entries] == [("cut", 3 * MS)]
    assert f"profile store {application / 'profiles.sqlite'}, beside the application" in world.notes
    ProfileStore("profiles.sqlite").put(Key.of(cut, this_machine()), [Measured(1, 1, 5 * MS, 0, 0, 0.1, 0.01, 9)], 0)
    _, world = read(application, OF_APP % ("", ""))
    assert [e.latency_ns(1, 1, 100) for e in world.entries] == [5 * MS]
    assert any("is not used: choose with profile = ... of a device" in note for note in world.notes)


def test_a_trace_file_is_found_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("5\n6\n")
    entry = POISSON.replace('"poisson"', '"file"').replace("rate = 3", 'path = "trace.csv"\nspeed = 2.0')
    scenario, world = read(tmp_path, ESG + V100 + entry)  # it ends by itself, so no duration is needed
    assert list(requests(world.streams, scenario.seed)) == [
        RequestArrived(0, 0, 1, 0),
        RequestArrived(SECOND // 2, 0, 2, 0),
    ]


def arrivals(text: str) -> str:
    return f'duration = "5s"\n{ESG}{V100}[[arrivals]]\nworkflow = "esg/image-classification"\n{text}'


def stages(text: str) -> str:
    return f'duration = "5s"\n[[workflows]]\nname = "w"\nslo = "1s"\n{text}\n{V100}{POISSON}'


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        (ESG + V100 + POISSON, 5, "arrivals[0]", "these never end; say how long"),
        ("requests = 5\n" + LEAST, 1, "requests", "either duration or requests"),
        ('warmup = "6s"\n' + LEAST, 1, "warmup", "shorter than the duration"),
        ("sed = 1\n" + LEAST, 1, "sed", "no such key; did you mean 'seed'"),
        ("seed = -1\n" + LEAST, 1, "seed", ">= 0"),
        ("target = 95\n" + LEAST, 1, "target", "<= 1"),
        (LEAST.replace('"5s"', "5"), 1, "duration", "must be text with a unit"),
        (LEAST.replace("rate = 3", "rate = 0"), 9, "arrivals[0].rate", "above zero"),
        (LEAST.replace("rate = 3", "rte = 3"), 9, "arrivals[0].rte", "did you mean 'rate'"),
        (LEAST.replace("rate = 3", ""), 6, "arrivals[0]", "the key 'rate' is missing"),
        (
            LEAST.replace("poisson", "poison"),
            8,
            "arrivals[0].kind",
            "'poison' is not possible here; did you mean 'poiss",
        ),
        (LEAST.replace('kind = "poisson"', "class = 0"), 6, "arrivals[0]", "the key 'kind' is missing"),
        (LEAST + "class = 0\n", 10, "arrivals[0].class", ">= 1"),
        (LEAST.replace("v100", "v10"), 5, "devices[0].kind", "no device 'v10'. Did you mean 'v100'"),
        (LEAST.replace(V100, V100 + "count = 0\n"), 6, "devices[0].count", ">= 1"),
        (
            LEAST.replace(V100, V100 + 'memory = "9KB"\n'),
            4,
            "devices[0]",
            "'esg/srgan' has 6.2 MB of weights and fits on",
        ),
        (LEAST.replace(V100, V100 + 'profile = "p"\n'), 6, "devices[0].profile", "no profile store"),
        (LEAST.replace(V100, V100 + 'join = "2s"\nleave = "1s"\n'), 7, "devices[0].leave", "later than join"),
        (LEAST.replace("v100", "cpu"), 2, "workflows[0]", "nobody knows how long stage 'esg/srgan' takes on 'cpu'"),
        (
            LEAST.replace('"esg/image-classification"\n[', '"esg/x"\n['),
            3,
            "workflows[0].catalogue",
            "no workflow 'esg/x'",
        ),
        (LEAST.replace(ESG, ESG + ESG), 4, "workflows[1]", "two workflows named"),
        (LEAST.replace(ESG, "[[workflows]]\n"), 2, "workflows[0]", "one of catalogue, app or stages, not by nothing"),
        (LEAST.replace(ESG, ESG + 'app = "a:b"\n'), 2, "workflows[0]", "not by catalogue and app"),
        (LEAST.replace(ESG, ESG + 'workflow = "x"\n'), 4, "workflows[0].workflow", "goes with app only"),
        (LEAST.replace(ESG, '[[workflows]]\napp = "no_such:app"\n'), 3, "workflows[0].app", "no module 'no_such'"),
        (
            LEAST.replace(ESG, ESG + "fanout = { x = { mean = 1 } }\n"),
            2,
            "workflows[0]",
            "nothing in this workflow does",
        ),
        (LEAST.replace(ESG, ESG + "fanout = { x = { men = 1 } }\n"), 4, "workflows[0].fanout.*.men", "did you mean"),
        (
            arrivals('kind = "steps"\nsteps = [["5s", 1], ["x", 2]]'),
            9,
            "arrivals[0].steps[1][0]",
            "not a number with a unit",
        ),
        (arrivals('kind = "steps"\nsteps = [["5s"]]'), 9, "arrivals[0].steps[0]", "length 2, got 1"),
        (arrivals('kind = "diurnal"\nrate = 1\namplitude = 2\nperiod = "1h"'), 10, "arrivals[0].amplitude", "<= 1"),
        (arrivals('kind = "gamma"\nrate = 1\ncv = 0'), 10, "arrivals[0].cv", "> 0"),
        (arrivals('kind = "file"\npath = "none.csv"'), 9, "arrivals[0].path", "there is no file"),
        (
            arrivals('kind = "file"\npath = "x"\nformat = "azure"'),
            10,
            "arrivals[0].format",
            "'azure' is not possible here",
        ),
        (
            stages('stages = [{ name = "a", model = "resnet5" }]'),
            5,
            "workflows[0].stages[0].model",
            "no model 'resnet5'",
        ),
        (stages('stages = [{ name = "a" }]'), 5, "workflows[0].stages[0]", "needs either a model or a time"),
        (
            stages('stages = [{ name = "a", time = { batch = [1, 2], ms = [1.0] } }]'),
            2,
            "workflows[0]",
            "2 batch sizes but 1 times",
        ),
        (
            stages('stages = [{ name = "a", time = { batch = [1, 2], ms = [2.0, 1.0] } }]'),
            2,
            "workflows[0]",
            "never less for a larger batch",
        ),
        (
            stages('stages = [{ name = "a", time = { batch = [1], ms = [1.0] }, host = true }]'),
            6,
            "devices[0]",
            "runs on the host; add workers there: host = 2",
        ),
        (
            stages('[[workflows.stages]]\nname = "a"\nmodel = "resnet50"\nafter = ["b"]'),
            5,
            "workflows[0].stages",
            "comes after 'b', which does not exist",
        ),
        (
            stages('[[workflows.stages]]\nname = "a"\nmodel = "resnet50"\nafter = ["a"]'),
            5,
            "workflows[0].stages",
            "has a cycle: a -> a",
        ),
        (
            stages('[[workflows.stages]]\nname = "a"\nmodel = "resnet50"\nmap = true'),
            2,
            "workflows[0]",
            "'input' gives a list that is mapped over",
        ),
        (LEAST + "[contention]\nbeside = 0.5\n", 11, "contention.beside", ">= 1"),
        (LEAST + "[contention]\nbesides = 2.0\n", 11, "contention.besides", "did you mean 'beside'?"),
        (LEAST.replace(V100, V100 + 'kernels = "always"\n'), 6, "devices[0].kernels", "always"),
    ],
)
def test_a_mistake_is_reported_where_it_stands(tmp_path: Path, text: str, line: int, key: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 's.toml'}:{line}: {key}: "), said
    assert message in said, said


def test_an_unknown_workflow_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        ScenarioError, match=r"s\.toml:7: arrivals\[0\]\.workflow: .* there are: esg/image-classification"
    ):
        read(tmp_path, LEAST.replace('workflow = "esg', 'workflow = "eseg'))


def test_two_stages_of_one_name_must_be_the_same(tmp_path: Path) -> None:
    a = '[[workflows]]\nname = "a"\nslo = "1s"\nstages = [{ name = "x", model = "resnet50" }]\n'
    b = '[[workflows]]\nname = "b"\nslo = "1s"\nstages = [{ name = "x", model = "vgg16" }]\n'
    with pytest.raises(ScenarioError, match=r"workflows\[1\]: stage 'x' is another one in workflows\[0\]"):
        read(tmp_path, 'duration = "5s"\n' + a + b + V100 + POISSON)
    _, world = read(
        tmp_path,
        'duration = "5s"\n' + a + a.replace('"a"', '"b"') + V100 + POISSON.replace("esg/image-classification", "b"),
    )
    assert [s.name for g in world.graphs for s in g.stages] == ["x", "x"]


def test_a_scenario_of_this_version_may_say_so(tmp_path: Path) -> None:
    scenario, _ = read(tmp_path, f"version = {VERSION}\n{LEAST}")
    assert scenario.version == VERSION


@pytest.mark.parametrize("version", ["0", "2", '"next"'])
def test_a_scenario_of_another_version_is_refused_by_name(version: str, tmp_path: Path) -> None:
    """Before its keys are looked at: those of another version may be unknown."""
    with pytest.raises(ScenarioError) as refused:
        read(tmp_path, f"version = {version}\nwarp = 9\n{LEAST}")
    said = str(refused.value)
    assert f"s.toml:1: version: this is a scenario of version {version.strip(chr(34))}, and this Dovetail" in said
    assert f"reads version {VERSION}; run it with the Dovetail it was written for" in said
