"""The examples, links and bounds of the OpenAPI document are those of the platform."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from each import each_case
from every_route import routes
from http_client import Client
from modelyard import open_platform
from modelyard.domain.evaluation.scorer_rules import RULES
from modelyard.http.message import PROTOBUF
from modelyard.http.openapi import document, example_of
from modelyard.platform.runtime import Settings
from openapi_calls import kept, record

SHOWN = document(routes())
OPERATIONS = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, methods in SHOWN["paths"].items()
    for method, operation in methods.items()
}
EXAMPLES = {route.operation: example_of(route) for route in routes()}
HEX = re.compile("[0-9a-f]{64}")


def refusals(schema: Any, value: Any) -> list[str]:
    """What is wrong with a value where components may have no other members than those that are described."""
    return [
        error.message
        for error in Draft202012Validator({**schema, "components": SHOWN["components"]}).iter_errors(value)
    ]


def contents(operation: Any) -> Iterator[tuple[str, Any]]:
    yield from operation.get("requestBody", {"content": {}})["content"].items()
    yield from operation["responses"]["200"]["content"].items()


# ---- examples


def test_every_operation_has_examples_that_fit_their_schemas() -> None:
    for name, (_, _, operation) in OPERATIONS.items():
        for media, content in contents(operation):
            if media in ("application/octet-stream", "text/event-stream", PROTOBUF):
                continue
            assert "example" in content, (name, media)
            assert refusals(content["schema"], content["example"]) == [], name
        for parameter in operation["parameters"]:
            if "example" in parameter:
                assert refusals(parameter["schema"], parameter["example"]) == [], (name, parameter["name"])


@pytest.mark.slow
def test_a_platform_accepts_the_requests_and_gives_the_answers_of_the_examples() -> None:
    recorded, known = without_digests(record()), without_digests(kept())
    changed = [file for file in recorded.keys() | known.keys() if recorded.get(file) != known.get(file)]
    assert changed == [], "record them again, if that was meant: PYTHONPATH=src python tests/shared/openapi_calls.py"


def without_digests(value: Any) -> Any:
    """Leave out what depends on the machine's last digit of a logarithm."""
    if isinstance(value, dict):
        return {name: without_digests(member) for name, member in value.items()}
    if isinstance(value, list):
        return [without_digests(item) for item in value]
    if isinstance(value, str):
        return HEX.sub("<digest>", value)
    return pytest.approx(value) if isinstance(value, float) else value


# ---- links


def linked(name: str) -> set[str]:
    return set(OPERATIONS[name][2]["responses"]["200"].get("links", {}))


def test_what_is_created_leads_to_the_operations_on_it() -> None:
    of_job = {"show_training_job", "list_training_events", "cancel_training_job", "show_trainable_model"}
    for kind in ("rl", "sft", "dpo"):
        assert of_job <= linked(f"create_{kind}_job")
    of_run = {"show_evaluation_run", "finish_evaluation_run", "export_evaluation_run"}
    assert of_run <= linked("create_evaluation_run")
    of_model = {"show_trainable_model", "list_checkpoints", "delete_trainable_model"}
    assert of_model <= linked("create_trainable_model")
    assert "show_scorer_version" in linked("create_scorer_version")
    assert linked("show_health") == set()


def test_links_name_parameters_of_their_operations_and_members_of_the_answer() -> None:
    links = [
        (name, link)
        for name, (_, _, operation) in OPERATIONS.items()
        for link in operation["responses"]["200"].get("links", {}).values()
    ]
    assert len(links) > 50
    for name, link in links:
        _, path, target = OPERATIONS[link["operationId"]]
        assert set(link["parameters"]) == {one["name"] for one in target["parameters"] if one["in"] == "path"}, path
        for expression in link["parameters"].values():
            where, _, member = expression.partition("#/") if "#" in expression else expression.rpartition(".")
            known = EXAMPLES[name]["response" if where == "$response.body" else "path"]
            assert isinstance(known[member], str | int), (name, expression)


# ---- bounds


@pytest.fixture
def model(client: Client) -> str:
    fields = {"project": "bounds", "name": "m", "base_model": "tabular-mini", "return_existing": True}
    return str(client.ok("POST", "/v1/preview/models", fields)["id"])


JOBS = {
    "RLOptionsBody": "training-jobs",
    "SFTOptionsBody": "sft-training-jobs",
    "DPOOptionsBody": "dpo-training-jobs",
    "DistillOptionsBody": "distill-training-jobs",
    "LoopOptionsBody": "training-loops",
}


URL: dict[str, Any] = {"training_data_url": "x://a/b/c:v0"}
TASKS = [{"prompt": "x"}]
DATA: dict[str, dict[str, Any]] = {
    "RLOptionsBody": {"trajectory_groups": []},
    "LoopOptionsBody": {"tasks": TASKS, "reward": {"type": "exact_match"}, "held_out": TASKS},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", [name for name in JOBS if name in SHOWN["components"]["schemas"]])
def test_the_bounds_of_training_options_are_those_that_are_enforced(client: Client, model: str, options: str) -> None:
    """Each value is refused just where the document refuses it."""
    described = SHOWN["components"]["schemas"][options]
    client.platform.worker().beat()
    for name, schema in described["properties"].items():
        for value in (-2, -1, 0, 0.4, 0.5, 1, [], [-1.0], [0.5], "words"):
            if (name, value) == ("kl_penalty_reference_step", 1):
                continue  # the model has no such step
            fits = refusals(schema, value) == []
            where = "experimental_config" if options == "RLOptionsBody" else "config"
            with_teacher = {"teacher": "tabular-mini"} if (options, name) == ("LoopOptionsBody", "beta") else {}
            body = {"model_id": model, where: {name: value, **with_teacher}, **DATA.get(options, URL)}
            answer = client.send("POST", f"/v1/preview/{JOBS[options]}", body, check=False)
            refused = answer.status == 422 and ["body", where, name] in [
                one["loc"][:3] for one in answer.json["detail"]
            ]
            assert refused is not fits, (name, value, answer.raw)


@pytest.mark.parametrize(
    ("scorer", "fits"),
    [
        ({"type": "exact_match"}, True),
        ({"type": "exact_match", "ignore_case": True, "expected": None}, True),
        ({"type": "numeric", "absolute": 0, "relative": 0.5}, True),
        ({"type": "llm_judge", "model": "echo", "prompt": "{output}", "scale": "number"}, True),
        ({"type": "numeric", "absolute": -1}, False),
        ({"type": "llm_judge", "model": "echo", "prompt": "{output}", "scale": "stars"}, False),
        ({"type": "llm_judge", "model": "echo"}, False),
        ({"type": "exact_match", "ignorecase": True}, False),
        ({"type": "regular_expression"}, False),
        ({"type": "best_of"}, False),
        ({"type": "json_path", "path": "$.a[0]"}, True),
        ({"type": "tool_calls", "names_only": "yes"}, False),
        ({"expected": "answer"}, False),
    ],
)
def test_a_scorer_is_described_kind_by_kind_as_it_is_read(client: Client, scorer: Any, fits: bool) -> None:
    schema = SHOWN["components"]["schemas"]["ScorerCreate"]["properties"]["scorer"]
    assert (refusals(schema, scorer) == []) is fits
    kinds = schema["anyOf"][0]
    assert kinds["discriminator"]["propertyName"] == "type"
    assert set(kinds["discriminator"]["mapping"]) == set(RULES)
    assert len(kinds["oneOf"]) == len(RULES)
    answer = client.send("POST", "/v2/acme/bounds/scorers", {"name": "s", "scorer": scorer}, auth="Basic", check=False)
    assert answer.status == (200 if fits else 422), answer.raw


@pytest.mark.parametrize(
    ("reference", "fits"),
    [
        ("weave:///acme/bounds/object/quiz", True),
        ("modelyard:///acme/bounds/object/quiz:v0/attr/a/key/b", True),
        ("weave:///acme/bounds/op/quiz", False),
        ("weave:///acme/..//object/quiz", False),
        ("weave:///acme/bounds/object/quiz:", False),
        ("quiz", False),
        ("", False),
    ],
)
def test_references_are_described_as_they_are_read(client: Client, reference: str, fits: bool) -> None:
    body = {"evaluation": reference, "model": "weave:///acme/bounds/object/m"}
    schema = {"$ref": "#/components/schemas/EvaluationRunCreate"}
    assert (refusals(schema, body) == []) is fits
    answer = client.send("POST", "/v2/acme/bounds/evaluation_runs", body, auth="Basic", check=False)
    assert answer.status == (200 if fits else 422), answer.raw


@pytest.mark.slow
def test_where_references_are_not_checked_any_string_is_described(client_for: Any) -> None:
    with open_platform(settings=Settings(reference_mode="lenient")) as platform:
        shown = client_for(platform).send("GET", "/openapi.json", key="").json
    run = shown["components"]["schemas"]["EvaluationRunCreate"]["properties"]
    assert run["evaluation"] == {"type": "string", "maxLength": 20_000}


@each_case(
    ("path", "value", "fits"),
    [
        ("alias", "prod", True),
        ("alias", "Prod", False),
        ("alias", "v1", False),
        ("alias", "latest", False),
        ("entity", "..", False),
        ("entity", "a/b", False),
        ("step", 10**18 - 1, True),
        ("step", 10**18, False),
        ("step", -1, False),
    ],
)
def test_parameters_of_paths_have_their_bounds(path: str, value: Any, fits: bool) -> None:
    (schema, *_) = [
        one["schema"]
        for _, _, operation in OPERATIONS.values()
        for one in operation["parameters"]
        if (one["name"], one["in"]) == (path, "path")
    ]
    assert (refusals(schema, value) == []) is fits


@pytest.mark.parametrize(("reason", "status"), [("x", 200), ("x" * 2000, 200), ("", 422), ("x" * 2001, 422)])
def test_a_reason_has_the_length_that_is_described(client: Client, reason: str, status: int) -> None:
    body = {"evaluation": "weave:///acme/bounds/object/e", "model": "weave:///acme/bounds/object/m"}
    run = client.ok("POST", "/v2/acme/bounds/evaluation_runs", body, auth="Basic")["evaluation_run_id"]
    path = f"/v2/acme/bounds/evaluation_runs/{run}/cancel"
    assert client.send("POST", path, {"reason": reason}, auth="Basic", check=False).status == status
    fits = refusals({"$ref": "#/components/schemas/EvaluationRunStop"}, {"reason": reason}) == []
    assert fits is (status == 200)
