"""Test the core alone: copy the tree, delete the parts and their tests, and test what is left.

    python tests/core_alone.py [options of pytest]

What properties say is the same without parts, so each is tried with a tenth of the examples. Then an evaluation and a
training run over HTTP with what is left. It prints what the core and each part have in files and lines. The exit status
is that of pytest, or of the run.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/modelyard")
PARTS = (SOURCE / "parts", Path("tests/parts"))

OVER_HTTP = """
import base64, json
from modelyard import open_platform
from modelyard.asgi import Endpoint, Request

with open_platform() as platform:
    key, endpoint = platform.keys.create("acme").secret, Endpoint(platform)
    basic = base64.b64encode(f"api:{key}".encode()).decode()

    def send(method, path, body=b"", query="", scheme=f"Bearer {key}"):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = [("authorization", scheme), ("content-type", "application/json")]
        answer = endpoint.handle(Request(method, path, query, headers, iter([raw])))
        assert answer.status < 300, (path, answer.status, answer.body)
        return json.loads(answer.body)

    named = {"project": "desk", "name": "support", "base_model": "tabular-mini"}
    model = send("POST", "/v1/preview/models", named)
    row = {"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}
    rows = b"\\n".join([json.dumps(row).encode()] * 4)
    data = send("POST", "/v1/preview/datasets", rows, "project=desk&name=rows")
    publish = platform.acting_as(platform.keys.authenticate(key)).evaluations.objects.publish
    dataset = publish("dataset", "questions", {}, [{"prompt": "ping", "expected": "pong"}], project="desk").ref
    scorer = publish("scorer", "found", {"scorer": {"type": "contains"}}, project="desk").ref
    quiz = publish("evaluation", "quiz", {"dataset": str(dataset), "scorers": [str(scorer)]}, project="desk").ref
    with platform.worker() as worker:
        training = {"model_id": model["id"], "training_data_url": data["url"]}
        job = send("POST", "/v1/preview/sft-training-jobs", training)
        platform.training.job(job["id"]).wait()
        trained = "modelyard:///acme/desk/object/support:step1"
        body = {"project_id": "acme/desk", "evaluation_ref": str(quiz), "model_ref": trained}
        call = send("POST", "/evaluations/evaluate_model", body, "", f"Basic {basic}")["call_id"]
        platform.evaluations.wait(call)
    assert send("GET", f"/v1/preview/training-jobs/{job['id']}")["status"] == "succeeded"
    chat = {"model": "acme/desk/support", "messages": row["messages"][:1], "temperature": 0}
    answer = send("POST", "/inference/v1/chat/completions", chat)["choices"][0]["message"]["content"]
    asked = {"project_id": "acme/desk", "call_id": call}
    code = send("POST", "/evaluations/status", asked, "", f"Basic {basic}")
    print(f"without parts: trained, answered {answer!r}, evaluated: {code}")
"""


def copied(target: Path) -> Iterator[Path]:
    """Copy the files that git knows or would add, but for parts; yield their paths."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in map(Path, listed.stdout.splitlines()):
        if not any(name.is_relative_to(part) for part in PARTS) and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((ROOT / name).read_bytes())
            yield name


def sizes() -> Iterator[str]:
    """Yield how many files and lines the core and each part have."""
    files, lines = Counter[str](), Counter[str]()
    for path in (ROOT / SOURCE).rglob("*.py"):
        inside = path.relative_to(ROOT / SOURCE).parts
        owner = "core" if inside[0] != "parts" else f"parts/{inside[1]}" if len(inside) > 2 else "parts"
        files[owner] += 1
        lines[owner] += path.read_text(encoding="utf-8").count("\n")
    yield from (f"{owner:22} {files[owner]:4} files {lines[owner]:7,} lines" for owner in sorted(files))


def main() -> int:
    """Run it."""
    print("\n".join(sizes()))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder)
        left = sum(1 for _ in copied(target))
        print(f"{left} files are left without the parts and their tests", flush=True)
        run = partial(subprocess.run, cwd=target, env={**os.environ, "PYTHONPATH": str(target / "src")}, check=False)
        tested = run([sys.executable, "-m", "pytest", "--hypothesis-profile=few", *sys.argv[1:]])
        ran = run([sys.executable, "-c", OVER_HTTP])
    return tested.returncode or ran.returncode


if __name__ == "__main__":
    raise SystemExit(main())
