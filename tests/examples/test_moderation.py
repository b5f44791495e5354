"""The moderation example: three looks at an upload, one verdict."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from examples import pages

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def moderate():
    from examples.moderation import moderate

    return moderate.local


@pytest.mark.parametrize("seed", range(4))
def test_a_landscape_is_accepted(moderate, seed):
    answer = moderate(file=pages.poster(seed, shady=False).file)
    assert (answer["verdict"], answer["reasons"]) == ("accept", [])
    assert answer["nudity"].shape == (1,)
    assert answer["nudity"][0] < 0.1


@pytest.mark.parametrize("seed", range(4))
def test_a_shady_caption_is_read_and_held_for_review(moderate, seed):
    shady = pages.poster(seed, shady=True)
    answer = moderate(file=shady.file)
    assert answer["verdict"] == "review"
    assert [reason.removeprefix("says ") in shady.caption.lower() for reason in answer["reasons"]] == [True]


def test_what_is_not_a_picture_is_rejected(moderate):
    answer = moderate(file=b'#!/bin/sh\nset -eu\nfor file in *.txt; do\n  echo "$file"\ndone\n')
    assert (answer["verdict"], answer["reasons"]) == ("reject", ["not a picture but shell"])


def test_a_damaged_picture_is_rejected(moderate):
    file = pages.poster(0).file
    answer = moderate(file=file[: len(file) // 2])
    assert (answer["verdict"], answer["reasons"]) == ("reject", ["damaged"])


@pytest.mark.parametrize("file", [b"", b"x"])
def test_next_to_nothing_is_rejected(moderate, file):
    assert moderate(file=file)["verdict"] == "reject"


def test_a_large_grey_picture_is_made_small(moderate):
    from dovetail.workflow.runners import make_runner
    from examples import moderation as app

    file = io.BytesIO()
    Image.new("L", (3000, 200), 128).save(file, "PNG")
    ((picture, readable),) = make_runner(app.open_picture).run([[file.getvalue()]])
    assert picture.shape == (68, 1024, 3)
    assert readable
    assert moderate(file=file.getvalue())["verdict"] == "accept"


def test_the_three_looks_do_not_wait_for_each_other():
    from examples.moderation import moderate

    graph = moderate.graph
    index = {node.name: i for i, node in enumerate(graph.nodes)}

    def before(name: str) -> set[str]:
        direct = {graph.nodes[s.node].name for s in graph.nodes[index[name]].sources() if s.node >= 0}
        return direct.union(*(before(d) for d in direct))

    looks = {"file_kind", "nudity", "spell"}
    assert looks <= before("judge")
    assert all(not looks & before(look) for look in looks)


def test_a_batch_gives_what_its_items_give_alone():
    from dovetail.workflow.runners import make_runner
    from examples import moderation as app

    files = [pages.poster(seed).file for seed in range(3)]
    pictures = [picture for picture, _ in make_runner(app.open_picture).run([files])]
    for prepare, model, column in ((app.sample_bytes, app.file_kind, files), (app.centre, app.nudity, pictures)):
        items = make_runner(prepare).run([column])
        together = make_runner(model).run([items])
        alone = [make_runner(model).run([[item]])[0] for item in items]
        np.testing.assert_allclose(together, alone, atol=1e-5)
