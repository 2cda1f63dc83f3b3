"""Generated tasks: associative recall, copying, reversing."""
