"""API keys: who may ask, for which models, how much; read from a mounted file, held as hashes."""
