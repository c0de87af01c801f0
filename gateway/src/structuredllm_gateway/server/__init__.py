"""The process: listening ports, client connections and their bounds, workers, the way out."""
