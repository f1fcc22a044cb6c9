"""Values as pages, plots and files for other programs: what `modelyard.report` has of them."""
