"""The Long Range Arena."""
