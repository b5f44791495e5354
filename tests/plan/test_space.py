"""Which configurations a stage may take."""

from dovetail.plan.space import Space, configs_for
from dovetail.state import Config, WorkerSpec
from dovetail.workflow.graph import StageSpec

MODEL = StageSpec("read", "onnx", (1, 4))
PYTHON = StageSpec("join", "python", (1, 8))


def test_on_a_processor_the_share_is_the_cores():
    cpu = WorkerSpec("cpu", "cpu", ("onnx",), cores=4)
    found = configs_for(MODEL, cpu, Space())
    assert found == [Config(b, c, 25 * c) for b in (1, 4) for c in (1, 2, 4)]
    assert configs_for(MODEL, cpu, Space(sharing=False, batching=False)) == [Config(1, 4, 100)]


def test_on_a_gpu_cores_and_shares_are_chosen_apart():
    gpu = WorkerSpec("gpu", "v100", ("onnx",), cores=2)
    found = configs_for(MODEL, gpu, Space(shares_pct=(50, 100), cpus=(1, 2, 8)))
    assert found == [Config(b, c, s) for b in (1, 4) for c in (1, 2) for s in (50, 100)]


def test_python_takes_its_whole_process():
    host = WorkerSpec("host", "host", ("python",), cores=1)
    assert configs_for(PYTHON, host, Space()) == [Config(1, 1, 100), Config(8, 1, 100)]


def test_a_stage_with_a_declared_share_has_as_much_of_the_cores():
    stage = StageSpec("read", "model", (1, 8), model="read", share_pct=50)
    assert configs_for(stage, WorkerSpec("gpu", "v100", ("model",), cores=8), Space()) == [
        Config(1, 4, 50),
        Config(8, 4, 50),
    ]
    assert configs_for(stage, WorkerSpec("gpu", "v100", ("model",)), Space())[0].cpus == 1, "they are not counted"
