"""What a version is made of: templates with named inputs, bounds, and the file that people review."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.errors import InvalidInput
from modelyard.parts.variants import file
from modelyard.parts.variants.content import MAX_EXAMPLES, MAX_SIZE, PARAMETERS, VariantContent, checked_content
from modelyard.parts.variants.template import MAX_INPUTS, MAX_RENDERED, Template

HOSTILE = (
    "{}",
    "{0}",
    "{question.__class__}",
    "{question[0]}",
    "{question!r}",
    "{question:>100000000}",
    "{ question }",
    "{question",
    "question}",
    "{{question}",
    "{%if question%}",
    "{{% for x in y %}}{x",
    "{quest\nion}",
    "{é}",
    "{" + "a" * 65 + "}",
)


def content(**changes: Any) -> VariantContent:
    return checked_content(
        **{"model": "echo", "system": "", "template": "", "examples": (), "parameters": {}} | changes
    )


def refused(**changes: Any) -> list[tuple[str | int, ...]]:
    with pytest.raises(InvalidInput) as caught:
        content(**changes)
    return [problem.loc for problem in caught.value.problems]


# ---- templates


@each_case("text", HOSTILE)
def test_a_brace_that_begins_no_input_is_refused_at_its_line(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        content(template=f"Hello.\n {text} {{question}}")
    (problem,) = caught.value.problems
    assert problem.loc == ("template",)
    assert "line 2, column" in problem.msg


def test_inputs_are_filled_once_and_braces_stay() -> None:
    template = Template("{{json}} {a} and {b}, {a}{{}}")
    assert template.inputs == ("a", "b")
    assert template.fill({"a": "{b}", "b": "{a} {{"}) == "{json} {b} and {a} {{, {b}{}"


@pytest.mark.slow
@given(st.lists(st.tuples(st.text(), st.sampled_from(["a", "b_2", "_c"])), min_size=1, max_size=8), st.text())
def test_a_template_is_its_pieces(pieces: list[tuple[str, str]], end: str) -> None:
    def doubled(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    template = Template("".join(f"{doubled(text)}{{{name}}}" for text, name in pieces) + doubled(end))
    values = {"a": "{a}", "b_2": "", "_c": "}{"}
    assert template.fill(values) == "".join(text + values[name] for text, name in pieces) + end


def test_a_template_is_bounded_in_its_inputs_and_in_what_they_make() -> None:
    with pytest.raises(InvalidInput, match="inputs"):
        Template("".join(f"{{a{number}}}" for number in range(MAX_INPUTS + 1)))
    many = Template("{a}" * 1000)
    assert len(many.fill({"a": "x" * (MAX_RENDERED // 1000)})) == MAX_RENDERED
    with pytest.raises(InvalidInput) as caught:
        many.fill({"a": "x" * (MAX_RENDERED // 1000 + 1)}, "messages")
    assert caught.value.problems[0].loc == ("messages",)
    with pytest.raises(InvalidInput, match="no input"):
        Template("Say hi.")


# ---- bounds


@each_case(
    ("changes", "place"),
    [
        ({"model": ""}, ("model",)),
        ({"system": 1}, ("system",)),
        ({"system": "a\0b"}, ("system",)),
        ({"system": "\ud800"}, ("system",)),
        ({"system": "x" * (MAX_SIZE + 1)}, ("system",)),
        ({"template": None}, ("template",)),
        ({"examples": "ab"}, ("examples",)),
        ({"examples": {"user": "a"}}, ("examples",)),
        ({"examples": [{"user": "a", "assistant": "b"}] * (MAX_EXAMPLES + 1)}, ("examples",)),
        ({"examples": [{"user": "a", "assistant": "b"}, {"user": "a"}]}, ("examples", 1, "assistant")),
        ({"examples": [{"assistant": "b"}]}, ("examples", 0)),
        ({"examples": [{"user": "a", "inputs": {"q": "a"}, "assistant": "b"}]}, ("examples", 0)),
        ({"examples": [{"user": "a", "assistant": "b", "tool": "c"}]}, ("examples", 0)),
        ({"examples": [{"user": "\ud800", "assistant": "b"}]}, ("examples", 0, "user")),
        ({"examples": [{"inputs": {"q": "a"}, "assistant": "b"}]}, ("examples", 0, "inputs")),
        ({"template": "{p}", "examples": [{"inputs": {"q": "a"}, "assistant": "b"}]}, ("examples", 0, "inputs")),
        ({"template": "{q}", "examples": [{"inputs": {"q": 1}, "assistant": "b"}]}, ("examples", 0, "inputs", "q")),
        ({"parameters": [1]}, ("parameters",)),
        ({"parameters": {"seed": 1}}, ("parameters", "seed")),
        ({"parameters": {"n": 2}}, ("parameters", "n")),
        ({"parameters": {"model": "echo"}}, ("parameters", "model")),
        ({"parameters": {"temperature": "hot"}}, ("parameters", "temperature")),
        ({"parameters": {"temperature": float("nan")}}, ("parameters", "temperature")),
        ({"parameters": {"max_tokens": 0}}, ("parameters", "max_tokens")),
        ({"parameters": {"chat_template_kwargs": {"a": None}}}, ("parameters", "chat_template_kwargs", "a")),
    ],
)
def test_what_does_not_fit_is_refused_at_its_place(changes: dict[str, Any], place: tuple[str | int, ...]) -> None:
    assert refused(**changes)[0] == place


def test_everything_wrong_is_named_and_all_of_it_together_is_bounded() -> None:
    assert refused(model="", system=1, template=2) == [("model",), ("system",), ("template",)]
    assert refused(parameters={"seed": 1, "n": 2}) == [("parameters", "seed"), ("parameters", "n")]
    half = "x" * (MAX_SIZE // 2)
    with pytest.raises(InvalidInput, match="too large"):
        content(system=half, template=f"{{q}}{half}")
    assert content(system=half).system == half


# ---- the file

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40) | st.text(
    '"\\\n\r\t \x7f{}#\x85\u2028', min_size=1, max_size=12
)
LEAVES = TEXTS | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=12
)
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
CONTENTS = st.builds(
    lambda system, template, pairs, kwargs, more: content(
        system=system,
        template=template and template.replace("{", "{{").replace("}", "}}") + "{question}",
        examples=[
            {"inputs": {"question": asked}, "assistant": answer} if template else {"user": asked, "assistant": answer}
            for asked, answer in pairs
        ],
        parameters={"chat_template_kwargs": kwargs, **more},
    ),
    TEXTS | st.just(""),
    TEXTS | st.just(""),
    st.lists(st.tuples(TEXTS, TEXTS), max_size=3),
    st.dictionaries(TEXTS, VALUES, max_size=4),
    st.sampled_from(
        [
            {},
            {"temperature": 0.1, "max_tokens": 7, "stop": ["a", '"b"']},
            {"top_p": 1e-05, "logit_bias": {"7": -1.5}},
            {"tools": [TOOL, TOOL], "tool_choice": "auto"},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
        ]
    ),
)


@pytest.mark.slow
@given(CONTENTS)
def test_a_file_round_trips_byte_for_byte(made: VariantContent) -> None:
    text = file.written("desk/support", made)
    found = file.read(text)
    assert (found.name, found.content, found.content.digest) == ("desk/support", made, made.digest)
    assert file.written(found.name, found.content) == text


def test_a_file_reads_well() -> None:
    made = content(
        model="desk/agent:step7",
        system='Be brief.\nSay "no" if you do not know: C:\\temp.',
        template="Question: {question}\n",
        examples=[{"inputs": {"question": "Where?"}, "assistant": "Here."}],
        parameters={"temperature": 0.2, "stop": ["END"], "tools": [TOOL]},
    )
    assert (
        file.written("desk/support", made)
        == '''name = "desk/support"
model = "desk/agent:step7"
system = """
Be brief.
Say "no" if you do not know: C:\\\\temp."""
template = """
Question: {question}
"""

[parameters]
stop = ["END"]
temperature = 0.2

[[parameters.tools]]
type = "function"

[parameters.tools.function]
name = "look_up"

[parameters.tools.function.parameters]
type = "object"

[parameters.tools.function.parameters.properties]

[[examples]]
assistant = "Here."

[examples.inputs]
question = "Where?"
'''
    )


def test_dots_and_quotes_in_texts_are_texts() -> None:
    dots = "a." * 100
    for text in (dots, "a.\n" * 1000, '"' * 9, f"'''{dots}", f'#"""{dots}', "\\" * 9 + '"', f'{dots}\n"\\'):
        made = content(system=text)
        assert file.read(file.written("desk/support", made)).content == made
    by_hand = f"name = 'a/b'\nmodel = 'echo' # \"{dots}\nsystem = '''{dots}'''"
    assert file.read(by_hand).content.system == dots


def test_a_file_by_hand_says_the_same_as_one_that_was_written() -> None:
    by_hand = """
        # reviewed by the desk
        model = 'echo'
        name = 'desk/support'
        examples = [{user = "a", assistant = "b"}]
        parameters.max_tokens = 7
    """
    found = file.read(by_hand)
    assert found.content == content(examples=[{"user": "a", "assistant": "b"}], parameters={"max_tokens": 7})
    assert tomllib.loads(file.written(found.name, found.content)) == tomllib.loads(by_hand)


@pytest.mark.slow
@each_case(
    ("text", "place"),
    [
        ("", ("file", "name")),
        ("not toml", ("file",)),
        ("a = " + "[" * 5000, ("file",)),
        ("a." * 100_000 + "a = 1", ("file",)),
        ("[" + "a . " * 100_000 + "a]", ("file",)),
        ("x = {" + "a." * 100_000 + "a = 1}", ("file",)),
        ('x = """a"""""\n' + '"a".' * 100_000 + "a = 1", ("file",)),
        ('"""' + '\\"""\n' * 100_000, ("file",)),
        ('"' + '\\"' * 100_000 + "\n", ("file",)),
        ('"""\\' * 99_999, ("file",)),
        ("'''\n" * 99_999, ("file",)),
        ("x = 'a' # '\n" + "'a'." * 100_000 + "a = 1", ("file",)),
        ('name = "a/b"', ("file", "model")),
        ('name = 1\nmodel = "echo"', ("file", "name")),
        ('name = "a/b"\nmodel = "echo"\nprompt = "x"', ("file", "prompt")),
        ('name = "a/b"\nmodel = "echo"\ntemplate = "{x.y}"', ("file", "template")),
        ('name = "a/b"\nmodel = "echo"\nexamples = [1]', ("file", "examples", 0)),
        ('name = "a/b"\nmodel = "echo"\n[parameters]\ntemperature = 2026-01-01', ("file", "parameters", "temperature")),
        ('name = "a/b"\nmodel = "echo"\n[parameters]\ntemperature = inf', ("file", "parameters", "temperature")),
        ('name = "a/b"\nmodel = "echo"\nparameters = 3', ("file", "parameters")),
        ("#" * (file.MAX_FILE + 1), ("file",)),
        (None, ("file",)),
    ],
)
def test_a_file_that_does_not_fit_is_refused_at_its_place(text: Any, place: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        file.read(text)
    assert caught.value.problems[0].loc == place


def test_the_parameters_are_those_of_a_completion_without_what_belongs_to_a_request() -> None:
    assert {"temperature", "max_tokens", "response_format", "tools"} <= set(PARAMETERS)
    assert not {"seed", "n", "stream", "model", "messages", "user", "metadata", "store", "logprobs"} & set(PARAMETERS)
