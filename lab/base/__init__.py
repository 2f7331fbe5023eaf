"""The small base model: tokenizer, shape, demonstrations, build, measurement."""
