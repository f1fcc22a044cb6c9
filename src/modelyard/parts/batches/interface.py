"""The interface of the part `batches`."""

from modelyard.http.error_responses import ERROR
from modelyard.http.interface import Auth, Interface

FILES = Interface("files", ERROR, {("v1", "files"): (Auth.BEARER, ERROR)}, description="Files that clients keep.")
BATCHES = Interface(
    "batches", ERROR, {("v1", "batches"): (Auth.BEARER, ERROR)}, description="Files of requests that a job answers."
)
