"""An adapter as tensors, one flat vector, published bytes and a directory for peft."""
