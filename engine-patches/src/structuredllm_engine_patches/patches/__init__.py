"""The patches, one module each: data, and the glue between a patch and its seam. Imports no vLLM."""
