"""Tool calls are read out of an answer alike however it is cut into pieces, and nothing of it is lost."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.completion import ToolCall
from modelyard.parts.torch.tool_calls import FORMATS, ToolFormat, ToolReader, format_of

TAGS, LIST, OBJECT = FORMATS

names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
texts = st.text(max_size=8) | st.sampled_from(
    ["</tool_call>", "<tool_call>", '"}]</tool_call>{["', "\\", "{", "]", "[ARGS]"]
)
values = st.recursive(st.integers() | texts | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=4)
arguments = st.dictionaries(texts, values, max_size=3)
plain = st.text(st.characters(codec="utf-8", exclude_characters="<[{"), max_size=12)
noise = plain | st.sampled_from(
    ["<tool", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", '{"name":', "{", "<", "[TOOL", "<tool_call>{]"]
)


def written(form: ToolFormat, name: str, given_: object) -> str:
    """A call as a model of this family writes it."""
    call = json.dumps({"name": name, form.arguments_key: given_})
    body = f"[{call}]" if form.listed else call
    return body if form is OBJECT else form.opening + body + form.closing


class AnyName(frozenset[str]):
    """The names of all tools there could be."""

    def __contains__(self, name: object) -> bool:
        return True


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, list[ToolCall]]:
    """Content, and calls; the last piece says that it is the last."""
    reader, content, calls = ToolReader(form, "c", AnyName()), "", []
    for place, piece in enumerate(pieces, 1):
        for found in reader.take(piece, place == len(pieces)):
            if isinstance(found, str):
                content += found
            else:
                calls.append(found)
    return content, calls


@st.composite
def answers(draw: st.DrawFn) -> tuple[ToolFormat, list[str], list[str]]:
    """A format, an answer in it, cut somewhere, and cut elsewhere."""
    form = draw(st.sampled_from(FORMATS))
    call = st.builds(lambda name, given_: written(form, name, given_), names, arguments)
    text = "".join(draw(st.lists(noise | call, max_size=5)))
    cuts = [sorted(draw(st.lists(st.integers(0, len(text)), max_size=8))) for _ in range(2)]
    one, other = ([text[a:b] for a, b in zip([0, *cut], [*cut, len(text)], strict=True)] for cut in cuts)
    return form, one, other


@pytest.mark.slow
@given(answers())
def test_where_an_answer_is_cut_makes_no_difference(answer: tuple[ToolFormat, list[str], list[str]]) -> None:
    form, one, other = answer
    assert read(form, one) == read(form, other) == read(form, ["".join(one)]) == read(form, list("".join(one)) + [""])


@given(st.sampled_from(FORMATS), names, arguments, plain, st.integers(0, 30))
def test_a_call_after_some_words_is_read_with_its_arguments(
    form: ToolFormat, name: str, given_: dict[str, object], words: str, cut: int
) -> None:
    text = words + written(form, name, given_)
    content, (call,) = read(form, [text[:cut], text[cut:]])
    assert content == words
    assert (call.id, call.name, json.loads(call.arguments)) == ("c-0", name, given_)


@given(plain, plain)
def test_calls_between_tags_are_numbered_and_what_stands_between_them_is_content(before: str, between: str) -> None:
    text = before + written(TAGS, "a", {}) + between + written(TAGS, "b", {"x": 1})
    content, calls = read(TAGS, list(text))
    assert content == before + between
    assert [(call.id, call.name) for call in calls] == [("c-0", "a"), ("c-1", "b")]


def test_several_calls_of_one_list_are_all_read() -> None:
    text = '[TOOL_CALLS][{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": 2}}]'
    assert [call.name for call in read(LIST, [text])[1]] == ["a", "b"]


@given(st.sampled_from(FORMATS), noise, noise)
def test_what_is_not_a_call_is_content_to_the_last_letter(form: ToolFormat, one: str, other: str) -> None:
    content, calls = read(form, [one, other])
    assert calls == []
    assert content == one + other


NO_CALLS = [
    *(
        "{}",
        "[]",
        "7",
        '"a"',
        '{"name": 5}',
        '{"name": ""}',
        '{"name": "a"',
        "[" * 10**5,
        '{"name": "a", "arguments": {"b": }}',
    ),
    *('{"name": "a", "arguments": 1}', '{"name": "a", "arguments": [{}]}', '{"name": "a", "arguments": "sea"}'),
    *('{"name": "a", "arguments": {"b": NaN}}', '{"name": "\\ud800"}', '{"name": "a", "arguments": {"b": "\n"}}'),
]


@pytest.mark.parametrize("body", NO_CALLS)
def test_a_call_that_is_none_is_content_and_the_next_one_is_read(body: str) -> None:
    text, other = f"<tool_call>{body}</tool_call>!", written(TAGS, "b", {"x": "</tool_call>"})
    content, calls = read(TAGS, [text])
    assert (content, calls) == (text, [])
    content, calls = read(TAGS, list(text[:200]) + [text[200:]] + [other])
    assert (content, [call.name for call in calls]) == (text, ["b"])


def test_arguments_under_the_other_name_or_as_text_or_left_out_are_taken() -> None:
    bodies = ['{"name": "a", "arguments": "{}"}', '{"name": "a"}', '{"name": "a", "parameters": {"b": 1}}']
    bodies += ['{"name": "a", "arguments": null}', '{"name": "a", "arguments": "{\\"b\\": 1}"}']
    found = [read(TAGS, [f"<tool_call>{body}</tool_call>"])[1][0].arguments for body in bodies]
    assert found == ["{}", "{}", '{"b": 1}', "{}", '{"b": 1}']


@given(st.sampled_from(FORMATS), names, arguments, names, arguments, st.data())
def test_a_call_that_was_cut_off_is_content_and_a_whole_one_before_it_is_read(
    form: ToolFormat, name: str, given_: dict[str, object], other: str, others: dict[str, object], data: st.DataObject
) -> None:
    first, second = written(form, name, given_), written(form, other, others)
    whole = len(second) - len(form.closing)
    cut = second[: data.draw(st.integers(len(form.opening), whole - 1))]
    content, calls = read(form, [*first, *cut])
    assert (content, [call.name for call in calls]) == (cut, [name])


@given(names, arguments, st.integers(0, len(TAGS.closing)))
def test_a_whole_call_whose_mark_was_cut_off_is_a_call(name: str, given_: dict[str, object], cut: int) -> None:
    text = written(TAGS, name, given_)
    content, (call,) = read(TAGS, [text[: len(text) - cut]])
    assert (content, call.name, json.loads(call.arguments)) == ("", name, given_)


@given(st.sampled_from(FORMATS), names, arguments, plain)
def test_a_call_is_emitted_as_soon_as_it_ends_and_what_follows_is_content(
    form: ToolFormat, name: str, given_: dict[str, object], words: str
) -> None:
    reader = ToolReader(form, "c", {name})
    (call,) = reader.take(written(form, name, given_))
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == given_
    assert "".join(map(str, reader.take(words, over=True))) == words


def test_a_marked_call_of_an_unknown_tool_is_emitted_and_other_json_is_content() -> None:
    for form, reported in ((TAGS, 1), (LIST, 1), (OBJECT, 0)):
        text = written(form, "Bob", {"age": 3})
        found = list(ToolReader(form, "c", {"look_up"}).take(text, over=True))
        assert found == ([ToolCall("c-0", "Bob", '{"age": 3}')] if reported else [text])


def test_a_mark_in_the_middle_of_words_is_content_at_once() -> None:
    reader = ToolReader(TAGS, "c", ())
    assert "".join(map(str, reader.take('Write <tool_call> "before it'))) == 'Write <tool_call> "before it'


def test_a_call_that_the_answer_ends_in_needs_no_closing() -> None:
    assert read(TAGS, ['<tool_call>{"name": "a", "arg', 'uments": {}}'])[1][0].name == "a"


def test_content_is_not_held_back_longer_than_it_may_become_a_call() -> None:
    reader = ToolReader(TAGS, "c", ())
    assert list(reader.take("well <tool")) == ["well "]
    assert list(reader.take("box ")) == ["<toolbox "]


TEMPLATES = [
    ("{% if tools %}<tool_call>{% endif %}", TAGS),
    ("{% if tools %}[TOOL_CALLS]{% endif %}", LIST),
    ('{% if tools %}{"name": "x", "parameters": {}}{% endif %}', OBJECT),
    ("{{ messages }}<tool_call>", None),
    ("{{ tools }}", None),
    ('{% for tool in tools %}{"parameters": {{ tool.parameters }}}{% endfor %}', None),
    ("{% if tools %}<tool_call><function=x><parameter=y>{% endif %}", None),
    ("{% if tools %}<tool_call>{{ name }}<arg_key>x</arg_key>{% endif %}", None),
    ("{% if tools %}<tool_calls><tool_call>x<tool_sep>{% endif %}", None),
    ("{% if tools %}[TOOL_CALLS]{{ name }}[ARGS]{% endif %}", None),
]
"""The last four begin calls as others do, and continue in ways of their own."""


@pytest.mark.parametrize(("template", "form"), TEMPLATES)
def test_a_format_is_recognised_by_its_template(template: str, form: ToolFormat | None) -> None:
    assert format_of(template) is form
