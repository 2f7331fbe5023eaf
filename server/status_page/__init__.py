"""The coordinator's status page: one HTML document for each request (``serve.py``)."""
