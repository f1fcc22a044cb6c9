"""A request for embeddings refuses a member that it does not know, by name."""

from typing import Any

from unknown_members import misspelt

ASKED = {"model": "embed", "input": ["a", "b"], "encoding_format": "float", "user": "u", "dimensions": None}


def test_a_member_that_is_not_known_is_refused_at_its_place_with_the_nearest_name(client: Any) -> None:
    for name, place, changed in misspelt(ASKED, ()):
        refused = client.send("POST", "/v1/embeddings", changed, check=False)
        assert (refused.status, refused.json["error"]["param"]) == (400, place)
        assert f"'{name}'" in refused.json["error"]["message"]
