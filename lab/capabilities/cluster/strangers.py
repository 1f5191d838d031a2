"""dask's TLS listener with limits for peers that have not shown a certificate yet.

dask waits for a TLS handshake without limit. Any user who reaches the port could hold all files
that its process may open; then it accepts nobody, and its loop logs that without end.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from lab.host.system import clock

HANDSHAKE: Final = 10.0
"""Timeout in seconds of a handshake. It takes 10 ms."""
WAITING: Final = 256
"""Most connections in a handshake; one more closes the oldest."""


def limit_strangers() -> None:
    """Make all further listeners of this process limit them."""
    from distributed.comm import registry, tcp

    class Listener(tcp.TLSListener):  # type: ignore[misc]
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self._strangers: dict[Any, None] = {}

        async def _prepare_stream(self, stream: Any, _address: Any) -> Any:
            self._strangers[stream] = None
            if len(self._strangers) > WAITING:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.close()
            try:
                await asyncio.wait_for(stream.wait_for_handshake(), clock.limit(HANDSHAKE))
            except OSError:  # also that of the timeout
                stream.close()
                return None
            else:
                return stream
            finally:
                self._strangers.pop(stream, None)

    class Backend(tcp.TLSBackend):  # type: ignore[misc]
        _listener_class = Listener

    registry.backends["tls"] = Backend()
