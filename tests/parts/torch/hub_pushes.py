"""The half of a hub that takes models: repositories, large files and commits, as `huggingface_hub` sends them."""

import base64
import hashlib
import json
import re
from typing import Any
from urllib.parse import unquote

import attrs
from hub_server import LARGE, Hub

_COMMIT = re.compile(r"api/models/([^/]+/[^/]+)/(preupload|commit|branch)/([^/]+)")


@attrs.define
class Taken:
    """What a hub has been sent: by name the visibility of each model, what was said of commits, and large files."""

    private: dict[str, bool] = attrs.field(factory=dict)
    messages: list[str] = attrs.field(factory=list)
    branches: list[str] = attrs.field(factory=list)
    large: dict[str, bytes] = attrs.field(factory=dict, repr=False)
    cards: list[str] = attrs.field(factory=list, repr=False)
    refused: int = 0
    """The status with which commits are refused."""
    large_refused: int = 0
    """The status with which large files are refused."""


def taken(hub: Hub, method: str, path: str, body: bytes) -> tuple[int, Any]:
    """Answer a request that writes."""
    if method == "PUT" and hub.pushed.large_refused:
        return hub.pushed.large_refused, {"error": "https://user:pass@inner/?signature=s3cr3t"}
    if method == "PUT":
        hub.pushed.large[path.rpartition("/")[2]] = body
        return 200, {}
    said = json.loads(body.splitlines()[0]) if body else {}
    if path == "api/validate-yaml":
        hub.pushed.cards.append(said["content"])
        return 200, {"errors": [], "warnings": []}
    if path == "api/repos/create":
        return _created(hub, f"{said['organization']}/{said['name']}", said)
    if path.endswith("/info/lfs/objects/batch"):
        return 200, {"transfer": "basic", "objects": [_where(hub, one) for one in said["objects"]]}
    found = _COMMIT.fullmatch(path)
    assert found is not None, path
    name, what, revision = found[1], found[2], unquote(found[3])
    if what == "branch":
        hub.branches.setdefault(revision, "e" * 40)
        return 200, {}
    if what == "preupload":
        modes = {one["path"]: "lfs" if one["size"] >= LARGE else "regular" for one in said["files"]}
        return 200, {"files": [{"path": file, "uploadMode": modes[file], "shouldIgnore": False} for file in modes]}
    return _committed(hub, name, revision, [json.loads(line) for line in body.splitlines()])


def _created(hub: Hub, name: str, said: dict[str, Any]) -> tuple[int, Any]:
    if name in hub.models:
        return 409, {"error": "You already created this model repo", "url": f"{hub.url}/{name}"}
    hub.models[name] = {}
    hub.pushed.private[name] = said["private"] if "private" in said else said.get("visibility") == "private"
    return 200, {"url": f"{hub.url}/{name}"}


def _where(hub: Hub, one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "actions": {"upload": {"href": f"{hub.url}/stored/{one['oid']}"}}}


def _committed(hub: Hub, name: str, revision: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
    if hub.pushed.refused:
        return hub.pushed.refused, {"error": "https://user:pass@inner/?signature=s3cr3t"}
    files = {}
    for line in lines:
        value = line["value"]
        if line["key"] == "header":
            hub.pushed.messages.append(value["summary"])
        elif line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            files[value["path"]] = hub.pushed.large[value["oid"]]
            assert hashlib.sha256(files[value["path"]]).hexdigest() == value["oid"]
    hub.models[name] |= files
    hub.pushed.branches.append(revision)
    commit = hashlib.sha1(repr(sorted(files)).encode(), usedforsecurity=False).hexdigest()
    hub.branches[revision] = commit
    return 200, {"commitUrl": f"{hub.url}/{name}/commit/{commit}", "commitOid": commit, "commitMessage": "x"}
