"""The coordinator: it relays messages, learns one sum, and publishes the next adapter."""
