"""The verb serve."""

from __future__ import annotations

from seqloom.cli.options import Texts, Verb
from seqloom.errors import UsageError, printable


def serve(
    *folder: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    key_file: str | None = None,
    allow_host: Texts = (),
    cors: Texts = (),
    limit: Texts = (),
) -> None:
    """Serve models over HTTP.

    For the clients of OpenAI and Hugging Face, and for a browser.

    Language models answer /v1/completions and models of all tasks POST /models/NAME; / is a page to try
    them. GET /info shows every limit. Ctrl-C or SIGTERM ends it once the running requests are answered.

    Args:
        folder: A run folder, a Hugging Face directory or hf://NAME; or NAME=FOLDER, where NAME may hold "/".
        host: Where to listen. Anything but loopback needs a key.
        port: Which port; 0 takes a free one.
        key_file: A file with keys, one in each line, that only its owner may read. By default the
            environment variable SEQLOOM_KEY. Requests then need Authorization: Bearer KEY.
        allow_host: A name under which the server may be called beside localhost, such as that of a proxy.
            May be given again.
        cors: A page of another host that may ask, such as https://example.org. May be given again.
        limit: NAME=NUMBER for a limit of GET /info, such as rows=32. May be given again.
    """
    from seqloom.run_file import parse, read_yaml
    from seqloom.serving.extra import require_extra

    require_extra()
    from seqloom.serving.guard import LOOPBACK, Access
    from seqloom.serving.limits import ServerLimits
    from seqloom.serving.server import Address, keys_from
    from seqloom.serving.server import serve as serve_models

    limits: dict[str, object] = {}
    for each in limit:
        name, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"--limit takes NAME=NUMBER, but is {printable(each)}")
        limits[name] = read_yaml(value, f"--limit {name}")
    hosts = (*LOOPBACK, *allow_host) if host in LOOPBACK else (*LOOPBACK, host, *allow_host)
    serve_models(
        *folder,
        address=Address(host=host, port=port),
        access=Access(keys=keys_from(key_file), hosts=hosts, origins=cors),
        limits=parse(ServerLimits, limits, "limit."),
    )


VERB = Verb(serve, "seqloom serve runs/tales")
