"""One synchronized iteration: what runs on which stream in which order, and how long it takes.

``base`` has the vocabulary (steps, programs, stage times), and orders the steps of each training
pipeline; ``timing`` prices thousands of plans at once, and says what one of them waits for.
"""
