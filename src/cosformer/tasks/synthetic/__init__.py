"""Probes that are generated: associative recall, copying, reversing."""
