"""One client request from admission to the last byte: tries, classification, streams."""
