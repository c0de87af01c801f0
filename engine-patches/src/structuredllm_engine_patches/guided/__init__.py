"""Pure logic of guided (structured) decoding: no vLLM, no input or output, no clock."""
