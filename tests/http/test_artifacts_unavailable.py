"""While the store of the artifacts does not answer, what needs one says so, by name and in its interface's format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from http_client import client_of
from modelyard import Example, Message, Role, open_platform
from modelyard.artifacts import FolderArtifacts
from modelyard.errors import ArtifactsUnavailable

ROWS = [Example((Message(Role.USER, "q"), Message(Role.ASSISTANT, "a")))] * 4
SENTENCE = "the store of the artifacts does not answer; try again later"


@attrs.define(eq=False)
class Away:
    inner: FolderArtifacts
    away: bool = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if self.away:
                raise ArtifactsUnavailable("the object store of bucket 'secret' cannot be reached")
            return found(*arguments, **options)

        return call


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Any, Away]]:
    artifacts = Away(FolderArtifacts(tmp_path / "artifacts"))
    path = str(tmp_path / "yard.db")
    with open_platform(path, entity="acme", artifacts=artifacts) as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        platform.training.sft(model.id, ROWS).wait()
    with open_platform(path, entity="acme", artifacts=artifacts) as platform:  # nothing of the model is in memory
        artifacts.away = True
        yield platform, artifacts


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_needs_an_artifact_is_refused_by_name_and_the_rest_is_answered(site: Any, asynchronous: bool) -> None:
    platform, artifacts = site
    client = client_of(platform, asynchronous=asynchronous)
    (model,) = platform.models.list()
    lines = b'{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}\n'
    refused = [
        client.chat(model="p/m"),
        client.chat(model="p/m", stream=True),
        client.send("POST", "/v1/preview/datasets", raw=lines, query={"project": "p", "name": "d"}),
        client.send(
            "POST", "/v1/preview/training-jobs", {"model_id": model.id, "trajectory_groups": [{"trajectories": []}]}
        ),
    ]
    assert [(answer.status, b"secret" in answer.raw) for answer in refused] == [(503, False)] * 4
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert [answer.json["error"]["code"] for answer in refused[:2]] == ["artifacts_unavailable"] * 2
    assert all(SENTENCE in answer.raw.decode() for answer in refused)
    assert client.chat(model="tabular-mini").status == 200
    artifacts.away = False
    assert client.chat(model="p/m").status == 200


def test_python_gets_the_error_itself(site: Any) -> None:
    platform, _ = site
    (model,) = platform.models.list()
    with pytest.raises(ArtifactsUnavailable, match="cannot be reached"):
        platform.chat.complete(model="p/m", messages=[Message(Role.USER, "q")])
    with pytest.raises(ArtifactsUnavailable):
        platform.training.sft(model.id, ROWS)
