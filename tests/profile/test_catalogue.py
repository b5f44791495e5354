from __future__ import annotations

from importlib.resources import files
from itertools import product

import pytest

from dovetail.errors import CatalogueError
from dovetail.profile import catalogue

MS = 1_000_000
REQUIRED_MODELS = (
    "resnet50", "resnet101", "mobilenet_v2", "vgg19", "bert", "fast-gshare/rnnt", "fast-gshare/gnmt",
    "fast-gshare/bert", "esg/srgan", "esg/deeplabv3-resnet50", "esg/deblurgan", "esg/resnet50", "esg/u2net",
    "esg/midas", "compass/opt", "compass/marian", "compass/mt5", "compass/nli", "compass/vit", "compass/txt2speech",
    "compass/detr", "compass/depth",
)  # fmt: skip


def test_every_name_that_is_listed_can_be_asked_for() -> None:
    assert catalogue.devices() == ("v100", "a100", "a100-40gb", "l4", "t4")
    assert set(REQUIRED_MODELS) <= set(catalogue.models())
    assert list(catalogue.models()) == sorted(catalogue.models())
    for name in catalogue.models():
        assert catalogue.model(name).name == name
    assert len(catalogue.workflows()) == 8


def test_every_model_runs_on_every_device_at_each_of_its_shares() -> None:
    for name, device_name in product(catalogue.models(), catalogue.devices()):
        model, device = catalogue.model(name), catalogue.device(device_name)
        curve = model.curve(device_name)
        times = [curve.latency_ns(1, share) for share in device.shares_pct]
        assert times == sorted(times, reverse=True)
        assert 0.1 * MS < times[-1] <= times[0] < 60_000 * MS
        assert model.load_ns(device_name) > 0


def test_every_number_of_a_device_has_a_source() -> None:
    for name in catalogue.devices():
        device = catalogue.device(name)
        figures = {
            "sm_count", "memory_bytes", "memory_bandwidth_bytes_per_s", "host_to_device_bytes_per_s", "usd_per_hour",
            "shares_pct",
        }  # fmt: skip
        assert set(device.sources) == figures
        assert set(device.unverified) <= figures
        assert device.shares_pct[-1] == 100
        assert list(device.shares_pct) == sorted(set(device.shares_pct))


def test_the_example_of_the_documentation_holds() -> None:
    resnet = catalogue.model("resnet50")
    assert resnet.curve("v100").latency_ns(batch=8, share_pct=30) == 21_103_334
    assert resnet.load_ns("v100") == 8_519_011


def test_evidence_says_where_a_curve_is_from() -> None:
    fitted = catalogue.model("resnet50").evidence("v100")
    assert (fitted.basis, fitted.verified, fitted.assumption) == ("fitted", True, "")
    assert "RaPP" in fitted.source
    assert fitted.points == 80
    scaled = catalogue.model("resnet50").evidence("t4")
    assert (scaled.basis, scaled.verified) == ("scaled", False)
    assert scaled.assumption.startswith("carried from v100")
    assert catalogue.model("resnet50").evidence("a100").basis == "fitted"
    esg = catalogue.model("esg/srgan")
    assert (esg.home, esg.basis, esg.verified, esg.fit_error_pct) == ("a100", "quoted", False, None)
    assert "recollection" in esg.source
    assert esg.evidence("a100").assumption
    assert esg.cold_start_ns == 3503 * MS


def test_only_measurements_count_as_verified() -> None:
    for name, device_name in product(catalogue.models(), catalogue.devices()):
        evidence = catalogue.model(name).evidence(device_name)
        assert evidence.verified == (evidence.basis == "fitted")
        assert evidence.verified == (not evidence.assumption)
        assert evidence.source


def test_fits_are_as_good_as_documented() -> None:
    fits = {s: [] for s in ("rapp", "parvagpu", "igniter")}
    for name in catalogue.models():
        for entry in catalogue.model(name).entries:
            if entry.basis == "fitted":
                assert entry.mape_pct is not None
                fits[entry.source].append(entry.mape_pct)
    assert {source: len(errors) for source, errors in fits.items()} == {"rapp": 52, "parvagpu": 11, "igniter": 3}
    assert sum(fits["rapp"]) / 52 == pytest.approx(5.1, abs=0.1)
    assert max(fits["rapp"]) < 15
    assert max(fits["parvagpu"]) < 8
    assert max(fits["igniter"]) < 8


def test_a_batch_of_images_takes_what_others_measured() -> None:
    """Clockwork, V100 with a compiled ResNet-50: load 8.33 ms, one image 2.61 ms, sixteen 15.67 ms."""
    tensorrt = catalogue.model("igniter/resnet50")
    assert tensorrt.load_ns("v100") == pytest.approx(8.33 * MS, rel=0.05)
    assert tensorrt.curve("v100").latency_ns(1, 100) == pytest.approx(2.61 * MS, rel=0.15)
    assert tensorrt.curve("v100").latency_ns(16, 100) == pytest.approx(15.67 * MS, rel=0.15)


@pytest.mark.parametrize("device_name, seq512_ms", [("v100", 257.42), ("l4", 409.86), ("t4", 694.46)])
def test_bert_carried_to_other_devices_is_near_what_was_measured_there(device_name: str, seq512_ms: float) -> None:
    """NeuSight: BERT-large, batch 8, 512 tokens. Ours has 128: a quarter of the time, if linear in the length."""
    ours = catalogue.model("bert").curve(device_name).latency_ns(8, 100)
    assert ours == pytest.approx(seq512_ms / 4 * MS, rel=0.25)


@pytest.mark.parametrize(
    "name, fetch_ms",
    [("opt", 562.4), ("marian", 78.7), ("mt5", 196.6), ("nli", 210.4), ("vit", 167.1), ("txt2speech", 265.5)],
)
def test_compass_models_load_as_fast_as_compass_says(name: str, fetch_ms: float) -> None:
    assert catalogue.model(f"compass/{name}").load_ns("t4") == pytest.approx(fetch_ms * MS, rel=0.001)


@pytest.mark.parametrize("name", catalogue.workflows())
def test_a_workflow_is_a_graph_over_known_models(name: str) -> None:
    workflow = catalogue.workflow(name)
    finish_ns: dict[str, int] = {}
    for stage in workflow.stages:
        assert set(stage.after) <= set(finish_ns), "a stage comes after those it names"
        assert stage.name not in finish_ns
        assert bool(stage.model) != bool(stage.host_ns), "a stage has a model or a time on the host, not both"
        assert stage.in_bytes > 0
        assert stage.out_bytes > 0
        if stage.model:
            catalogue.model(stage.model)
        finish_ns[stage.name] = max((finish_ns[p] for p in stage.after), default=0) + stage.quoted_ns + stage.host_ns
    assert max(finish_ns.values()) == workflow.lower_bound_ns
    factor = 5 if name.startswith("compass/") else 1
    assert workflow.slo_ns == factor * workflow.lower_bound_ns


def test_esg_objectives_are_the_times_at_minimum_configuration() -> None:
    share_pct = catalogue.unit_prices().vgpu_share_pct
    for name in catalogue.workflows():
        if name.startswith("esg/"):
            workflow = catalogue.workflow(name)
            stages = [catalogue.model(stage.model).curve("a100") for stage in workflow.stages]
            assert sum(curve.latency_ns(1, share_pct) for curve in stages) == workflow.slo_ns
            assert not workflow.verified


def test_prices_that_are_only_remembered_say_so_and_stand_in_one_place() -> None:
    prices = catalogue.unit_prices()
    assert (prices.usd_per_vgpu_hour, prices.usd_per_vcpu_hour, prices.verified) == (0.67, 0.034, False)
    folder = files("dovetail.profile.catalogue")
    holding = [f.name for f in folder.iterdir() if f.name.endswith(".toml") and "0.034" in f.read_text()]
    assert holding == ["devices.toml"]


def test_loading_is_done_once() -> None:
    assert catalogue.model("vgg19") is catalogue.model("vgg19")
    assert catalogue.model("vgg19").curve("l4") is catalogue.model("vgg19").curve("l4")


@pytest.mark.parametrize(
    "ask, name, hints",
    [
        (catalogue.model, "resnet-50", "resnet50"),
        (catalogue.model, "rnnt", "fast-gshare/rnnt"),
        (catalogue.device, "A100", "a100"),
        (catalogue.workflow, "translation", "compass/translation"),
        (catalogue.model, "", "dovetail catalogue"),
    ],
)
def test_an_unknown_name_gets_close_ones_and_where_to_look(ask: object, name: str, hints: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        ask(name)  # type: ignore[operator]
    assert repr(name) in str(caught.value)
    assert hints in str(caught.value)
    assert "dovetail catalogue" in str(caught.value)


def test_an_unknown_device_of_a_model_is_the_same_error() -> None:
    for ask in (catalogue.model("vgg19").curve, catalogue.model("vgg19").evidence, catalogue.model("vgg19").load_ns):
        with pytest.raises(CatalogueError, match="'h100'"):
            ask("h100")
