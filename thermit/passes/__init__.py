"""Graph to graph: exact simplifications."""
