"""p006: a structured request ends where its grammar ends, also with `ignore_eos`.

With `ignore_eos` upstream still lets the grammar take the end token, does not stop there, and from then on
masks nothing: free text follows the complete answer up to `max_tokens`. There is no text that could follow,
so the request stops at the end token as if `ignore_eos` had not been asked for.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

Method = Callable[..., None]


def build_update(original: Method) -> Method:
    """Return the replacement of `SamplingParams.update_from_generation_config`.

    That is where the front-end decides, on its own copy of the parameters, which tokens stop a request.
    """

    @wraps(original)
    def update_from_generation_config(params: Any, *args: Any, **kwargs: Any) -> None:
        constraints = params.structured_outputs
        if params.ignore_eos and constraints is not None and not constraints.all_constraints_none():
            params.ignore_eos = False
        original(params, *args, **kwargs)

    return update_from_generation_config
