"""What goes wrong between a party and the link, by what one can do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

from coterie.errors import CoterieError


class LinkGone(CoterieError, ConnectionError):
    """The link does not answer any more."""


class NotAdmitted(CoterieError, PermissionError):
    """The link refuses this party."""


@contextmanager
def link_errors() -> Iterator[None]:
    """What goes wrong on the way, by what one can do about it."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        status, path = error.response.status_code, error.request.url.path
        if status in (401, 403, 404):
            raise NotAdmitted(
                f"the link refuses {path} with {status}; is this key enrolled there, and has the run not ended?"
            ) from error
        raise LinkGone(f"the link answers {path} with {status}: {error.response.text[:200]}") from error
    except httpx.TransportError as error:
        text = str(error)
        if "certificate" in text.lower():  # a handshake that breaks off is a link that comes or goes
            raise NotAdmitted(f"the link's certificate is not of the authority that was named: {text}") from error
        raise LinkGone(
            f"the link does not answer ({text or type(error).__name__}); `coterie deploy server` runs it"
        ) from error
    except ObjectPullError as error:
        raise LinkGone(f"the link does not have what it announced: {error}") from error
