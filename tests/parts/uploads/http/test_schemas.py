"""How an operation of the W&B client is known: by its name, or by the first field that it asks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.parts.uploads.graphql_request import GraphQLRequest, names_of

words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
spaces = st.text(" \t\r\n", max_size=5)
gaps = st.text(" \t\r\n", min_size=1, max_size=5)


@given(st.sampled_from(["query", "mutation"]), words, words, words, spaces, gaps)
def test_a_name_and_a_field_are_found_in_any_layout(
    kind: str, name: str, alias: str, field: str, space: str, gap: str
) -> None:
    head = f"{space}{kind}{gap}{name}{space}"
    for variables in ("", "($a: ID!, $b: [String!] = [1])"):
        for given_as in (field, f"{alias}{space}:{space}{field}"):
            query = f"{head}{variables}{space}{{{space}{given_as}(x: $a) {{ y }} }}"
            assert names_of(GraphQLRequest(query)) == (name, field)
            assert names_of(GraphQLRequest(query, operationName="Told")) == ("Told", field)


@pytest.mark.parametrize("query", ["{ viewer { id } }", "query { viewer { id } }", "query($x: Int){viewer{id}}"])
def test_an_operation_without_a_name_has_its_field(query: str) -> None:
    assert names_of(GraphQLRequest(query)) == ("", "viewer")


@given(st.text(max_size=200) | st.text("{}():$ query\n", max_size=200), st.none() | words)
def test_any_text_at_all_is_read_to_its_end(query: str, name: str | None) -> None:
    seen, field = names_of(GraphQLRequest(query or "x", operationName=name))
    assert seen == name if name is not None else isinstance(seen, str)
    assert field == "" or field in query
