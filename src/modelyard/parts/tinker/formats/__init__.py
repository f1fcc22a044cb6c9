"""Messages of Tinker's client: protobuf in and out, and the JSON of requests to sample."""
