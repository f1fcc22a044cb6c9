"""Artifacts in an object store: S3, Google Cloud Storage, Azure."""

from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.parts.objects.store import ObjectArtifacts
    from modelyard.protocols import Randomness


def _open(address: str, randomness: "Randomness") -> "ObjectArtifacts":
    from modelyard.parts.objects.store import ObjectArtifacts
    from modelyard.parts.objects.stores import bucket_at, cache_of, probe_at

    bucket = bucket_at(address)
    return ObjectArtifacts(bucket, cache_of(address), randomness=randomness, probe=probe_at(address))


PART = Part(
    "objects",
    artifacts={
        "s3": ("s3://bucket/prefix", _open),
        "gs": ("gs://bucket/prefix", _open),
        "az": ("az://container/prefix", _open),
    },
)
