"""When asynchronous scheduling may not run. Pure."""


def needs_drain(*, pipeline_stages: int, asynchronous: bool | None, spaced: bool) -> bool:
    """Return whether an engine set up like this builds stale masks unless the drain (p001) is in place.

    Args:
        pipeline_stages: pipeline parallel size.
        asynchronous: what was asked for; None leaves it to vLLM, which switches it on where it can.
        spaced: whether a request's steps are at least the pipeline's length apart (vLLM issue 45014): the V2
            model runner of vLLM 0.32 asks the scheduler for that, the one of 0.22 and the V1 runner do not.
    """
    return pipeline_stages > 1 and asynchronous is not False and not spaced
