"""The interface of the part `embeddings`."""

from modelyard.http.error_responses import ERROR
from modelyard.http.interface import Auth, Interface

EMBEDDINGS = Interface(
    "embeddings", ERROR, {("v1", "embeddings"): (Auth.BEARER, ERROR)}, description="Texts and token ids as vectors."
)
