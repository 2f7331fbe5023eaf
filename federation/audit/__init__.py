"""The audit log's chain of lines, and the head that a third party keeps."""
