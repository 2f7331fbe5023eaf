"""Reports on experiments: what `results.jsonl` says, as tables, curves and one JSON line."""
