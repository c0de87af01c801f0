"""Set-up of every test.

Says once that the main thread has no event loop. Otherwise pytest-asyncio asks for the current loop before
its first test, which makes one that nobody closes: its ResourceWarning fails whichever test runs then.
"""

import asyncio

asyncio.set_event_loop(None)
