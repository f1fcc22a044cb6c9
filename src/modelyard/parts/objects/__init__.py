"""Artifacts in an object store: S3, Google Cloud Storage, Azure, or a server that speaks like one of them.

store         `ObjectArtifacts`, the artifact store itself
cache         the folder of local copies, of bounded size
ranges        a file that fetches what is read of it
direct        uploads to addresses, and the uploads that were never finished
stores        buckets by their addresses
faults        the errors of the object store in the terms of modelyard
"""

from modelyard.lazy import defer_modules

defer_modules(__name__, "direct", "store", "stores")
