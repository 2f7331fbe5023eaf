"""An attempt's signed messages as a document that anybody can verify."""
