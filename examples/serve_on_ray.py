"""Servers as replicas of Ray Serve, over one store and one place for artifacts, with `pip install 'ray[serve]'`:

    serve run --app-dir examples serve_on_ray:app store=postgresql://host/yard artifacts=s3://bucket/yard replicas=4

Every replica is one more server of the same platform: keys, budgets and rate limits hold over all of them. What the
arguments say is shown by Ray's dashboard, so passwords belong into files of the machines, such as a `PGPASSFILE`.
"""

from ray import serve

from modelyard import asgi_app, open_platform


def app(arguments):
    """Return the application; Ray Serve calls it with what stands behind its name on the command line."""
    store, artifacts = arguments["store"], arguments["artifacts"]

    def server():
        """Open the platform in the replica's own process; with a backend of yours, if you have one."""
        return asgi_app(open_platform(store, artifacts=artifacts))

    replicas = serve.deployment(serve.ingress(server)(), name="yard")
    # A request in progress mostly waits for a model, and Ray Serve lets a replica have five at a time by default.
    return replicas.options(num_replicas=int(arguments.get("replicas", 2)), max_ongoing_requests=256).bind()
