"""Compilation of grammars in processes that can be killed: workers, fork server, and the pool before them.

Standard library only, and no vLLM: the fork server imports xgrammar, nothing else does.
"""
