"""Index statistics of tables, measured from raw indices."""
