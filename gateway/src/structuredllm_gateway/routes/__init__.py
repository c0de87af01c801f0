"""HTTP routes: thin adapters from ASGI to the parts that decide."""
