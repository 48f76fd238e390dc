"""Predicts the times of single operations, one for each row of a CSV file."""
