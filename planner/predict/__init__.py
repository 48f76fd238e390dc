"""Times of single operations, row by row of a CSV file."""
