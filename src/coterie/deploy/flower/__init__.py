"""All that touches Flower's private names, for version 1.41: the link, a client's connection to it, and the server's.

Bytes in, bytes out: what they mean is nobody's business here. A client's connection pulls messages and pushes answers;
it asks for no app, so nothing that the link holds is ever executed. The server's takes the run's one task itself.
"""

import logging

from coterie.errors import DataMissing

try:
    from flwr.supercore.logger import console_handler
except ModuleNotFoundError as error:
    raise DataMissing(
        f"Flower is not installed (module {error.name!r}); install the extra of the name deploy, as docs/deployment.md "
        'says: pip install "$(ls dist/coterie-*.whl)[deploy]" --constraint constraints.txt'
    ) from error

from coterie.deploy.flower.failures import LinkGone, NotAdmitted
from coterie.deploy.flower.fleet import Fleet, Parcel
from coterie.deploy.flower.gate import FLEET
from coterie.deploy.flower.link import LinkSettings, serve
from coterie.deploy.flower.office import NodeState, Office

console_handler.setLevel(logging.WARNING)

__all__ = ["FLEET", "Fleet", "LinkGone", "LinkSettings", "NodeState", "NotAdmitted", "Office", "Parcel", "serve"]
