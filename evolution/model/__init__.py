"""The adapter and the base model it sits on. Import from the modules: some of them need torch."""
