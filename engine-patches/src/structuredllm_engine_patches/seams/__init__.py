"""The places where patches hold on to vLLM: one module each, thin wrappers only, decisions live in `guided`.

No module here imports vLLM at its top; they work on the objects that they are given.
"""
