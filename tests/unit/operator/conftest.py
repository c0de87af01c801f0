"""Says that the main thread has no default event loop.

Otherwise pytest-asyncio asks for it on Python 3.11, which makes one that nobody closes, and the warning about
that fails some later test.
"""

import asyncio

asyncio.set_event_loop(None)
