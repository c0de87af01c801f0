"""The benchmark of the gateway against other gateways, side by side on one machine."""
