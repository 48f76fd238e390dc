"""report.html: one file per section, found by its file name, and the page that holds them."""
