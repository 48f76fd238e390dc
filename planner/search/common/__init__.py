"""What every part of the search uses: linear models, solvers with checked answers, processes."""
