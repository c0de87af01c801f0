"""p027: validate a grammar for the guidance backend once, and off the event loop.

Upstream (vLLM 0.32, `validate_guidance_grammar`) has llguidance parse it on the API server's event loop.
llguidance bounds its own work (its lexer and parser count their steps), so it needs no worker; what is left
is where it runs. The first validation is an attempt in a thread (`seams.validate_ahead`); its outcome is kept
with the attempt's results, and upstream's own validation on the event loop finds it.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from typing import Any

from structuredllm_engine_patches.compiling.attempts import RESULTS, is_on_event_loop, known_result

Validate = Callable[..., None]


def build(original: Validate) -> Validate:
    """Return the replacement of `validate_guidance_grammar`."""

    @wraps(original)
    def validate_guidance_grammar(sampling_params: Any, tokenizer: Any = None) -> None:
        constraint = sampling_params.structured_outputs
        results = RESULTS.get()
        if constraint is None or results is None:
            original(sampling_params, tokenizer)
            return
        from vllm.v1.structured_output.request import get_structured_output_key

        key = ("guidance", *get_structured_output_key(constraint))
        known = known_result(key) if is_on_event_loop() else None
        if known is not None:
            known.result()
            return
        outcome: Future[None] = Future()
        try:
            original(sampling_params, tokenizer)
        except Exception as error:
            outcome.set_exception(error)
            raise
        else:
            outcome.set_result(None)
        finally:
            results[key] = outcome

    return validate_guidance_grammar
