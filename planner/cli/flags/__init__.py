"""From command-line flags to problems."""
