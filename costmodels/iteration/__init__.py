"""One synchronized iteration: what runs on which stream in which order, and how long it takes.

``base`` has the vocabulary (steps, programs, stage times); each training pipeline is one file that
orders the steps; ``_closed_form`` prices thousands of plans at once, ``_events`` simulates one.
"""
