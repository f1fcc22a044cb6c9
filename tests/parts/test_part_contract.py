"""Every standard part keeps the contract of parts."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import md5
from io import BytesIO

import pytest

from modelyard import Platform
from modelyard.domain.record import declaration_of
from modelyard.part import Part
from modelyard.parts import STANDARD
from modelyard.parts.tinker.records import (
    CommandKind,
    RunCommand,
    RunSession,
    RunWeights,
    Sample,
    SamplingSession,
    TrainingRun,
)
from modelyard.parts.torch.records import BaseModel
from modelyard.testing import PartContract
from specimens import specimen

pytestmark = pytest.mark.slow

LINES = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'


OF_WEIGHTS, OF_BASE_MODELS = (declaration_of(cls) for cls in (RunWeights, BaseModel))


def annotate(platform: Platform) -> None:
    model = platform.models.create("support", base_model="tabular-mini")
    platform.annotations.set(model.id, tags=["baseline of theirs"], note="the rate of the paper")


def clear_annotations(platform: Platform) -> None:
    for one in platform.annotations.list(kind="model"):
        platform.annotations.set(one.subject, tags=[], note="")


def respond(platform: Platform) -> None:
    platform.responses.create(model="echo", input="a question of theirs")
    platform.responses.create(model="echo", input="another one", background=True)
    platform.worker().run_until_idle()


def clear_responses(platform: Platform) -> None:
    for one in [*platform.responses.list()]:
        platform.responses.delete(one.id)


def run_batch(platform: Platform) -> None:
    body = b'{"model": "echo", "messages": [{"role": "user", "content": "secret question"}]}'
    line = b'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": %s}\n' % body
    file = platform.files.create("questions of theirs.jsonl", line, purpose="batch")
    platform.batches.create(file.id, endpoint="/v1/chat/completions")
    platform.worker().run_until_idle()


def clear_files(platform: Platform) -> None:
    for one in [*platform.files.list()]:
        platform.files.delete(one.id)


def trace(platform: Platform) -> None:
    traces = platform.traces
    call = traces.calls.start("answer", {"question": "a question of theirs"})
    traces.calls.end(call.id, "4")
    traces.tables.create([{"row": "of a table of theirs"}])
    traces.tables.put_file("picture of theirs.png", b"a picture")
    traces.feedback.add(call.id, "note", {"text": "a note of theirs"})


def collect(platform: Platform) -> None:
    platform.chat.complete(model="echo", messages="a question of theirs", store=True)
    platform.traffic.submit("answers")
    platform.worker().run_until_idle()


def upload(platform: Platform) -> None:
    uploads = platform.uploads
    begun = uploads.begin("support", project="desk")
    secret = uploads.expect_file(begun.id, b64encode(md5(LINES, usedforsecurity=False).digest()).decode())
    assert secret is not None
    uploads.receive(secret, BytesIO(LINES))


def drive(platform: Platform) -> None:
    """Store what a client's training run leaves, with a file wherever a record may own one."""
    runtime, now = platform._runtime, platform.clock.now()
    place = (platform._principal.entity, "default")
    session, sampler, sample = (runtime.ids() for _ in range(3))
    run = f"{session}:train:0"
    files = [runtime.artifacts.put([b"an answer of theirs"]) for _ in range(4)]
    body, answer, state, sampled = ({"artifact": one.name, "size": one.size, "digest": one.digest} for one in files)
    records = (
        RunSession(session, *place, now, now, display_name="a session of theirs"),
        TrainingRun(run, session, *place, "model", "tabular-mini", {}, "job", now, {"note": "a note of theirs"}),
        RunCommand(run, 0, place[0], CommandKind.FORWARD, now, "digest", body=body, answer=answer),
        specimen(OF_WEIGHTS, run, entity=place[0], project="default", run_id=run, state={"optimizer": state}),
        SamplingSession(sampler, session, *place, "echo", "a model of theirs", now),
        Sample(sample, place[0], "digest", "process", now, answer=sampled),
    )
    runtime.store.transact(lambda tx: [tx.add(one) for one in records])


def keep_base_model(platform: Platform) -> None:
    record = specimen(OF_BASE_MODELS, platform._principal.entity)
    platform._runtime.store.transact(lambda tx: tx.add(record))


def add_webhook(platform: Platform) -> None:
    platform.webhooks.test(platform.webhooks.add("https://hooks.example/of-theirs").endpoint.id)


def clear_webhooks(platform: Platform) -> None:
    for one in [*platform.webhooks.list()]:
        platform.webhooks.remove(one.id)


FILLED: Mapping[str, Callable[[Platform], None]] = {
    "annotations": annotate,
    "responses": respond,
    "batches": run_batch,
    "traces": trace,
    "traffic": collect,
    "uploads": upload,
    "tinker": drive,
    "torch": keep_base_model,
    "webhooks": add_webhook,
}
CLEARED = {
    "annotations": clear_annotations,
    "responses": clear_responses,
    "batches": clear_files,
    "webhooks": clear_webhooks,
}


@pytest.fixture(params=STANDARD, ids=lambda part: part.name)
def standard(request: pytest.FixtureRequest) -> Part:
    part: Part = request.param
    return part


class TestStandardParts(PartContract):
    of_host = (BaseModel,)
    shared = ("route POST /graphql",)  # what uploads answer there, traces ask too: a platform may have one or both

    @pytest.fixture
    def part(self, standard: Part) -> Part:
        self.name, self.home = standard.name, f"modelyard.parts.{standard.name}.part"
        return standard

    def fill(self, platform: Platform) -> None:
        if self.name not in FILLED:
            pytest.skip("this part keeps nothing")
        FILLED[self.name](platform)

    def clear(self, platform: Platform) -> None:
        if self.name not in CLEARED:
            pytest.skip("nothing is deleted")
        CLEARED[self.name](platform)
