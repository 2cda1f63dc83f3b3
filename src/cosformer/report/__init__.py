"""Records in; tables, plots and pages out. Nothing here measures anything."""
