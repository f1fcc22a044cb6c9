"""Files of parts after a commit of unknown outcome: none that a record names is removed."""

from base64 import b64encode
from collections.abc import Callable
from hashlib import md5
from io import BytesIO
from typing import Any

import openai
import pytest

from batch_files import asking, uploaded
from driven_runs import SETTINGS, Driven
from modelyard import Platform, open_platform
from modelyard.domain.schema import records_of
from modelyard.part import standard_parts
from modelyard.parts.fine_tuning.service import FineTuningRequest
from modelyard.stores import MemoryStore
from modelyard.testing import openai_client
from unsure_store import UnsureStore, unsure_anywhere

LINE = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'
MESSAGES = [{"role": "user", "content": "Hi"}]


def _upload(platform: Platform) -> None:
    begun = platform.compat.uploads.begin("support", project="desk")
    secret = platform.compat.uploads.expect_file(
        begun.id, b64encode(md5(LINE, usedforsecurity=False).digest()).decode()
    )
    assert secret is not None
    platform.compat.uploads.receive(secret, BytesIO(LINE))
    platform.compat.uploads.commit(begun.id)


def _batch(platform: Platform) -> None:
    platform.compat.batches.create(uploaded(platform, [asking(str(number)) for number in range(3)]))
    platform.worker().run_until_idle()


def _fine_tune(platform: Platform) -> None:
    files = [platform.compat.files.create("f.jsonl", LINE * 4, purpose="fine-tune").id for _ in range(2)]
    platform.compat.fine_tuning.create(FineTuningRequest("tabular-mini", files[0], validation_file=files[1], seed=7))
    platform.worker().run_until_idle()


def _collect(platform: Platform) -> None:
    for number in range(3):
        platform.chat.complete(model="echo", messages=f"Hi {number}", store=True)
    platform.traffic.collect("here", holdout=0.5)
    platform.traffic.submit("there")
    platform.worker().run_until_idle()


def _trace(platform: Platform) -> None:
    platform.compat.traces.tables.create([{"a": 1}, {"a": 2}])
    platform.compat.traces.tables.put_file("f.txt", b"content")


def _run(platform: Platform) -> None:
    driven = Driven(platform)
    driven.begin()
    driven.learn(1, "one" * 50)
    driven.step(2)
    driven.save(3, "kept")
    driven.work()


SCENARIOS: dict[str, Callable[[Platform], Any]] = {
    "a file": lambda platform: platform.compat.files.create("f.jsonl", LINE, purpose="batch"),
    "an upload": _upload,
    "a batch": _batch,
    "a fine-tuning job": _fine_tune,
    "a collection": _collect,
    "a training run": _run,
    "tables and files of traces": _trace,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_record_loses_its_files_whichever_commit_has_an_unknown_outcome(name: str) -> None:
    assert unsure_anywhere(SCENARIOS[name], SETTINGS) > 0


def test_a_vendor_s_client_does_not_repeat_what_may_have_been_stored() -> None:
    store = UnsureStore(MemoryStore(records_of(standard_parts())))
    with open_platform(store=store) as platform, openai_client(platform, max_retries=3) as client:
        files, store.unsure = {"file": ("f.jsonl", LINE), "purpose": "batch"}, True
        with pytest.raises(openai.InternalServerError) as unknown:
            client.files.create(**files)
        assert (unknown.value.status_code, unknown.value.code) == (503, "outcome_unknown")
        store.unsure = False
        assert len(list(platform.compat.files.list())) == 1
        client.files.create(**files)
        assert len(list(platform.compat.files.list())) == 2
