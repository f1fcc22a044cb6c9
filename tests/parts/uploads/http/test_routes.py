"""The upload of training data by the W&B client: its recorded calls, and what strangers and accidents make of them."""

import asyncio
import base64
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
from click.testing import CliRunner

from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.asgi import asgi_app
from modelyard.cli import main
from modelyard.compose import open_platform
from modelyard.domain.identity import Scope
from modelyard.domain.schema import RECORDS
from modelyard.domain.training import Dataset
from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Auth, Interface
from modelyard.http.message import Request
from modelyard.parts.uploads.records import Upload
from modelyard.parts.uploads.service import LIFE
from modelyard.platform.runtime import Settings
from modelyard.protocols import StoredArtifact
from modelyard.stores.memory import MemoryStore
from modelyard.testing.clock import ManualClock
from modelyard.testing.run_twice_store import RunTwiceStore
from modelyard.wsgi import wsgi_app

CAPTURE = Path(__file__).parents[3] / "captures" / "training" / "19-sft-data-upload-wandb.json"
EXCHANGES = json.loads(CAPTURE.read_text())["exchanges"]
ROOT = "http://yard.example:8000"
JOBS = "/v1/preview/sft-training-jobs"
UNKNOWN = "00000000-0000-7000-8000-ffffffffffff"


def rows(count: int, answer: str = "yes") -> bytes:
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]}
    return "".join(json.dumps(row) + "\n" for _ in range(count)).encode()


IMAGE = [{"type": "image_url", "image_url": {"url": "data:x"}}]


def row_of(asked: Any = "?", **members: Any) -> bytes:
    """A line whose answer has further members."""
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": "yes", **members}]
    return json.dumps({"messages": messages}).encode() + b"\n"


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


@attrs.frozen
class Uploader:
    """What the client does, in process and call by call."""

    client: Any
    key: str = ""

    def post(self, body: Any, host: str | None = urlsplit(ROOT).netloc) -> Any:
        headers = [] if host is None else [("host", host)]
        return self.client.send("POST", "/graphql", body, key=self.key or None, auth="Basic", headers=headers)

    def send(self, operation: str, **variables: Any) -> Any:
        return self.post({"query": f"mutation {operation} {{ x }}", "operationName": operation, "variables": variables})

    def ok(self, operation: str, **variables: Any) -> Any:
        answer = self.send(operation, **variables)
        assert answer.status == 200, answer.raw
        return answer.json["data"]

    def begin(self, name: str = "data", entity: str | None = "acme", project: str = "proj", **more: Any) -> str:
        wanted = {"artifactTypeName": "dataset", "artifactCollectionName": name, "projectName": project, **more}
        answer = self.ok("CreateArtifact", input={**wanted, "entityName": entity})
        return str(answer["createArtifact"]["artifact"]["id"])

    def file_url(self, upload: str, data: bytes) -> str | None:
        requested = [{"artifactID": upload, "name": "train.jsonl", "md5": md5(data)}]
        answer = self.ok("CreateArtifactFiles", artifactFiles=requested, storageLayout="V2")
        url = answer["createArtifactFiles"]["files"]["edges"][0]["node"]["uploadUrl"]
        return None if url is None else str(url)

    def manifest_url(self, upload: str) -> str:
        answer = self.ok("CreateArtifactManifest", artifactID=upload, includeUpload=True)
        return str(answer["createArtifactManifest"]["artifactManifest"]["file"]["uploadUrl"])

    def put(self, url: str, data: bytes) -> Any:
        assert url.startswith(f"{ROOT}/uploads/")
        return self.client.send("PUT", url.removeprefix(ROOT), raw=data, key="")

    def upload(self, data: bytes, **more: Any) -> str:
        upload = self.begin(**more)
        url = self.file_url(upload, data)
        assert url is not None
        assert self.put(url, data).status == 200
        self.ok("CommitArtifact", artifactID=upload)
        return upload

    def by_id(self, upload: str) -> Any:
        return self.ok("ArtifactByID", id=upload)["artifact"]


@pytest.fixture
def uploader(client: Any) -> Uploader:
    return Uploader(client)


def names(platform: Any) -> list[str]:
    return sorted(platform._runtime.artifacts.names())


# ---- the recorded calls --------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"\.\.\.|[{}():@$]|\"[^\"]*\"|\w+|[^\s\w]")


def lacking(query: str, data: Any) -> list[str]:
    """What a query selects and an answer does not have: a reader of selection sets, as strict as the client's."""
    tokens = _TOKEN.findall(re.sub(r"\([^()]*\)", "", query))
    fragments, position, operation = {}, 0, None
    while position < len(tokens):
        start = tokens.index("{", position)
        selection, end = _selection(tokens, start)
        if tokens[position] == "fragment":
            fragments[tokens[position + 1]] = selection
        else:
            operation = selection
        position = end
    return list(_missing(operation, data, fragments, ""))


def _selection(tokens: list[str], at: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    at += 1
    while tokens[at] != "}":
        if tokens[at] == "...":
            found.append(("...", tokens[at + 1]))
            at += 2
        elif tokens[at] == "@":
            at += 2
        elif tokens[at] == "{":
            inner, at = _selection(tokens, at)
            found[-1] = (found[-1][0], inner)
        elif tokens[at + 1] == ":":
            found.append((tokens[at], None))
            at += 3
        else:
            found.append((tokens[at], None))
            at += 1
    return found, at + 1


def _missing(selection: Any, data: Any, fragments: Any, place: str) -> Iterator[str]:
    for each in data if isinstance(data, list) else [data] if data is not None else []:
        for name, inner in selection:
            if name == "...":
                yield from _missing(fragments[inner], each, fragments, place)
            elif name not in each:
                yield f"{place}.{name}"
            elif inner is not None:
                yield from _missing(inner, each[name], fragments, f"{place}.{name}")


def test_the_reader_of_selections_sees_what_is_missing() -> None:
    query = "query A($x: Int = 1) { a: b(c: $x) { d @include(if: $x) ...F } } fragment F on T { e { f } }"
    assert lacking(query, {"a": {"d": 1, "e": {"f": 2}}}) == []
    assert lacking(query, {"a": [{"d": 1, "e": None}, {"e": {}}]}) == [".a.d", ".a.e.f"]
    assert lacking(query, {}) == [".a"]


@pytest.mark.slow
def test_the_recorded_upload_becomes_a_dataset_that_trains(client: Any, platform: Any) -> None:
    uploader, data = Uploader(client, platform.keys.create("my-team").secret), rows(4)
    before, ours = names(platform), {}
    sent_md5 = "pZpL0aztJZSocm67KFBEoQ=="
    for exchange in EXCHANGES:
        requested, recorded = exchange["request"], exchange["response"]["body"]
        text = json.dumps(requested["body"]).replace(sent_md5, md5(data))
        for theirs, our in ours.items():
            text = text.replace(theirs, our)
        body = json.loads(text)
        if requested["method"] == "PUT":
            if "/run/" in requested["path"]:
                continue  # files about the run are given no address
            url = ours[f"http://127.0.0.1:PORT{requested['path']}"]
            answer = uploader.put(url, data if requested["path"].endswith("train.jsonl") else text.encode())
            assert answer.status == 200, answer.raw
        elif requested["path"] == "/graphql":
            answer = uploader.post(body)
            assert answer.status == 200, answer.raw
            assert lacking(body["query"], answer.json["data"]) == []
            ours.update(pairs(recorded, answer.json))
        else:
            piece = {"files": {"output.log": {"offset": 0, "content": ["x"]}}}
            assert client.send("POST", requested["path"], piece, key=uploader.key, auth="Basic").json == recorded
    shown = uploader.by_id(ours["art-9b07c0592037491fa9a416afcdab9073"])
    assert (shown["versionIndex"], shown["state"]) == (0, "COMMITTED")
    platform.models.create("agent-001", project="proj", base_model="tabular-mini", entity="my-team")
    url = "wandb-artifact:///my-team/proj/agent-001-sft-data-9bd217ff3a53:v0"
    assert platform.training.sft("my-team/proj/agent-001", url).result().step == 1
    assert len(names(platform)) == len(before) + 2  # the data and the weights: nothing else stayed
    platform.delete_entity("my-team")
    assert names(platform) == before


def pairs(recorded: Any, ours: Any) -> Iterator[tuple[str, str]]:
    """Texts of a recorded answer with those of ours in their places: ids and addresses."""
    if isinstance(recorded, dict) and isinstance(ours, dict):
        for name in recorded.keys() & ours.keys():
            yield from pairs(recorded[name], ours[name])
    elif isinstance(recorded, list) and isinstance(ours, list):
        for one, other in zip(recorded, ours, strict=False):
            yield from pairs(one, other)
    elif isinstance(recorded, str) and isinstance(ours, str) and recorded.startswith(("art-", "man-", "http:")):
        yield recorded, ours


# ---- versions --------------------------------------------------------------------------------------------------------


def test_rows_with_a_weight_of_0_are_another_version(uploader: Uploader, platform: Any) -> None:
    both = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}] * 2
    weighed = [*both[:3], {**both[3], "weight": 0}]
    versions = [
        uploader.by_id(uploader.upload(json.dumps({"messages": one}).encode(), name="weighed"))["versionIndex"]
        for one in (both, weighed, both)
    ]
    assert versions == [0, 1, 0]


def test_versions_count_up_and_the_same_rows_are_the_version_that_has_them(uploader: Uploader, platform: Any) -> None:
    uploads = [uploader.upload(rows(count), name="counted") for count in (1, 2, 1)]
    assert [uploader.by_id(upload)["versionIndex"] for upload in uploads] == [0, 1, 0]
    before = names(platform)
    spaced = rows(2).replace(b'": ', b'":   ')
    assert uploader.by_id(uploader.upload(spaced, name="counted"))["versionIndex"] == 1
    assert names(platform) == before
    dataset = platform.training.upload("counted", [json.loads(rows(1))], project="proj", entity="acme")
    assert dataset.version == 0


@pytest.mark.parametrize(("name", "version"), [("named:v0", 0), ("named:v1", 1), ("named:latest", 1), ("named", 1)])
def test_an_artifact_is_found_by_its_name(uploader: Uploader, name: str, version: int) -> None:
    for count in (1, 2):
        uploader.upload(rows(count), name="named")
    for operation in ("ArtifactByName", "ArtifactType"):
        found = uploader.ok(operation, entity="acme", project="proj", name=name)["project"]["artifact"]
        assert (found["versionIndex"], found["artifactType"]["name"]) == (version, "dataset")
    assert uploader.by_id(found["id"])["versionIndex"] == version


@pytest.mark.parametrize("name", ["absent:v0", "named:v9", "named:best", "../named:v0", "a/b/c:v0", "\x00"])
def test_an_artifact_that_is_not_there_is_null(uploader: Uploader, name: str) -> None:
    assert uploader.ok("ArtifactByName", project="proj", name=name)["project"]["artifact"] is None


def test_who_calls_is_the_entity_of_the_key(uploader: Uploader) -> None:
    for query in ("{ viewer { id } }", "query Viewer { viewer { entity } }", "query Anything{a:viewer{entity}}"):
        assert uploader.post({"query": query}).json["data"]["viewer"]["entity"] == "acme"
    assert uploader.ok("UpsertBucket", name="run")["upsertBucket"]["bucket"]["project"]["entity"]["name"] == "acme"


# ---- rows that cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "loc", "word"),
    [
        (rows(2) + b'{"messages": 5}\n', ["line", "3", "messages"], "list"),
        (rows(1) + b"no JSON\n" + rows(1), ["line", "2"], "JSON"),
        (b"", [], "no rows"),
        (b"\n\n", [], "no rows"),
        (b"\xff\xfe", ["line", "1"], "UTF-8"),
        (rows(1) + row_of(weight=0), ["line", "2", "messages", "1", "weight"], "nothing to learn"),
        (rows(1) + row_of(wieght=0), ["line", "2", "messages", "1", "wieght"], "'weight'"),
        (rows(1) + row_of(IMAGE), ["line", "2", "messages", "0", "content", "0"], "does not take image_url"),
    ],
)
def test_a_job_on_rows_that_cannot_be_read_is_refused_naming_the_line(
    client: Any, uploader: Uploader, platform: Any, data: bytes, loc: list[str], word: str
) -> None:
    model = platform.models.create("m", project="proj", base_model="tabular-mini", entity="acme", return_existing=True)
    version = uploader.by_id(uploader.upload(data, name="bad"))["versionIndex"]
    with platform.worker():
        body = {"model_id": model.id, "training_data_url": f"wandb-artifact:///acme/proj/bad:v{version}"}
        answer = client.send("POST", JOBS, body)
    assert answer.status == 422
    (problem,) = answer.json["detail"]
    assert problem["loc"] == ["body", "training_data_url", *loc]
    assert word in problem["msg"]


# ---- the addresses ---------------------------------------------------------------------------------------------------


def test_an_address_takes_its_own_bytes_alone(uploader: Uploader, platform: Any) -> None:
    upload, before = uploader.begin(), names(platform)
    url = uploader.file_url(upload, rows(3))
    assert url is not None
    refused = uploader.put(url, rows(4))
    assert (refused.status, "MD5" in refused.json["errors"][0]["message"]) == (400, True)
    assert names(platform) == before
    assert uploader.put(url, rows(3)).status == 200
    assert uploader.put(url, rows(3)).status == 200  # the answer to the first may have been lost
    assert uploader.put(url, rows(4)).status == 400
    assert len(names(platform)) == len(before) + 1
    assert uploader.file_url(upload, rows(3)) is None
    assert (
        uploader.send(
            "CreateArtifactFiles", artifactFiles=[{"artifactID": upload, "name": "other", "md5": md5(b"")}]
        ).status
        == 409
    )


def test_a_new_address_ends_the_one_before_it(uploader: Uploader) -> None:
    upload = uploader.begin()
    old, new = uploader.file_url(upload, rows(1)), uploader.file_url(upload, rows(1))
    assert old is not None
    assert new is not None
    assert old != new
    assert uploader.put(old, rows(1)).status == 403
    assert uploader.put(new, rows(1)).status == 200


def test_an_address_of_one_part_opens_no_other(uploader: Uploader) -> None:
    upload = uploader.begin()
    file, manifest = uploader.file_url(upload, rows(1)), uploader.manifest_url(upload)
    assert file is not None
    for url, wrong in ((file, "manifests"), (manifest, "files")):
        crossed = f"{ROOT}/uploads/{wrong}/{url.rpartition('/')[2]}"
        assert uploader.put(crossed, rows(1)).status == 403


@pytest.mark.parametrize("secret", ["0" * 64, "x", "%00", "..%2f..", "a" * 1024, "None"])
@pytest.mark.parametrize("part", ["files", "manifests"])
def test_a_guessed_address_is_refused_before_anything_is_read(
    uploader: Uploader, platform: Any, part: str, secret: str
) -> None:
    read = []

    def body() -> Iterator[bytes]:
        read.append(1)
        yield b"x"

    uploader.begin()  # has no address yet: no secret is equal to the one that it lacks
    response = Endpoint(platform, list(Interface)).handle(Request("PUT", f"/uploads/{part}/{secret}", "", [], body()))
    assert response.status in (403, 404)
    assert read == []


def test_a_secret_is_kept_as_a_digest_alone(uploader: Uploader, platform: Any) -> None:
    upload = uploader.begin()
    secrets = [str(uploader.file_url(upload, rows(1))), uploader.manifest_url(upload)]
    kept = platform._runtime.store.read(lambda snapshot: snapshot.get(Upload, upload))
    assert not any(secret.rpartition("/")[2] in str(attrs.astuple(kept)) for secret in secrets)
    assert kept.file_secret not in repr(kept)


def test_the_manifest_names_the_one_file_that_came(uploader: Uploader) -> None:
    upload = uploader.begin()
    data, url = rows(1), uploader.manifest_url(upload)

    def manifest(**digests: str) -> bytes:
        return json.dumps({"contents": {name: {"digest": digest} for name, digest in digests.items()}}).encode()

    assert uploader.put(url, manifest(train=md5(data))).status == 400
    assert uploader.put(str(uploader.file_url(upload, data)), data).status == 200
    for wrong in (manifest(), manifest(train=md5(b"")), manifest(a=md5(data), b=md5(data)), b"{}", b"[]", b"x"):
        assert uploader.put(url, wrong).status == 400
    assert uploader.put(url, manifest(train=md5(data))).status == 200


@pytest.mark.parametrize("host", [None, "", "a b", "evil.example/x", "user@evil.example", "a\r\nb", "x" * 300, "[::1"])
def test_an_address_is_made_of_no_strange_host(uploader: Uploader, host: str | None) -> None:
    upload = uploader.begin()
    body = {"query": "mutation CreateArtifactManifest { x }", "variables": {"artifactID": upload}}
    assert uploader.post(body, host=host).status == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "[::1]:80", "yard.example"])
def test_an_address_is_where_the_caller_reached_the_server(uploader: Uploader, host: str) -> None:
    body = {"query": "mutation CreateArtifactManifest { x }", "variables": {"artifactID": uploader.begin()}}
    pair = base64.b64encode(f"api:{uploader.client.key}".encode()).decode()
    sent = [("authorization", f"Basic {pair}"), ("host", host)]
    request = Request("POST", "/graphql", "", sent, iter([json.dumps(body).encode()]), "https", "/ai/my yard")
    answer = json.loads(uploader.client.endpoint.handle(request).body)
    url = answer["data"]["createArtifactManifest"]["artifactManifest"]["file"]["uploadUrl"]
    assert url.startswith(f"https://{host}/ai/my%20yard/uploads/manifests/")


# ---- tenants ---------------------------------------------------------------------------------------------------------


def test_what_is_another_s_looks_as_if_it_did_not_exist(client: Any, uploader: Uploader, platform: Any) -> None:
    other = Uploader(client, platform.keys.create("rival").secret)
    begun, done = uploader.begin(), uploader.upload(rows(1))
    for id in (begun, done, UNKNOWN):
        assert other.by_id(id) is None
        for operation, variables in (
            ("CommitArtifact", {"artifactID": id}),
            ("CreateArtifactManifest", {"artifactID": id}),
            ("CreateArtifactFiles", {"artifactFiles": [{"artifactID": id, "name": "f", "md5": md5(b"")}]}),
        ):
            answer = other.send(operation, **variables)
            reply = answer.json["errors"][0]["message"].replace(id, "")
            assert (answer.status, reply) == (404, "Upload '' not found; begin it again")


@pytest.mark.parametrize("entity", ["rival", "nobody"])
def test_a_scope_that_the_key_lacks_is_refused_in_the_same_words(
    uploader: Uploader, platform: Any, entity: str
) -> None:
    platform.keys.create("rival")
    place: dict[str, Any] = {"project": "proj", "entity": entity}
    wanted = {"artifactTypeName": "dataset", "artifactCollectionName": "d", "projectName": "proj", "entityName": entity}
    for operation, variables in (
        ("RunResumeStatus", {**place, "name": "run"}),
        ("UpsertBucket", {**place, "name": "run"}),
        ("ArtifactByName", {**place, "name": "d:v0"}),
        ("CreateArtifact", {"input": wanted}),
    ):
        answer = uploader.send(operation, **variables)
        assert (answer.status, answer.json["errors"][0]["extensions"]) == (403, {"code": "forbidden"})
    stream = uploader.client.send("POST", f"/files/{entity}/proj/run/file_stream", {}, auth="Basic")
    assert stream.status == 403


def test_an_address_opens_its_own_project_alone(uploader: Uploader, platform: Any) -> None:
    url = uploader.manifest_url(uploader.begin())
    bearer = platform.compat.uploads.authenticate("manifest", url.rpartition("/")[2])
    assert bearer.scope == Scope("acme", frozenset(["proj"]))


@pytest.mark.slow
def test_with_an_entity_goes_what_was_on_its_way(client: Any, platform: Any) -> None:
    before = names(platform)
    leaver = Uploader(client, platform.keys.create("leaver").secret)
    url = leaver.file_url(leaver.begin(entity="leaver"), rows(1))
    assert leaver.put(str(url), rows(1)).status == 200
    assert len(names(platform)) == len(before) + 1
    platform.delete_entity("leaver")
    assert names(platform) == before


def test_a_key_of_one_project_stays_in_it(client: Any, platform: Any) -> None:
    narrow = Uploader(client, platform.keys.create("acme", ["mine"]).secret)
    wide = Uploader(client)
    upload = wide.upload(rows(1), project="other")
    assert narrow.by_id(upload) is None
    assert narrow.send("CommitArtifact", artifactID=wide.begin(project="other")).status == 404
    assert narrow.send("ArtifactByName", project="other", name="data").status == 403
    assert narrow.by_id(narrow.upload(rows(1), project="mine"))["state"] == "COMMITTED"


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"query": "mutation DeleteArtifact($id: ID!) { deleteArtifact(id: $id) { x } }"},
        {"query": "{ project { artifact { name } } }"},
        {"query": "{ __schema { types { name } } }"},
        {"query": "subscription { viewer }"},
        {"query": "{", "operationName": "Nothing"},
        {"query": "{" * 60_000},
        {"query": " " * 65_000 + "query" + " " * 500},
        {"query": "query" + " " * 65_000},
        {"query": "query a(" * 8_000},
        {"query": "# a comment\n{ viewer { id } }"},
        {"query": "x", "operationName": "\u202e\x00"},
    ],
)
def test_an_operation_that_is_not_known_is_refused_by_its_name(uploader: Uploader, body: Any) -> None:
    answer = uploader.post(body)
    assert (answer.status, answer.json["data"]) == (400, None)
    assert "there is no operation" in answer.json["errors"][0]["message"]


@pytest.mark.parametrize(
    ("operation", "variables", "reply"),
    [
        ("CommitArtifact", {}, "artifactID: is required"),
        ("CommitArtifact", {"artifactID": "../../etc/passwd"}, "artifactID: must be an id"),
        ("ArtifactByID", {"id": 5}, "id: must be a string"),
        ("CreateArtifact", {"input": []}, "input: must be an object"),
        ("CreateArtifact", {"input": {"artifactTypeName": "model"}}, "artifactTypeName: must be 'dataset'"),
        ("CreateArtifact", {"input": {"artifactCollectionName": "../x"}}, "artifactCollectionName: must be 1 to 128"),
        ("CreateArtifact", {"input": {"projectName": ".."}}, "projectName: must be 1 to 128"),
        ("CreateArtifact", {"input": {"entityName": "a/b"}}, "entityName: must be 1 to 128"),
        ("CreateArtifact", {"input": {"distributedID": "x"}}, "several writers"),
        ("CreateArtifactManifest", {"manifestType": "PATCH"}, "manifestType: must be 'FULL'"),
        ("CreateArtifactFiles", {"artifactFiles": []}, "artifactFiles: must be one file"),
        ("CreateArtifactFiles", {"artifactFiles": [{"artifactID": UNKNOWN, "name": "f", "md5": ""}]}, "an MD5"),
        ("CreateRunFiles", {"run": "r", "files": ["f"] * 1001}, "files: must have at most"),
        ("RunResumeStatus", {"name": ""}, "name: must not be empty"),
        ("UpsertBucket", {"name": "r", "project": "a b"}, "project: must be 1 to 128"),
    ],
)
def test_variables_that_do_not_fit_are_named(uploader: Uploader, operation: str, variables: Any, reply: str) -> None:
    answer = uploader.send(operation, **variables)
    assert answer.status == 400
    assert any(reply in error["message"] for error in answer.json["errors"]), answer.raw


@pytest.mark.parametrize("named", [True, False, ""])
def test_newer_clients_name_no_operation_and_ask_in_an_input(uploader: Uploader, named: bool | str) -> None:
    def ask(operation: str, **variables: Any) -> Any:
        name = {"operationName": operation} if named is True else {"operationName": ""} if named == "" else {}
        answer = uploader.post({"query": f"mutation {operation}($x: X!) {{ y }}", "variables": variables, **name})
        assert answer.status == 200, answer.raw
        return answer.json["data"]

    upload, data = uploader.begin(name="inputs"), rows(2)
    file = {"artifactID": upload, "name": "train.jsonl", "md5": md5(data), "mimetype": None, "uploadPartsInput": None}
    asked = {"artifactFiles": [file], "clientMutationId": None, "cloudRegionID": None, "storageLayout": "V2"}
    url = ask("CreateArtifactFiles", input=asked)["createArtifactFiles"]["files"]["edges"][0]["node"]["uploadUrl"]
    if url is not None:  # else the rows are there already
        assert uploader.put(url, data).status == 200
    ask("CommitArtifact", artifactID=upload)
    place = {"name": "inputs:latest", "project": "proj", "entity": "acme"}
    member = ask("ArtifactMembershipByName", **place)["project"]["artifactCollectionMembership"]
    assert (member["artifact"]["versionIndex"], member["artifactCollection"]["name"]) == (0, "inputs")
    assert member["artifactCollection"]["project"]["internalId"] == "proj"
    missing = ask("ArtifactMembershipByName", **place | {"name": "nothing:latest"})["project"]
    assert missing == {"artifactCollectionMembership": None}
    for wrong in ({}, {"artifactFiles": [file], "input": asked}, {"input": {"artifactFiles": []}}):
        assert uploader.send("CreateArtifactFiles", **wrong).status == 400


def test_an_artifact_of_two_files_is_refused(uploader: Uploader) -> None:
    files = [{"artifactID": uploader.begin(), "name": name, "md5": md5(b"")} for name in ("a", "b")]
    answer = uploader.send("CreateArtifactFiles", artifactFiles=files)
    assert (answer.status, "one file" in answer.json["errors"][0]["message"]) == (400, True)


def test_nothing_is_committed_that_did_not_come(uploader: Uploader) -> None:
    upload = uploader.begin()
    assert uploader.send("CommitArtifact", artifactID=upload).status == 409
    uploader.file_url(upload, rows(1))
    assert uploader.send("CommitArtifact", artifactID=upload).status == 409
    assert uploader.by_id(upload) is None


def test_a_commit_again_is_the_same_commit(uploader: Uploader, platform: Any) -> None:
    upload = uploader.upload(rows(1), name="twice")
    uploader.ok("CommitArtifact", artifactID=upload)
    kept = platform._runtime.store.read(lambda snapshot: snapshot.page(Dataset, "by_name", "acme", "proj", "twice"))
    assert [dataset.version for dataset in kept] == [0]


def test_files_about_a_run_get_no_address(uploader: Uploader) -> None:
    answer = uploader.ok("CreateRunFiles", entity="acme", project="proj", run="r", files=["../a", "b"])[
        "createRunFiles"
    ]
    assert answer["files"] == [{"name": "../a", "uploadUrl": None}, {"name": "b", "uploadUrl": None}]


def test_bearer_and_basic_credentials_are_not_interchangeable(client: Any) -> None:
    for key, auth in ((client.key, "Bearer"), ("", "Basic")):
        answer = client.send("POST", "/graphql", {"query": "{ viewer { id } }"}, key=key, auth=auth)
        assert (answer.status, answer.json["data"]) == (401, None)


# ---- only when asked for ---------------------------------------------------------------------------------------------


STREAM = "/files/acme/demo/run/file_stream"


def test_uploads_are_mounted_and_documented_only_on_request(platform: Any) -> None:
    own = {"/uploads/files/{file}", "/uploads/manifests/{manifest}"}
    for endpoint, there in ((Endpoint(platform), False), (Endpoint(platform, [Interface.UPLOADS]), True)):
        assert (own <= {route.path for route in endpoint.table.routes}) is there
        shown = endpoint.handle(Request("GET", "/openapi.json", "", [], iter([])))
        assert (own <= json.loads(shown.body)["paths"].keys()) is there  # type: ignore[arg-type]
        status = endpoint.handle(Request("POST", STREAM, "", [], iter([b"{}"]))).status
        assert status == (401 if there else 404)


def requested(application: Any) -> int:
    """The status that an ASGI application answers to an operation without a key."""
    sent = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": STREAM, "query_string": b"", "headers": []}
    asyncio.run(application(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(("options", "status"), [([], 404), (["--uploads"], 401)])
def test_the_command_line_mounts_uploads_on_demand(
    options: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = []

    def run(server: Any) -> None:
        server.started = True
        answered.append(requested(server.config.app))

    monkeypatch.setattr("uvicorn.Server.run", run)
    done = CliRunner().invoke(main, ["serve", "--store", str(tmp_path / "yard.db"), *options])
    assert (done.exit_code, answered) == (0, [status])


def test_adapters_mount_no_uploads_unasked(platform: Any) -> None:
    statuses = []
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": STREAM, "wsgi.input": io.BytesIO()}
    for application in (wsgi_app(platform), wsgi_app(platform, list(Interface))):
        application(environ, lambda status, _: statuses.append(status))
    assert [status[:3] for status in statuses] == ["404", "401"]
    assert [requested(asgi_app(platform)), requested(asgi_app(platform, list(Interface)))] == [404, 401]


def test_each_route_shows_who_calls_by_basic_or_by_its_address(platform: Any) -> None:
    routes = Endpoint(platform, [Interface.UPLOADS]).table.routes
    assert {route.auth for route in routes if route.interface is Interface.UPLOADS} == {Auth.BASIC, Auth.ADDRESS}


# ---- limits, time, restarts ------------------------------------------------------------------------------------------


def test_a_file_beyond_the_limit_of_data_is_refused_and_nothing_stays(client_for: Any) -> None:
    with open_platform(settings=Settings(max_data_body=100, max_control_body=2000)) as platform:
        uploader = Uploader(client_for(platform))
        upload = uploader.begin()
        assert uploader.put(str(uploader.file_url(upload, rows(9))), rows(9)).status == 413
        assert uploader.put(uploader.manifest_url(upload), b" " * 2001).status == 413
        assert names(platform) == []


def test_an_upload_ends_after_its_time_and_is_swept_by_a_later_one(client_for: Any) -> None:
    clock = ManualClock()
    with open_platform(clock=clock) as platform:
        uploader = Uploader(client_for(platform))
        late, url = uploader.begin("late"), ""
        url = str(uploader.file_url(late, rows(1)))
        assert uploader.put(url, rows(1)).status == 200
        manifest = uploader.manifest_url(late)
        kept = uploader.upload(rows(2), name="kept")
        clock.advance(LIFE / timedelta(seconds=1))
        assert uploader.put(url, rows(1)).status == 403
        assert uploader.put(manifest, b"{}").status == 403
        assert uploader.send("CommitArtifact", artifactID=late).status == 404
        assert len(names(platform)) == 2
        assert uploader.by_id(kept)["versionIndex"] == 0
        fresh = uploader.begin("fresh")
        assert len(names(platform)) == 1  # the dataset's own
        assert uploader.by_id(kept) is None
        assert uploader.ok("ArtifactByName", project="proj", name="kept:v0")["project"]["artifact"]["size"] > 0
        assert platform._runtime.store.read(lambda snapshot: snapshot.page(Upload, "by_age"))[0].id == fresh


def test_an_upload_continues_after_a_restart_between_any_two_calls(client_for: Any, tmp_path: Path) -> None:
    story: dict[str, str] = {}
    data = rows(3)
    with open_platform(tmp_path / "yard.db", durability="process") as platform:
        key = platform.keys.create("acme").secret

    def manifest(uploader: Uploader) -> None:
        body = json.dumps({"contents": {"train.jsonl": {"digest": md5(data)}}}).encode()
        assert uploader.put(story["manifest"], body).status == 200

    def shown(uploader: Uploader) -> None:
        assert uploader.by_id(story["id"])["state"] == "COMMITTED"

    for call in (
        lambda one: story.update(id=one.begin()),
        lambda one: story.update(file=one.file_url(story["id"], data)),
        lambda one: one.put(story["file"], data),
        lambda one: story.update(manifest=one.manifest_url(story["id"])),
        manifest,
        lambda one: one.ok("CommitArtifact", artifactID=story["id"]),
        shown,
    ):
        with open_platform(tmp_path / "yard.db", durability="process") as platform:
            call(Uploader(client_for(platform), key))
    with open_platform(tmp_path / "yard.db", durability="process") as platform:
        platform.models.create("m", project="proj", base_model="tabular-mini", entity="acme")
        assert platform.training.sft("acme/proj/m", "wandb-artifact:///acme/proj/data:v0").result().step == 1


def test_steps_may_run_twice(client_for: Any) -> None:
    with open_platform(store=RunTwiceStore(MemoryStore(RECORDS))) as platform:
        uploader = Uploader(client_for(platform))
        assert uploader.by_id(uploader.upload(rows(2)))["versionIndex"] == 0


def test_of_one_file_that_comes_twice_at_once_one_stays(client_for: Any) -> None:
    class Meddled(MemoryArtifacts):
        """Before the rows of a file are put, something else happens."""

        puts = 0
        meanwhile: Any = None

        def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
            self.puts += 1
            if self.puts == 1:
                self.meanwhile()
            return super().put(chunks)

    artifacts = Meddled(os.urandom)
    with open_platform(artifacts=artifacts) as platform:
        uploader = Uploader(client_for(platform))
        upload = uploader.begin()
        url = str(uploader.file_url(upload, rows(1)))
        artifacts.meanwhile = lambda: uploader.put(url, rows(1))
        assert uploader.put(url, rows(1)).status == 200
        assert artifacts.puts == 2
        (kept,) = artifacts.names()
        uploader.ok("CommitArtifact", artifactID=upload)
        assert list(artifacts.names()) == [kept]
